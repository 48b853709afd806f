"""The other end, over the kernel: connects, or accepts, and does what it is told in Python.

usage: peer.py ADDRESS

Port 7000 takes orders, one connection each: "connect PORT\n" or "listen PORT\n", then a program that is run with the
connected socket as `s`, ended by an empty line. "listen" answers "ok\n" when it listens.
"""
import socket
import struct
import sys
import threading
import time


def carry_out(control):
    orders = control.makefile("rw")
    verb, port = orders.readline().split()
    program = "".join(iter(orders.readline, "\n"))
    if verb == "connect":
        s = socket.create_connection((control.getpeername()[0], int(port)))
    else:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((sys.argv[1], int(port)))
        listener.listen()
        orders.write("ok\n")
        orders.flush()
        s, _ = listener.accept()
        listener.close()

    def reset():
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    def take(count):
        data = b""
        while len(data) < count and (piece := s.recv(count - len(data))):
            data += piece
        return data

    exec(program, {"s": s, "time": time, "socket": socket, "reset": reset, "take": take, "threading": threading})
    s.close()
    control.close()


server = socket.create_server((sys.argv[1], 7000), backlog=100)
print("ready", flush=True)
while True:
    control, _ = server.accept()
    threading.Thread(target=carry_out, args=(control,), daemon=True).start()
