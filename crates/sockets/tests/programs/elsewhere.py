"""A program that leaves its connections to themselves for a while.

usage: elsewhere.py WHAT OWN PEER PORT
"""
import array
import fcntl
import os
import select
import socket
import sys
import termios
import time

what, own, peer, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
#: How long it is elsewhere, in seconds.
AWAY = 3


def compute():
    """Makes no call for a while."""
    end = time.monotonic() + AWAY
    while time.monotonic() < end:
        pass


def reached(connection):
    """Says that it is ready, and lets the other end begin."""
    connection.sendall(b"!")


if what == "sends":
    connection = socket.create_connection((peer, port))
    connection.sendall(bytes(300_000))
    time.sleep(AWAY)
elif what == "closes":
    connection = socket.create_connection((peer, port))
    connection.sendall(bytes(1_000_000))
    connection.close()
    time.sleep(AWAY)
elif what == "computes":
    listener = socket.create_server((own, port))
    # It has been served before, so that the stack is there.
    listener.accept()[0].close()
    compute()
    for _ in range(2):
        connection = listener.accept()[0]
        connection.sendall(b"late")
        connection.close()
elif what in ("loops", "loops-late"):
    # As above, by an event loop.
    listener = socket.create_server((own, port))
    events = select.epoll()
    events.register(listener, select.EPOLLIN)
    events.poll()
    listener.accept()[0].close()
    if what == "loops-late":
        print("in time:", len(os.listdir("/proc/self/task")), file=sys.stderr)
        time.sleep(0.05)
        events.poll(0)
        print("late:", len(os.listdir("/proc/self/task")), file=sys.stderr)
    compute()
    for _ in range(2):
        events.poll()
        connection = listener.accept()[0]
        connection.sendall(b"late")
        connection.close()
elif what == "refuses":
    listener = socket.create_server((own, port))
    listener.accept()[0].close()
    compute()
    # Those that nobody accepted are reset.
    listener.close()
    time.sleep(AWAY)
elif what == "connects":
    connection = socket.socket()
    connection.setblocking(False)
    try:
        connection.connect((peer, port))
    except BlockingIOError:
        pass
    time.sleep(0.3)
    # No poll: by now it is connected.
    connection.send(b"hello")
    time.sleep(AWAY)
elif what == "looks":
    connection = socket.create_connection((peer, port))
    reached(connection)
    time.sleep(AWAY)
    waiting = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, waiting)
    # What is not read would reset the connection.
    connection.recv(waiting[0], socket.MSG_WAITALL)
    connection.sendall(b"%d" % waiting[0])
elif what == "passive":
    # The port of the next connection is told before anybody waits for it, as by FTP.
    control = socket.create_server((own, port))
    # The first one may be the kernel's.
    control.accept()[0].sendall(b"!")
    connection = control.accept()[0]
    listener = socket.create_server((own, 0))
    connection.sendall(listener.getsockname()[1].to_bytes(2, "big"))
    time.sleep(AWAY)
    data = listener.accept()[0]
    data.sendall(data.recv(100))
elif what == "child":
    # A child of a fork has no thread of its parent's.
    first = socket.create_connection((peer, port))
    first.sendall(b"1")
    child = os.fork()
    if child == 0:
        second = socket.create_connection((peer, port))
        second.sendall(bytes(300_000))
        time.sleep(AWAY)
        os._exit(0)
    first.close()
    os.waitpid(child, 0)
elif what == "forks":
    # The library's own thread has taken the program's place: a child has none to call back, whatever its descriptor 0 is.
    reader, writer = os.pipe()
    os.dup2(writer, 0)
    connection = socket.create_connection((peer, port))
    connection.sendall(b"1")
    compute()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    os.set_blocking(reader, False)
    try:
        raise SystemExit(f"somebody wrote {os.read(reader, 64)} to descriptor 0")
    except BlockingIOError:
        pass
