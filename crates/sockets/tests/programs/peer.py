"""The other end, over the kernel: connects, or accepts, and does what it is told in Python.

usage: peer.py ADDRESS

At the address "::" it takes orders, and connections, of both families.
Port 7000 takes orders, one connection each: "connect PORT\n" or "listen PORT\n", then a program that is run with the
connected socket as `s`, ended by an empty line. "listen" answers "ok\n" when it listens.
"""
import socket
import struct
import sys
import threading
import time

FAMILY = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET


def serve(control):
    """The order's connection ends with what it asked for, however that ends."""
    try:
        carry_out(control)
    finally:
        control.shutdown(socket.SHUT_RDWR)
        control.close()


def carry_out(control):
    orders = control.makefile("rw")
    verb, port = orders.readline().split()
    program = "".join(iter(orders.readline, "\n"))
    if verb == "connect":
        address = control.getpeername()
        s = socket.socket(FAMILY)
        s.connect((address[0], int(port)) + address[2:])
    else:
        listener = socket.socket(FAMILY)
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

    def hold():
        """Until whoever gave the order lets go."""
        control.recv(1)

    def tell(data):
        """Whoever gave the order."""
        control.sendall(data)

    exec(program, {"s": s, "hold": hold, "tell": tell, "time": time, "socket": socket, "reset": reset, "take": take, "threading": threading})
    s.close()


server = socket.create_server((sys.argv[1], 7000), family=FAMILY, backlog=100, dualstack_ipv6=sys.argv[1] == "::")
print("ready", flush=True)
while True:
    control, _ = server.accept()
    threading.Thread(target=serve, args=(control,), daemon=True).start()
