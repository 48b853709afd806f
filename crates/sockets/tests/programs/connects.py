"""Opens one connection after the other to a server that closes each of them first.

usage: connects.py PEER PORT WORD...

WORD is a number of connections, with an `h` behind it of such as this end closes first; `wait`, for a line on standard input; `hold`, to open one that stays, and have the kernel go on with it
by a fork; `held`, to use that one. Says for each word what came of it: how many were opened, from how many ports.
"""
import os
import socket
import sys

PEER = (sys.argv[1], int(sys.argv[2]))
held = child = None
for word in sys.argv[3:]:
    if word == "wait":
        sys.stdin.readline()
        print("waited", flush=True)
    elif word == "hold":
        held = socket.create_connection(PEER)
        held.sendall(b"h")
        assert held.recv(1) == b"h"
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
        print("held", flush=True)
    elif word == "held":
        held.sendall(b"h")
        assert held.recv(1) == b"h"
        os.close(writer)
        os.waitpid(child, 0)
        held.close()
        print("done", flush=True)
    else:
        ports, opened, said = set(), 0, ""
        is_first = word.endswith("h")
        for _ in range(int(word.rstrip("h"))):
            try:
                with socket.create_connection(PEER, 5) as connection:
                    ports.add(connection.getsockname()[1])
                    connection.sendall(b"h" if is_first else b"x")
                    assert connection.recv(2) == (b"h" if is_first else b"x")
                    assert is_first or connection.recv(1) == b""
                    opened += 1
            except OSError as error:
                said = type(error).__name__
        print(opened, len(ports), said, flush=True)
