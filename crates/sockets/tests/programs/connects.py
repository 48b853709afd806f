"""Opens one connection after the other to a server that closes each of them first.

usage: connects.py PEER PORT WORD...

WORD is a number of connections, with an `h` behind it of such as this end closes first; `wait`, for a line on standard input; `hold`, to
open one that stays, and have the kernel go on with it by a fork; `held`, to use that one; `most`, to open as many at once as there are
descriptors for, and close them; `descriptors`, to count those that the kernel knows of; `child`, to count those of a child that has opened a
connection; `sleep`, for three seconds; `limit`, to have 100 at most, and `hard`, so that nobody can have more. Says for each word what came
of it: how many were opened, from how many ports.
"""
import errno
import os
import resource
import socket
import sys
import time

PEER = (sys.argv[1], int(sys.argv[2]))


def count_descriptors():
    return len(os.listdir("/proc/self/fd"))


def open_most():
    connections = []
    try:
        while True:
            connections.append(socket.create_connection(PEER, 5))
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    for connection in connections:
        connection.sendall(b"x")
        while connection.recv(2):
            pass
        connection.close()
    return len(connections)


def count_in_child():
    reader, writer = os.pipe()
    if os.fork() == 0:
        before = count_descriptors()
        socket.create_connection(PEER, 5).close()
        os.write(writer, b"%d %d" % (before, count_descriptors()))
        os._exit(0)
    os.wait()
    said = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    return said


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
    elif word == "most":
        print(open_most(), flush=True)
    elif word == "descriptors":
        print(count_descriptors(), flush=True)
    elif word == "child":
        print(count_in_child(), flush=True)
    elif word == "sleep":
        time.sleep(3)
        print("slept", flush=True)
    elif word in ("limit", "hard"):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if word == "limit" else 100
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, most))
        print("limited", flush=True)
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
