"""Two processes that hold connections until somebody kills them. They print their numbers.

serve HOST...: each answers what it reads with its number, and ends in good order when it reads "end".
connect HOST PORT: each opens a connection, says its number, and waits.
answer HOST HOW: one process answers what it reads, and ends itself at once: HOW is abort, kill or raise.
"""

import os
import selectors
import signal
import socket
import sys


def serve(listeners):
    selector = selectors.DefaultSelector()
    for listener in listeners:
        selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj in listeners:
                try:
                    client, _ = key.fileobj.accept()
                except BlockingIOError:
                    continue
                selector.register(client, selectors.EVENT_READ)
                continue
            said = key.fileobj.recv(100)
            if said == b"end":
                sys.exit(0)
            if said:
                key.fileobj.sendall(str(os.getpid()).encode())
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def listen(host):
    listener = socket.create_server((host, 8080), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setblocking(False)
    return listener


def connect(host, port):
    connection = socket.create_connection((host, int(port)))
    connection.sendall(str(os.getpid()).encode())
    connection.recv(1)


def answer(host, how):
    selector = selectors.DefaultSelector()
    listener = listen(host)
    selector.register(listener, selectors.EVENT_READ)
    client = None
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                client = listener.accept()[0]
                selector.register(client, selectors.EVENT_READ)
            elif client.recv(100):
                client.sendall(b"the answer")
                if how == "abort":
                    os.abort()
                elif how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                else:
                    signal.raise_signal(signal.SIGTERM)


if sys.argv[1] == "answer":
    answer(*sys.argv[2:])
listeners = [listen(host) for host in sys.argv[2:]] if sys.argv[1] == "serve" else []
for _ in range(2):
    child = os.fork()
    if child == 0:
        serve(listeners) if listeners else connect(*sys.argv[2:])
        os._exit(0)
    print(child, flush=True)
for listener in listeners:
    listener.close()
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
