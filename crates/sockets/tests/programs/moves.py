"""One thread accepts and others serve, each in its own way: with EF_STACK_PER_THREAD=2 connections go to whoever serves them. Every byte is
compared by the peer, while connections change hands, threads poll them besides, the process forks, and some are handed over to the kernel or
closed on the way."""
import os
import random
import select
import socket
import sys
import threading
import time
import traceback

import ends

OWN, PEER, SEED = sys.argv[1], sys.argv[2], int(sys.argv[3])
PORT = 7800
CLIENTS = 24
print("seed", SEED, flush=True)
rng = random.Random(SEED)
failures = []

# What a client does: questions of many sizes, each answered by itself; some leave in the middle of an answer.
CLIENT = """
import random, threading
rng = random.Random({seed})
for turn in range({turns}):
    data = rng.randbytes(rng.choice([1, 10, 700, 1460, 9000, 90_000]))
    writer = threading.Thread(target=s.sendall, args=(data,))
    writer.start()
    try:
        got = take(len(data))
    except OSError as fault:
        tell(b"turn %d of %d bytes: %s" % (turn, len(data), repr(fault).encode()))
        raise SystemExit
    if got != data:
        tell(b"turn %d: %d of %d bytes, right up to %d" % (turn, len(got), len(data), next((at for at in range(len(got)) if got[at] != data[at]), len(got))))
        raise SystemExit
    writer.join()
if rng.random() < 0.2:
    s.sendall(bytes(50_000)); s.close()
else:
    s.shutdown(socket.SHUT_WR)
    try:
        assert s.recv(1) == b""
    except OSError as fault:
        tell(b"end: %s" % repr(fault).encode())
        raise SystemExit
tell(b"right")
"""


class Server(threading.Thread):
    """Serves what it is given, with a set of its own."""

    def __init__(self, events):
        super().__init__(daemon=True)
        self.events, self.served, self.ended = events, {}, False
        self.given, self.bell = [], os.eventfd(0)
        self.set = select.epoll()
        self.set.register(self.bell, select.EPOLLIN)
        self.start()

    def give(self, connection, waiting=b""):
        self.given.append((connection, waiting))
        os.eventfd_write(self.bell, 1)

    def run(self):
        try:
            while not self.ended or self.served:
                for number, _ in self.set.poll(1, 8):
                    if number == self.bell:
                        os.eventfd_read(number)
                        while self.given:
                            connection, waiting = self.given.pop()
                            self.served[connection.fileno()] = [connection, waiting]
                            self.set.register(connection, self.wanted(waiting))
                    else:
                        self.serve(number)
        except BaseException:
            traceback.print_exc()
            failures.append(SEED)

    def wanted(self, waiting):
        return self.events | select.EPOLLIN | (select.EPOLLOUT if waiting else 0)

    def serve(self, number):
        connection, waiting = self.served[number]
        try:
            while True:
                if waiting:
                    waiting = waiting[connection.send(waiting):]
                    continue
                waiting = connection.recv(rng.choice([100, 5000, 65536]))
                if not waiting:
                    return self.end(number)
                if rng.random() < 0.02:
                    # Another thread goes on with it.
                    self.set.unregister(number)
                    del self.served[number]
                    return rng.choice(servers).give(connection, waiting)
                if rng.random() < 0.003:
                    ends.hand_over(connection)
                if not self.events & select.EPOLLET and rng.random() < 0.5:
                    break
        except BlockingIOError:
            pass
        except ConnectionError:
            return self.end(number)
        self.served[number][1] = waiting
        self.set.modify(number, self.wanted(waiting))

    def end(self, number):
        self.set.unregister(number)
        self.served.pop(number)[0].close()


def looks():
    """Polls connections of others, and asks what they are, at any time."""
    while not done.is_set():
        for server in servers:
            for connection, _ in list(server.served.values()):
                try:
                    select.select([connection], [], [], 0)
                    connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except (OSError, ValueError):
                    pass
        time.sleep(0.002)


listener = ends.look(ends.bound(OWN, PORT, 64))
servers = [Server(events) for events in (0, select.EPOLLET, select.EPOLLONESHOT)]
done = threading.Event()
watcher = threading.Thread(target=looks, daemon=True)
watcher.start()
controls = []
for number in range(CLIENTS):
    program = CLIENT.format(seed=SEED * 100 + number, turns=40).strip().replace("\n\n", "\n")
    controls.append(ends.order(PEER, "connect", PORT, program))
    connection, _ = listener.accept()
    connection.setblocking(False)
    servers[number % len(servers)].give(connection)
    if number == CLIENTS // 2 and "MEETS_LATER" in os.environ:
        threading.Thread(target=ends.meet, args=(os.environ["MEETS"],), daemon=True).start()
    if number in (CLIENTS // 3, CLIENTS - 1):
        ends.reap(ends.child(lambda: None))
for control in controls:
    control.settimeout(60)
    told = b""
    while piece := control.recv(500):
        told += piece
    assert told == b"right", f"client {controls.index(control)}: {told}"
for server in servers:
    server.ended = True
    server.join(20)
    assert not server.is_alive() and not failures
done.set()
watcher.join()
print("done", flush=True)
