"""A thread waits in an epoll set before the process has anything accelerated; another one adds a listener, and then what it accepts.

usage: early.py OWN PORT

It answers one connection with what it says, and ends.
"""
import select
import socket
import sys
import threading
import time

own, port = sys.argv[1], int(sys.argv[2])
watched = select.epoll()
found = []


def wait():
    while len(found) < 2:
        found.extend(watched.poll(20) or [None])


def until(count):
    while len(found) < count:
        time.sleep(0.001)
    assert found[count - 1] is not None, "nobody woke it"


waiter = threading.Thread(target=wait)
waiter.start()
time.sleep(0.3)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((own, port))
listener.listen()
watched.register(listener, select.EPOLLIN | select.EPOLLET)
print("ready", flush=True)
until(1)
assert found[0] == (listener.fileno(), select.EPOLLIN), found
connection, _ = listener.accept()
watched.register(connection, select.EPOLLIN | select.EPOLLET)
until(2)
assert found[1] == (connection.fileno(), select.EPOLLIN), found
connection.sendall(connection.recv(100))
connection.close()
waiter.join()
