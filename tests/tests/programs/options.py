"""What a program sees of the options that it runs with: `options.py PEER CASE …` prints one line."""
import errno
import os
import resource
import select
import socket
import struct
import sys

peer, case, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
FIRST = 7001
IP_BIND_ADDRESS_NO_PORT = 24  # include/uapi/linux/in.h


def connection(port=FIRST, source=None):
    made = socket.socket()
    # Ends with RST: nothing is left to deliver when the process exits.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if source:
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((source, 0))
    made.connect((peer, port))
    return made


def wait_in(call):
    """Waits 100 ms for the peer in one call."""
    made = connection()
    made.sendall(b"e")
    if call == "epoll":
        with select.epoll() as epoll:
            epoll.register(made, select.EPOLLIN)
            assert epoll.poll(5)
    elif call == "poll":
        poll = select.poll()
        poll.register(made, select.POLLIN)
        assert poll.poll(5000)
    elif call == "select":
        assert select.select([made], [], [], 5)[0]
    assert made.recv(1) == b"e"
    made.close()


def fill():
    """Writes until the peer, which is asleep for 100 ms, must read before there is room."""
    made = connection()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    made.sendall(b"f" + b"-" * (16 << 20))
    made.close()


def accept():
    with socket.create_server(("", 7100)) as listener:
        print("ready", flush=True)
        made, _ = listener.accept()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.close()


def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("", 7200))
        receiver.setblocking(False)
        try:
            receiver.recv(1)
        except BlockingIOError:
            pass
        receiver.setblocking(True)
        print("ready", flush=True)
        receiver.recv(1)


def ports(count, peers, source=None):
    """The local ports of so many connections at a time, to so many ports of the peer."""
    made, seen = [], []
    for index in range(int(count)):
        try:
            made.append(connection(FIRST + index % int(peers), source))
            seen.append(made[-1].getsockname()[1])
        except OSError as error:
            seen.append(errno.errorcode[error.errno])
    print(*seen)
    for one in made:
        one.close()


def again():
    """Closes a connection first, and opens it once more."""
    seen = []
    for _ in range(2):
        made = socket.socket()
        try:
            made.connect((peer, FIRST))
            seen.append(made.getsockname()[1])
            made.shutdown(socket.SHUT_WR)
            assert made.recv(1) == b""
        except OSError as error:
            seen.append(errno.errorcode[error.errno])
        made.close()
    print(*seen)


if case == "wait":
    wait_in(arguments[0])
elif case == "fill":
    fill()
elif case == "accept":
    accept()
elif case == "datagram":
    datagram()
elif case == "ports":
    ports(*arguments)
elif case == "again":
    again()
elif case == "limits":
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
elif case == "environment":
    print(" ".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("EF_")))
elif case == "listen":
    listeners = [socket.create_server(("", int(port))) for port in arguments]
    poll = select.poll()
    for listener in listeners:
        poll.register(listener, select.POLLIN)
    # Who polls a listener joins it.
    poll.poll(0)
    print("ready", flush=True)
    held = []
    while True:
        for descriptor, _ in poll.poll():
            listener = next(one for one in listeners if one.fileno() == descriptor)
            held.append(listener.accept()[0])
            held[-1].sendall(b"hello")
