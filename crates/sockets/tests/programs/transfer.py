"""Streams that are checked byte by byte, and handed over to the kernel in the middle.

usage: transfer.py listen|connect ADDRESS PORT COUNT SIZE SEED DIRECTION HANDOVERS [FIRST_PORT]

One end listens, the other connects, COUNT times. DIRECTION says who sends SIZE bytes: "up" the one that connects, "down"
the one that listens, "both". HANDOVERS: "yes" to hand each connection over at a random place of it, "no" not to.
FIRST_PORT: each connection is made from a port of its own, from this one on, so that nothing of an earlier one meets its SYN.
"""
import hashlib
import random
import socket
import sys
import threading

from ends import bound, hand_over, look

ROLE, ADDRESS, PORT, COUNT, SIZE, SEED, DIRECTION, HANDOVERS = sys.argv[1:9]
FIRST_PORT = int(sys.argv[9]) if len(sys.argv) > 9 else None
COUNT, SIZE = int(COUNT), int(SIZE)
# No multiple of a segment, so that a piece lost or repeated shows.
PERIOD = (1 << 20) + 13
CHUNK = 256 * 1024
PATTERN = hashlib.shake_256(SEED.encode()).digest(PERIOD)
PATTERN = PATTERN + PATTERN[:CHUNK]


def expected(offset, length):
    offset %= PERIOD
    return memoryview(PATTERN)[offset : offset + length]


def send(connection, places):
    done = 0
    while done < SIZE:
        if places and done >= places[0]:
            hand_over(connection)
            places.clear()
        done += connection.send(expected(done, min(CHUNK, SIZE - done)))
    if places:
        hand_over(connection)
    connection.shutdown(socket.SHUT_WR)


def receive(connection, places):
    done = 0
    buffer = bytearray(CHUNK)
    while count := connection.recv_into(buffer):
        assert memoryview(buffer)[:count] == expected(done, count), f"seed {SEED}: differs after {done}"
        done += count
        if places and done >= places[0]:
            hand_over(connection)
            places.clear()
    if places:
        # Between the peer's FIN and ours.
        hand_over(connection)
    assert done == SIZE, f"seed {SEED}: {done} bytes instead of {SIZE}"


def transfer(connection, chance):
    sends = DIRECTION == "both" or (DIRECTION == "up") == (ROLE == "connect")
    receives = DIRECTION == "both" or not sends
    places = [chance.randrange(SIZE + SIZE // 10)] if HANDOVERS == "yes" else []
    connection.settimeout(60)
    connection.setblocking(True)
    failures = []

    def background():
        try:
            receive(connection, [])
        except BaseException as failure:
            failures.append(failure)

    if sends and receives:
        other = threading.Thread(target=background)
        other.start()
        send(connection, places)
        other.join()
    elif sends:
        send(connection, places)
        assert connection.recv(1) == b"", "the peer has nothing to say"
    else:
        receive(connection, places)
    if failures:
        raise failures[0]
    connection.close()


chance = random.Random(SEED + ROLE)
if ROLE == "listen":
    server = look(bound(ADDRESS, int(PORT)))
    print("ready", flush=True)
for index in range(COUNT):
    if ROLE == "listen":
        connection, _ = server.accept()
    else:
        source = ("", FIRST_PORT + index) if FIRST_PORT else None
        connection = socket.create_connection((ADDRESS, int(PORT)), source_address=source)
    transfer(connection, chance)
print("done", flush=True)
