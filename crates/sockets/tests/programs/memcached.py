"""A client of memcached, over the kernel, that keeps many connections busy at once, or asks 50 times a second, now at one and now at another.
Every answer is compared.

memcached.py ADDRESS busy|calm SEED SECONDS"""
import os
import random
import socket
import sys
import time

ADDRESS, WAY, SEED, SECONDS = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
PROCESSES, CONNECTIONS = (3, 16) if WAY == "busy" else (1, 8)
SIZES = [0, 1, 60, 60, 60, 700, 1460, 9000]
print("seed", SEED, flush=True)


class Client:
    """One connection. What it has stored it knows."""

    def __init__(self, name, rng):
        self.name, self.rng, self.values = name, rng, {}
        self.socket = socket.create_connection((ADDRESS, 11211), timeout=30)
        self.stream = self.socket.makefile("rb")

    def ask(self):
        """A value is stored, and one is asked for, in one request."""
        key, self.asked = (b"%s.%d" % (self.name, self.rng.randrange(8)) for _ in range(2))
        value = self.rng.randbytes(self.rng.choice(SIZES))
        self.values[key] = value
        self.socket.sendall(b"set %s 0 0 %d\r\n%s\r\nget %s\r\n" % (key, len(value), value, self.asked))

    def hear(self):
        line = self.stream.readline()
        assert line == b"STORED\r\n", line
        if (value := self.values.get(self.asked)) is not None:
            line = self.stream.readline()
            assert line == b"VALUE %s 0 %d\r\n" % (self.asked, len(value)), line
            assert self.stream.read(len(value) + 2) == value + b"\r\n", "another value"
        line = self.stream.readline()
        assert line == b"END\r\n", line


def work(number):
    rng = random.Random(SEED * 100 + number)
    # Each in a thread of its own there, which takes its turn.
    clients = [Client(b"%d.%d.%d" % (SEED, number, which), rng) for which in range(CONNECTIONS)]
    end, turns = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        # All of their threads have something to do at once, or one of them alone, and not often.
        some = clients if WAY == "busy" else [rng.choice(clients)]
        if WAY == "calm":
            time.sleep(0.02)
        for client in some:
            client.ask()
        for client in some:
            client.hear()
        turns += 1
    # Those that have moved are what they were.
    for client in clients:
        client.ask()
        client.hear()
        client.socket.shutdown(socket.SHUT_WR)
        assert client.stream.read() == b""
    print(turns * len(some), "right", flush=True)


children = []
for number in range(PROCESSES):
    child = os.fork()
    if child == 0:
        try:
            work(number)
        except BaseException as fault:
            print(f"process {number}: {fault!r}", flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
