"""Answers whatever a connection says with a megabyte, for thousands of them at once.

usage: holds.py ADDRESS PORT
"""
import select
import socket
import sys

ANSWER = bytes(range(256)) * 4096
server = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=4096)
server.setblocking(False)
waiting = select.epoll()
waiting.register(server, select.EPOLLIN)
connections, left = {}, {}


def go_on(number):
    """Sends what there is room for."""
    connection = connections[number]
    while left[number]:
        try:
            left[number] = left[number][connection.send(left[number]):]
        except BlockingIOError:
            return waiting.modify(number, select.EPOLLOUT)
    waiting.unregister(number)
    del connections[number], left[number]
    connection.close()


while True:
    for number, events in waiting.poll():
        if number == server.fileno():
            try:
                connection, _ = server.accept()
            except BlockingIOError:
                continue
            connection.setblocking(False)
            connections[connection.fileno()] = connection
            waiting.register(connection, select.EPOLLIN)
        elif number not in left:
            try:
                connections[number].recv(1000)
            except OSError:
                continue
            left[number] = memoryview(ANSWER)
            go_on(number)
        else:
            try:
                go_on(number)
            except OSError:
                waiting.unregister(number)
                connections.pop(number).close()
                del left[number]
