"""The other end of options.py: accepts at the ports it is given, and does what one letter tells it.

`e` answers after 100 ms, `f` begins to read the rest after 100 ms; anything else is waited out.
"""
import socket
import sys
import threading
import time


def serve(connection):
    with connection:
        try:
            while letter := connection.recv(1):
                if letter == b"e":
                    time.sleep(0.1)
                    connection.sendall(b"e")
                elif letter == b"f":
                    time.sleep(0.1)
                    while connection.recv(1 << 20):
                        pass
        except OSError:
            pass


def listen(port):
    listener = socket.create_server(("", port), backlog=256)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


for port in sys.argv[1:]:
    threading.Thread(target=listen, args=(int(port),), daemon=True).start()
time.sleep(60)
