"""Sends a file to an echo server and compares what comes back, while it sends.

usage: echo.py ADDRESS FILE
"""

import socket
import sys
import threading

with open(sys.argv[2], "rb") as file:
    data = file.read()
connection = socket.create_connection((sys.argv[1], 7007))


def send():
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


threading.Thread(target=send).start()
echoed = b""
while piece := connection.recv(1 << 16):
    echoed += piece
assert echoed == data, f"{len(echoed)} of {len(data)} bytes came back"
