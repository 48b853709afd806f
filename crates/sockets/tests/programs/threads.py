"""Threads that make sockets, and that use each other's: the same over the kernel, over one stack for all of them, and over a
stack for each.

usage: threads.py OWN-ADDRESS PEER-ADDRESS [TEST...]
"""
import errno
import os
import queue
import random
import select
import socket
import sys
import threading
import time
import traceback

import ends
from ends import child, reap, test

OWN, PEER = sys.argv[1:3]
next_port = [7700]
port_lock = threading.Lock()
socket.socket = ends.Connection


def fresh_port():
    with port_lock:
        next_port[0] += 1
        return next_port[0]


def order(verb, port, program):
    return ends.order(PEER, verb, port, program)


def listener(port=None):
    """One of perhaps several at a port."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind((OWN, port or fresh_port()))
    server.listen(64)
    return ends.look(server)


def connected(program):
    port = fresh_port()
    control = order("listen", port, program)
    connection = socket.create_connection((PEER, port))
    connection.control = control
    return connection


def accepted(program):
    server = listener()
    control = order("connect", server.getsockname()[1], program)
    connection, _ = server.accept()
    server.close()
    connection.control = control
    return connection


def take(connection, count):
    data = b""
    while len(data) < count and (piece := connection.recv(count - len(data))):
        data += piece
    return data


def finished(connection):
    """The peer has done what it was told."""
    assert connection.control.recv(1) == b""
    connection.control.close()


class Worker(threading.Thread):
    """A thread whose result, or failure, whoever waits for it gets."""

    def __init__(self, work, *arguments):
        super().__init__(daemon=True)
        self.work, self.arguments, self.failure, self.result = work, arguments, None, None
        self.start()

    def run(self):
        try:
            self.result = self.work(*self.arguments)
        except BaseException as failure:
            traceback.print_exc()
            self.failure = failure

    def done(self, timeout=40):
        self.join(timeout)
        assert not self.is_alive(), f"{self.work} goes on"
        if self.failure:
            raise self.failure
        return self.result


def elsewhere(work, *arguments):
    """Does it in a thread that ends afterwards."""
    return Worker(work, *arguments).done()


ECHO = "while data := s.recv(65536): s.sendall(data)"


def echo(connection, seed, size=100_000):
    """Sends and gets back."""
    data = random.Random(seed).randbytes(size)
    writer = Worker(connection.sendall, data)
    assert take(connection, size) == data
    writer.done()


@test
def listeners_and_loops_of_their_own():
    threads, connections = 4, 60
    port = fresh_port()
    ready, stop, served = threading.Barrier(threads + 1), threading.Event(), [0] * threads

    def loop(index):
        server = listener(port)
        epoll = select.epoll()
        epoll.register(server, select.EPOLLIN)
        open_ones = {}
        ready.wait()
        while not stop.is_set() or open_ones:
            for number, _ in epoll.poll(0.05):
                if number == server.fileno():
                    connection, _ = server.accept()
                    connection.setblocking(False)
                    epoll.register(connection, select.EPOLLIN)
                    open_ones[connection.fileno()] = connection
                    served[index] += 1
                elif data := open_ones[number].recv(4096):
                    open_ones[number].sendall(data.upper())
                else:
                    open_ones.pop(number).close()
        server.close()

    workers = [Worker(loop, index) for index in range(threads)]
    ready.wait()
    for _ in range(3):
        controls = [order("connect", port, "for _ in range(20):\n s.sendall(b'question'); assert take(8) == b'QUESTION'\n"
                          "control_ok = s.shutdown(1); assert s.recv(1) == b''") for _ in range(connections // 3)]
        for control in controls:
            assert control.recv(1) == b""
            control.close()
    stop.set()
    for worker in workers:
        worker.done()
    assert sum(served) == connections, served
    assert sum(count > 0 for count in served) >= 3, served


@test
def active_opens():
    def work(seed):
        for turn in range(4):
            connection = connected(ECHO)
            echo(connection, seed * 10 + turn)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
            finished(connection)
            connection.close()

    for worker in [Worker(work, seed) for seed in range(6)]:
        worker.done()


@test
def connections_are_given_to_others():
    server = elsewhere(listener)
    port, given = server.getsockname()[1], queue.Queue()

    def accepts():
        for _ in range(12):
            given.put(server.accept()[0])
        for _ in range(3):
            given.put(None)

    def serves(own_too):
        own = connected(ECHO) if own_too else None
        epoll = select.epoll()
        count = 0
        while connection := given.get():
            count += 1
            # By calls that wait, and by a set.
            assert take(connection, 4) == b"ping"
            connection.sendall(b"pong")
            epoll.register(connection, select.EPOLLIN)
            assert epoll.poll(10) == [(connection.fileno(), select.EPOLLIN)]
            assert connection.recv(9) == b"again"
            connection.close()
            if own:
                own.sendall(b"x")
                assert own.recv(9) == b"x"
        return count

    workers = [Worker(accepts), Worker(serves, False), Worker(serves, True), Worker(serves, True)]
    program = "s.sendall(b'ping'); assert take(4) == b'pong'; time.sleep(0.02); s.sendall(b'again'); assert s.recv(1) == b''"
    controls = [order("connect", port, program) for _ in range(12)]
    assert sum(worker.done() or 0 for worker in workers) == 12
    for control in controls:
        assert control.recv(1) == b""
    server.close()


PROMPT = "assert take(1) == b'!'; time.sleep(0.05); s.sendall(b'data'); assert take(1) == b'?'"


@test
def one_set_watches_several_stacks():
    epoll = select.epoll()
    made = [elsewhere(make, PROMPT) for make in (connected, accepted) * 4] + [connected(PROMPT)]
    pipe = os.pipe()
    epoll.register(pipe[0], select.EPOLLIN)
    for connection in made:
        epoll.register(connection, select.EPOLLIN)
    assert epoll.poll(0.05) == []
    for count in 1, 3, len(made) - 4:
        batch, made = made[:count], made[count:]
        for connection in batch:
            connection.send(b"!")
        seen = set()
        while len(seen) < count:
            found = epoll.poll(5, 2)
            assert found, (count, seen)
            for number, events in found:
                connection = next(one for one in batch if one.fileno() == number)
                assert events == select.EPOLLIN and connection.recv(9) == b"data"
                seen.add(number)
        assert epoll.poll(0) == []
        os.write(pipe[1], b"x")
        assert epoll.poll(1) == [(pipe[0], select.EPOLLIN)]
        os.read(pipe[0], 1)
        for connection in batch:
            connection.send(b"?")
            epoll.unregister(connection)
            finished(connection)
            connection.close()
    epoll.close()


@test
def edges_and_single_shots_of_several_stacks():
    for extra in select.EPOLLET, select.EPOLLONESHOT:
        epoll = select.epoll()
        made = [elsewhere(connected, PROMPT) for _ in range(3)]
        for connection in made:
            epoll.register(connection, select.EPOLLIN | extra)
            connection.send(b"!")
        seen = []
        while len(seen) < 3:
            found = epoll.poll(5)
            assert found
            seen += found
        assert sorted(number for number, _ in seen) == sorted(one.fileno() for one in made), seen
        assert epoll.poll(0.1) == []
        for connection in made:
            assert connection.recv(9) == b"data"
            connection.send(b"?")
            connection.close()
        epoll.close()


@test
def a_set_in_a_set():
    inner, outer = select.epoll(), select.epoll()
    outer.register(inner, select.EPOLLIN)
    first = elsewhere(connected, PROMPT)
    inner.register(first, select.EPOLLIN)
    waiter = Worker(outer.poll, 5)
    time.sleep(0.1)
    # One that joins while somebody waits.
    second = elsewhere(connected, PROMPT)
    inner.register(second, select.EPOLLIN)
    time.sleep(0.1)
    second.send(b"!")
    assert waiter.done() == [(inner.fileno(), select.EPOLLIN)]
    assert second.recv(9) == b"data"
    first.send(b"!")
    poll = select.poll()
    poll.register(inner, select.POLLIN)
    assert poll.poll(5000) == [(inner.fileno(), select.POLLIN)]
    assert inner.poll(1) == [(first.fileno(), select.EPOLLIN)]
    for connection in first, second:
        connection.send(b"?")
        connection.close()
    time.sleep(0.15)
    assert outer.poll(0.1) == []
    # A set that is polled while it has nothing, and then something of a third thread's.
    empty = select.epoll()
    poll = select.poll()
    poll.register(empty, select.POLLIN)
    waiter = Worker(poll.poll, 5000)
    time.sleep(0.1)

    def adds():
        third = connected(PROMPT)
        empty.register(third, select.EPOLLIN)
        third.send(b"!")
        return third

    third = elsewhere(adds)
    assert waiter.done() == [(empty.fileno(), select.POLLIN)]
    third.close()
    for closed in outer, inner, empty:
        closed.close()


@test
def added_while_others_wait():
    for make in connected, accepted:
        epoll = select.epoll()
        waiters = [Worker(epoll.poll, 5)]
        time.sleep(0.1)

        def adds():
            connection = make(PROMPT)
            epoll.register(connection, select.EPOLLIN | select.EPOLLONESHOT)
            return connection

        connection = elsewhere(adds)
        time.sleep(0.1)
        connection.send(b"!")
        assert [worker.done() for worker in waiters] == [[(connection.fileno(), select.EPOLLIN)]]
        connection.send(b"?")
        # While it is opened.
        port = fresh_port()
        control = order("listen", port, PROMPT)
        waiter = Worker(epoll.poll, 5)
        time.sleep(0.1)

        def opens():
            opening = socket.socket()
            opening.setblocking(False)
            assert opening.connect_ex((PEER, port)) == errno.EINPROGRESS
            epoll.register(opening, select.EPOLLOUT | select.EPOLLONESHOT)
            return opening

        opening = elsewhere(opens)
        assert waiter.done() == [(opening.fileno(), select.EPOLLOUT)]
        assert opening.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        opening.close()
        connection.close()
        control.close()
        epoll.close()


@test
def poll_and_select_see_several_stacks():
    made = [elsewhere(make, PROMPT) for make in (connected, accepted, connected)] + [connected(PROMPT)]
    pipe = os.pipe()
    poll = select.poll()
    for one in made:
        poll.register(one, select.POLLIN)
    poll.register(pipe[0], select.POLLIN)
    assert poll.poll(50) == []
    assert select.select([*made, pipe[0]], [], [], 0.05) == ([], [], [])
    assert len(select.select([], made, [], 1)[1]) == len(made)
    for index, connection in enumerate(made):
        connection.send(b"!")
        if index % 2:
            assert poll.poll(5000) == [(connection.fileno(), select.POLLIN)]
        else:
            assert select.select([*made, pipe[0]], [], [], 5)[0] == [connection]
        assert connection.recv(9) == b"data"
    waiter = Worker(poll.poll, 5000)
    time.sleep(0.1)
    os.write(pipe[1], b"x")
    assert waiter.done() == [(pipe[0], select.POLLIN)]
    for connection in made:
        connection.send(b"?")
        finished(connection)
        connection.close()
    servers = [elsewhere(listener) for _ in range(3)]
    waiter = Worker(lambda: select.select(servers, [], [], 5)[0])
    time.sleep(0.1)
    control = order("connect", servers[1].getsockname()[1], "assert s.recv(1) == b''")
    assert waiter.done() == [servers[1]]
    servers[1].accept()[0].close()
    assert control.recv(1) == b""


@test
def datagrams_of_several_stacks():
    peer_port, ready = fresh_port(), "u = socket.socket(2, 2); u.bind(('%s', %d)); s.sendall(b'r')\n"
    program = ready % (PEER, peer_port) + "while True:\n data, whence = u.recvfrom(9999)\n u.sendto(data.upper(), whence)"
    control = connected(program)
    assert control.recv(1) == b"r"

    def opens():
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own.connect((PEER, peer_port))
        own.send(b"first")
        own.settimeout(10)
        assert own.recv(99) == b"FIRST"
        return own

    made = [elsewhere(opens) for _ in range(4)]
    epoll = select.epoll()
    for one in made:
        epoll.register(one, select.EPOLLIN)
    for one in made:
        one.send(b"second")
        assert epoll.poll(5) == [(one.fileno(), select.EPOLLIN)]
        assert elsewhere(one.recv, 99) == b"SECOND"
    for one in made:
        one.close()


@test
def calls_wait_on_what_others_made():
    made = elsewhere(connected, PROMPT)
    reader = Worker(made.recv, 9)
    time.sleep(0.1)
    elsewhere(made.send, b"!")
    assert reader.done() == b"data"
    # A writer that waits for room.
    slow = elsewhere(connected, "time.sleep(0.3); assert len(take(3000000)) == 3000000; s.sendall(b'all')")
    writer = Worker(slow.sendall, bytes(3_000_000))
    reader = Worker(slow.recv, 9)
    writer.done()
    assert reader.done() == b"all"
    server = elsewhere(listener)
    waiter = Worker(server.accept)
    time.sleep(0.1)
    control = order("connect", server.getsockname()[1], "s.sendall(b'hello')")
    connection, _ = waiter.done()
    assert connection.recv(9) == b"hello"
    # Closed by another one than who made it, with SO_LINGER.
    lingering = elsewhere(connected, "assert len(take(500000)) == 500000; assert s.recv(1) == b''")
    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\5\0\0\0")
    lingering.sendall(bytes(500_000))
    control = lingering.control
    elsewhere(lingering.close)
    assert control.recv(1) == b""
    made.close()


@test
def one_that_computes_holds_nobody_up():
    """A thread takes what has come, for others too, and does not come back for a while."""
    def waits_in_epoll(connection):
        with select.epoll() as epoll:
            epoll.register(connection, select.EPOLLIN)
            assert epoll.poll(5)
            return connection.recv(9), time.monotonic()

    def waits_in_poll(connection):
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        assert poll.poll(5000)
        return connection.recv(9), time.monotonic()

    def waits_in_recv(connection):
        return connection.recv(9), time.monotonic()

    def computes(connection):
        connection.setblocking(False)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                assert connection.recv(9) == b"first"
                break
            except BlockingIOError:
                pass
        until = time.monotonic() + 1.5
        time.sleep(1.5)
        return until

    for waits in waits_in_epoll, waits_in_poll, waits_in_recv:
        begun = elsewhere(connected, "take(1); time.sleep(0.2); s.sendall(b'first'); take(1)")
        other = elsewhere(connected, "take(1); time.sleep(0.7); s.sendall(b'second'); take(1)")
        waiter = Worker(waits, other)
        time.sleep(0.1)
        other.send(b"!")
        begun.send(b"!")
        end = computes(begun)
        data, came = waiter.done()
        assert data == b"second" and came < end - 0.3, (waits.__name__, end - came)
        begun.close()
        other.close()


@test
def many_wait_and_few_wake():
    """Threads that each wait for a connection of their own sleep through what comes for the others."""
    connections = [connected("while take(1): s.sendall(b'?')") for _ in range(24)]
    answers = queue.Queue()

    def waits(connection):
        while answer := connection.recv(1):
            answers.put(answer)

    waiters = [Worker(waits, connection) for connection in connections]
    for _ in range(20):
        for connection in connections:
            connection.send(b"!")
            assert answers.get(timeout=5) == b"?"
    for connection in connections:
        connection.shutdown(socket.SHUT_RDWR)
    for waiter in waiters:
        waiter.done()


def voluntary_switches(thread):
    with open(f"/proc/self/task/{thread}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))


@test
def one_accepts_and_another_serves():
    """Who accepts sleeps through what comes for who serves, both on one processor; and neither holds the other up."""
    processor = min(os.sched_getaffinity(0))
    server = elsewhere(listener)
    port = server.getsockname()[1]
    set_of_all, open_ones, accepted_at, ended = select.epoll(), {}, [], threading.Event()
    accepting, served = [], [0]

    def accepts():
        os.sched_setaffinity(0, {processor})
        accepting.append(threading.get_native_id())
        with select.epoll() as epoll:
            epoll.register(server, select.EPOLLIN)
            while not ended.is_set():
                assert epoll.poll(20)
                connection, _ = server.accept()
                accepted_at.append(time.monotonic())
                open_ones[connection.fileno()] = connection
                set_of_all.register(connection, select.EPOLLIN)

    def serves():
        os.sched_setaffinity(0, {processor})
        computed_until = None
        while computed_until is None or open_ones:
            for number, _ in set_of_all.poll(20):
                data = open_ones[number].recv(8)
                if data == b"compute!":
                    time.sleep(1.5)
                    computed_until = time.monotonic()
                elif data:
                    open_ones[number].sendall(data.upper())
                    served[0] += 1
                else:
                    connection = open_ones.pop(number)
                    set_of_all.unregister(connection)
                    connection.close()
        return computed_until

    threads = [Worker(accepts), Worker(serves)]
    clients, requests = 8, 300
    control = [order("connect", port, f"time.sleep(0.5)\nfor _ in range({requests}):\n"
                     " s.sendall(b'question'); assert take(8) == b'QUESTION'\ntime.sleep(4)") for _ in range(clients)]
    while len(accepted_at) < clients:
        time.sleep(0.01)
    before, begun = voluntary_switches(accepting[0]), time.monotonic()
    # Without a call that could look at what has come.
    while served[0] < clients * requests:
        time.sleep(0.01)
    woken, seconds = voluntary_switches(accepting[0]) - before, time.monotonic() - begun
    if os.environ.get("EF_STACK_PER_THREAD") not in ("1", "2", "3"):
        # Once in a millisecond it looks whether anybody else does.
        assert woken < 100 + 1500 * seconds, (woken, seconds)
    # It is at once as it was when the other one computes, and when that has ended.
    control.append(order("connect", port, "time.sleep(0.5); s.sendall(b'compute!'); time.sleep(0.5)\n"
                         f"c = socket.create_connection(({OWN!r}, {port})); time.sleep(4)"))
    time.sleep(1.5)
    computed_until = threads[1].done()
    assert len(accepted_at) == clients + 2 and accepted_at[-1] < computed_until - 0.5, (accepted_at, computed_until)
    ended.set()
    control.append(order("connect", port, "assert s.recv(1) == b''"))
    threads[0].done()
    open_ones.popitem()[1].close()
    for one in control:
        assert one.recv(1) == b""
        one.close()
    server.close()
    set_of_all.close()


@test
def what_a_thread_leaves_is_delivered():
    if "LD_PRELOAD" in os.environ and os.environ["EF_STACK_PER_THREAD"] == "0":
        # A process that waits in the kernel alone moves nothing.
        return

    def leaves():
        connection = connected("time.sleep(0.5); assert len(take(400000)) == 400000; assert s.recv(1) == b''")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
        connection.setblocking(False)
        sent = 0
        while sent < 400_000:
            try:
                sent += connection.send(bytes(400_000 - sent))
            except BlockingIOError:
                time.sleep(0.01)
        connection.close()
        return connection.control

    control = elsewhere(leaves)
    # Nobody waits for any socket of that thread's: the control connection is the kernel's.
    number = ends.hand_over(control) or control.fileno()
    assert os.read(number, 1) == b""


@test
def more_threads_than_stacks():
    threads = 40
    barrier = threading.Barrier(threads)

    def work(seed):
        connection = connected(ECHO)
        barrier.wait(60)
        echo(connection, seed, 20_000)
        barrier.wait(60)
        return connection

    made = [worker.done(90) for worker in [Worker(work, seed) for seed in range(threads)]]
    epoll = select.epoll()
    for connection in made:
        epoll.register(connection, select.EPOLLIN)
        connection.sendall(b"x")
    seen = set()
    while len(seen) < threads:
        found = epoll.poll(5, 7)
        assert found
        for number, _ in found:
            assert os.read(number, 9) == b"x"
            seen.add(number)
    for connection in made:
        connection.close()
    for seed in range(80):
        elsewhere(lambda: echo(connected(ECHO), seed, 1000))


@test
def everybody_uses_everything():
    made = [elsewhere(make, ECHO) for make in (connected, accepted) * 5]
    locks = [threading.Lock() for _ in made]

    def work(seed):
        choice = random.Random(seed)
        for turn in range(60):
            index = choice.randrange(len(made))
            with locks[index]:
                data = choice.randbytes(choice.randrange(1, 20_000))
                made[index].sendall(data)
                if choice.random() < 0.5:
                    poll = select.poll()
                    poll.register(made[index], select.POLLIN)
                    assert poll.poll(5000)
                duplicate = made[index].dup()
                assert take(duplicate, len(data)) == data
                duplicate.close()

    for worker in [Worker(work, seed) for seed in range(6)]:
        worker.done(60)
    for connection in made:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
        finished(connection)
        connection.close()


@test
def a_fork_with_connections_of_several_stacks():
    made = [elsewhere(make, ECHO) for make in (connected, accepted) * 2] + [connected(ECHO)]
    epoll = select.epoll()
    for connection in made:
        epoll.register(connection, select.EPOLLIN)

    def uses():
        for index, connection in enumerate(made):
            echo(connection, index, 5000)
        # New ones, of new threads.
        for index in range(2):
            elsewhere(lambda: echo(connected(ECHO), index, 5000))
        made[0].sendall(b"x")
        assert epoll.poll(5) == [(made[0].fileno(), select.EPOLLIN)]
        made[0].recv(1)

    def forks():
        own = connected(ECHO)
        pid = child(uses)
        echo(own, 7, 5000)
        reap(pid)
        # Whoever used them last has moved them into the kernel, for both.
        for connection in made:
            echo(connection, 8, 5000)
        echo(own, 9, 5000)
        own.close()

    elsewhere(forks)
    # A child that never uses them costs nothing, and leaves them as they are.
    more = [elsewhere(connected, ECHO) for _ in range(3)]
    reap(child(lambda: None))
    for connection in more:
        echo(connection, 3, 5000)
        connection.close()
    for connection in made:
        connection.close()


@test
def a_child_finds_what_a_thread_goes_on_serving():
    connection = accepted(ECHO)
    here, there = os.pipe()

    def uses():
        os.read(here, 1)
        echo(connection, 5, 5000)

    pid = child(uses)

    def serves():
        for seed in range(40):
            echo(connection, seed, 1000)

    elsewhere(serves)
    os.write(there, b"x")
    reap(pid)
    echo(connection, 6, 5000)
    connection.close()
    os.close(here)
    os.close(there)


@test
def forks_while_other_threads_work():
    stop = threading.Event()
    echoed = [0] * 3

    def work(seed):
        connection = connected(ECHO)
        while not stop.is_set():
            echo(connection, seed, 2000)
            echoed[seed] += 1
        connection.close()

    workers = [Worker(work, seed) for seed in range(3)]
    forks = 0
    while forks < 15 or min(echoed) <= 5:
        reap(child(lambda: None))
        forks += 1
    stop.set()
    for worker in workers:
        worker.done()


@test
def another_image():
    connection = elsewhere(connected, "assert take(5) == b'image'; s.sendall(b'seen')")
    connection.set_inheritable(True)

    def becomes():
        program = f"import socket; s = socket.socket(fileno={connection.fileno()}); s.sendall(b'image'); assert s.recv(9) == b'seen'"
        os.execv(sys.executable, [sys.executable, "-c", program])

    pid = elsewhere(child, becomes)
    reap(pid)
    finished(connection)
    connection.close()


ends.run(sys.argv[3:])
