"""A server of two processes that share a listener, as a pre-forking server does. It prints their numbers."""

import os
import select
import socket
import sys

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], 8080))
listener.listen(512)
listener.setblocking(False)


def serve():
    poller = select.epoll()
    poller.register(listener, select.EPOLLIN)
    while True:
        poller.poll()
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            continue
        client.setblocking(True)
        try:
            client.recv(100)
            client.sendall(str(os.getpid()).encode())
        except OSError:
            pass
        client.close()


for _ in range(2):
    child = os.fork()
    if child == 0:
        serve()
    print(child, flush=True)
os.wait()
