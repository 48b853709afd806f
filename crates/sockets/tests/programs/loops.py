"""A thread serves sixteen connections in an event loop while another one sleeps in an event loop of its own, as Node.js' and Netty's do.

usage: loops.py ADDRESS PEER ROUNDS
"""
import os
import select
import socket
import sys
import threading
import time

ADDRESS, PEER, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
CONNECTIONS = 16

wakes = os.eventfd(0)


def sleep():
    events = select.epoll()
    events.register(wakes, select.EPOLLIN)
    events.poll()


sleeper = threading.Thread(target=sleep)
sleeper.start()
listener = socket.create_server((ADDRESS, 7100))
orders = socket.create_connection((PEER, 7000))
orders.sendall(f"""connect 7100
others = [socket.create_connection(s.getpeername()) for _ in range({CONNECTIONS - 1})]
for _ in range({ROUNDS}):
    for one in [s, *others]:
        one.send(b"?")
    for one in [s, *others]:
        assert one.recv(1) == b"!"
tell(b"done")

""".encode())
events = select.epoll()
connections = {}
for _ in range(CONNECTIONS):
    connection, _ = listener.accept()
    connections[connection.fileno()] = connection
    events.register(connection, select.EPOLLIN)
# So that all sixteen ask before the loop looks again.
answers = 0
while answers < ROUNDS * CONNECTIONS:
    time.sleep(0.001)
    for descriptor, _ in events.poll():
        assert connections[descriptor].recv(1) == b"?"
        connections[descriptor].send(b"!")
        answers += 1
# The loop ends, and what it has sent last leaves by itself.
assert orders.recv(4) == b"done", "the last answers"
os.eventfd_write(wakes, 1)
sleeper.join()
print("fine", flush=True)
