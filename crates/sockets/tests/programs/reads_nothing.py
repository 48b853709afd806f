"""Connections that ask and never read, until its input ends.

usage: reads_nothing.py ADDRESS PORT COUNT
"""
import socket
import sys

connections = []
for _ in range(int(sys.argv[3])):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((sys.argv[1], int(sys.argv[2])))
    connection.sendall(b"?")
    connections.append(connection)
print("ready", flush=True)
sys.stdin.read()
