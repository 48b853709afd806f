"""A pre-forking server: processes that share a listener, each of which serves one connection after the other. A request is a line:
`who` is answered at once with the process's number, `busy FIFO` once somebody has opened and closed that, until when the process
makes no call that the library could see, `hold` at once, but the process then waits for the connection's next line and accepts nothing. Arguments: address, how it waits, processes."""

import ctypes
import os
import select
import socket
import sys

address, way, processes = sys.argv[1], sys.argv[2], int(sys.argv[3])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, 8080))
listener.listen(512)
listener.setblocking(way == "accept")


def serve(client):
    lines = client.makefile("rb")
    for line in lines:
        words = line.decode().split()
        if words[0] == "busy":
            with open(words[1]) as fifo:
                fifo.read()
        client.sendall(b"%d\n" % os.getpid())
        if words[0] != "hold":
            break
    lines.close()
    client.close()


def accept():
    poller = select.epoll() if way == "epoll" else select.poll()
    if way != "accept":
        poller.register(listener, select.POLLIN)
    while True:
        if way != "accept":
            poller.poll()
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            continue
        client.setblocking(True)
        try:
            serve(client)
        except OSError:
            client.close()


for _ in range(processes):
    if os.fork() == 0:
        # PR_SET_PDEATHSIG: a child goes with its parent.
        ctypes.CDLL(None).prctl(1, 9)
        accept()
print("ready", flush=True)
os.wait()
