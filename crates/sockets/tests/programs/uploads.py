"""Requests of one end and answers of the other, checked byte by byte.

usage: uploads.py listen|connect sends|takes ADDRESS PORT COUNT REQUEST ANSWER SEED WAY [FIRST_PORT]

Who sends makes COUNT requests of REQUEST bytes and gets ANSWER bytes for each. At last each end says something more and closes.
WAY is how the one that takes reads: "blocking", "all" (each request by one call, with MSG_WAITALL) or "edge" (an epoll set with
EPOLLET). FIRST_PORT: as of transfer.py.
"""
import hashlib
import select
import socket
import sys

from ends import bound, look

ROLE, PART, ADDRESS, PORT, COUNT, REQUEST, ANSWER, SEED, WAY = sys.argv[1:10]
FIRST_PORT = int(sys.argv[10]) if len(sys.argv) > 10 else 0
COUNT, REQUEST, ANSWER = int(COUNT), int(REQUEST), int(ANSWER)
PIECE = 256 * 1024
LAST = b"the last of it" * 5000
BYE = b"bye" * 5000


def noise(name, length):
    # No multiple of a segment, so that a piece lost or repeated shows.
    period = hashlib.shake_256((SEED + name).encode()).digest(min(length, (1 << 20) + 13))
    return (period * (length // len(period) + 1))[:length]


def differs(got, expected):
    return next(place for place, (one, other) in enumerate(zip(got, expected)) if one != other)


def check(got, expected, what):
    assert len(got) == len(expected), f"seed {SEED}: {len(got)} bytes of {what} in place of {len(expected)}"
    assert got == expected, f"seed {SEED}: {what} differs after {differs(got, expected)}"


class Blocking:
    def __init__(self, connection):
        self.connection = connection

    def take(self, length):
        buffer = bytearray(length)
        done = 0
        while done < length:
            count = self.connection.recv_into(memoryview(buffer)[done : done + PIECE])
            if count == 0:
                break
            done += count
        return bytes(buffer[:done])

    def give(self, data):
        self.connection.sendall(data)


class All(Blocking):
    def take(self, length):
        return self.connection.recv(length, socket.MSG_WAITALL)


class Edge:
    def __init__(self, connection):
        connection.setblocking(False)
        self.connection = connection
        self.events = select.epoll()
        self.events.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)

    def until_done(self, step):
        """Waits only when the connection has said that it has nothing, or no room."""
        while True:
            try:
                if step():
                    return
            except BlockingIOError:
                assert self.events.poll(60), f"seed {SEED}: no edge"

    def take(self, length):
        got = bytearray()

        def step():
            piece = self.connection.recv(min(length - len(got), PIECE))
            got.extend(piece)
            return not piece or len(got) == length

        self.until_done(step)
        return bytes(got)

    def give(self, data):
        rest = [data]

        def step():
            rest[0] = rest[0][self.connection.send(rest[0]) :]
            return not rest[0]

        self.until_done(step)


def sends(connection):
    way = Blocking(connection)
    for number in range(COUNT):
        way.give(noise(f"request {number}", REQUEST))
        check(way.take(ANSWER), noise(f"answer {number}", ANSWER), f"answer {number}")
    way.give(LAST)
    connection.shutdown(socket.SHUT_WR)
    check(way.take(len(BYE)), BYE, "what comes at last")
    assert connection.recv(1) == b""


def takes(connection):
    way = {"blocking": Blocking, "all": All, "edge": Edge}[WAY](connection)
    for number in range(COUNT):
        check(way.take(REQUEST), noise(f"request {number}", REQUEST), f"request {number}")
        way.give(noise(f"answer {number}", ANSWER))
    check(way.take(len(LAST)), LAST, "what comes at last")
    assert way.take(1) == b""
    way.give(BYE)


if ROLE == "listen":
    server = look(bound(ADDRESS, int(PORT)))
    print("ready", flush=True)
    connection, _ = server.accept()
else:
    source = ("", FIRST_PORT) if FIRST_PORT else None
    connection = socket.create_connection((ADDRESS, int(PORT)), source_address=source)
connection.settimeout(60)
connection.setblocking(True)
(sends if PART == "sends" else takes)(connection)
connection.close()
print("done", flush=True)
