"""What a connection is after it was handed over to the kernel: the same, to its program and to its peer.

usage: handover.py OWN-ADDRESS PEER-ADDRESS

Over the kernel alone the handover is nothing but a descriptor that is passed, so the expectations are its own.
"""
import os
import select
import socket
import struct
import sys
import threading
import time
import traceback

import ends
from ends import TESTS, hand_over, test

OWN, PEER = sys.argv[1:3]
next_port = [7200]


def order(verb, port, program):
    return ends.order(PEER, verb, port, program)


def connections(program):
    """One that the peer began and one that this end began; the peer does the same with both."""
    next_port[0] += 2
    server = ends.look(ends.bound(OWN, next_port[0]))
    control = order("connect", next_port[0], program)
    connection, _ = server.accept()
    server.close()
    yield connection, control
    control = order("listen", next_port[0] + 1, program)
    yield socket.create_connection((PEER, next_port[0] + 1)), control


def wait_for(connection, events, timeout=5):
    poll = select.poll()
    poll.register(connection, events)
    return poll.poll(timeout * 1000)


def finished(control):
    assert control.recv(1) == b""
    control.close()


@test
def names_and_options_stay():
    for connection, control in connections("take(1)"):
        names = connection.getsockname(), connection.getpeername()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 123)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 45)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 78_000)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 60_000)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 9))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 3, 0))
        os.set_blocking(connection.fileno(), False)
        asked = [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            (socket.SOL_SOCKET, socket.SO_SNDBUF),
            (socket.SOL_SOCKET, socket.SO_RCVBUF),
        ]
        before = [connection.getsockopt(*option) for option in asked]
        hand_over(connection)
        assert names == (connection.getsockname(), connection.getpeername())
        assert before == [connection.getsockopt(*option) for option in asked], before
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == struct.pack("ii", 1, 9)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == struct.pack("ll", 3, 0)
        assert not os.get_blocking(connection.fileno())
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        connection.send(b"x")
        finished(control)
        connection.close()


@test
def epoll_sets_go_on():
    program = "s.send(b'one'); take(1); s.send(b'two'); take(1)"
    modes = {
        "level": select.EPOLLIN,
        "edge": select.EPOLLIN | select.EPOLLET,
        "once": select.EPOLLIN | select.EPOLLONESHOT,
    }
    for mode, events in modes.items():
        for connection, control in connections(program):
            epoll = select.epoll()
            epoll.register(connection, events)
            number = connection.fileno()
            assert epoll.poll(5) == [(number, select.EPOLLIN)], mode
            hand_over(connection)
            # An edge that was reported may be reported again: what waits to be read must not be missed.
            expected = [] if mode == "once" else [(number, select.EPOLLIN)]
            # Within a host a connection may be the kernel's from the beginning.
            if mode == "level" or ("LD_PRELOAD" in os.environ and OWN != PEER):
                assert epoll.poll(0.2) == expected, mode
            assert connection.recv(10) == b"one"
            assert epoll.poll(0.05) == [], mode
            if mode == "once":
                epoll.modify(connection, events)
            connection.send(b"x")
            assert epoll.poll(5) == [(number, select.EPOLLIN)], mode
            assert connection.recv(10) == b"two"
            epoll.unregister(connection)
            connection.send(b"x")
            finished(control)
            connection.close()


@test
def half_closed_by_us():
    program = "assert s.recv(100) == b'all'; assert s.recv(1) == b''; s.send(b'answer')"
    for connection, control in connections(program):
        connection.send(b"all")
        connection.shutdown(socket.SHUT_WR)
        assert wait_for(connection, select.POLLIN)
        hand_over(connection)
        assert connection.recv(100) == b"answer"
        assert connection.recv(1) == b""
        finished(control)
        connection.close()
    program = "assert s.recv(100) == b'all'; assert s.recv(1) == b''; time.sleep(0.4); s.send(b'answer')"
    for connection, control in connections(program):
        connection.send(b"all")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        # FIN-WAIT-2.
        hand_over(connection)
        assert connection.recv(100) == b"answer"
        assert connection.recv(1) == b""
        try:
            connection.send(b"more")
            raise AssertionError("sent after shutdown")
        except BrokenPipeError:
            pass
        finished(control)
        connection.close()


@test
def half_closed_by_the_peer():
    program = "s.send(b'all'); s.shutdown(socket.SHUT_WR); assert take(7) == b'answers'; assert s.recv(1) == b''"
    for connection, control in connections(program):
        assert wait_for(connection, select.POLLIN)
        time.sleep(0.1)
        connection.send(b"ans")
        hand_over(connection)
        assert connection.recv(2) == b"al"
        assert wait_for(connection, select.POLLRDHUP) == [(connection.fileno(), select.POLLRDHUP)]
        assert connection.recv(2) == b"l"
        assert connection.recv(2) == b""
        connection.send(b"wers")
        connection.close()
        finished(control)


@test
def the_peers_window_is_closed():
    """Much is unsent and the peer reads nothing for a while."""
    program = "take(1); time.sleep(0.5); assert take(400_000) == b'y' * 400_000; s.send(b'z')"
    for connection, control in connections(program):
        connection.send(b"x")
        connection.setblocking(False)
        left = 400_000
        while left:
            try:
                left -= connection.send(b"y" * left)
            except BlockingIOError:
                break
        hand_over(connection)
        connection.setblocking(True)
        connection.sendall(b"y" * left)
        assert connection.recv(1) == b"z"
        connection.close()
        finished(control)


@test
def our_window_is_closed():
    """Much is unread, and the peer has more."""
    program = "s.sendall(b'x' * 8_000_000); s.shutdown(socket.SHUT_WR); s.recv(1)"
    for connection, control in connections(program):
        time.sleep(0.5)
        hand_over(connection)
        left = 8_000_000
        while piece := connection.recv(1 << 20):
            assert piece == b"x" * len(piece)
            left -= len(piece)
        assert left == 0, left
        connection.close()
        finished(control)


@test
def another_thread_waits_in_a_call():
    program = "take(1); s.send(b'late'); take(1)"
    for connection, control in connections(program):
        got = []
        # Both see the data, whoever is first.
        reader = threading.Thread(target=lambda: got.append(connection.recv(2)))
        reader.start()
        polled = []
        poller = threading.Thread(target=lambda: polled.append(wait_for(connection, select.POLLIN)))
        poller.start()
        time.sleep(0.2)
        hand_over(connection)
        time.sleep(0.1)
        assert not got
        connection.send(b"x")
        reader.join(5)
        poller.join(5)
        assert got == [b"la"], got
        assert len(polled) == 1
        assert connection.recv(10) == b"te"
        connection.send(b"x")
        connection.close()
        finished(control)


@test
def every_descriptor_of_it_moves():
    program = "assert take(4) == b'abcd'; s.send(b'efgh'); take(1)"
    for connection, control in connections(program):
        second = connection.dup()
        third = os.dup2(connection.fileno(), 200)
        connection.send(b"a")
        hand_over(second)
        second.send(b"b")
        os.write(third, b"c")
        connection.send(b"d")
        assert os.read(third, 2) == b"ef"
        assert second.recv(1) == b"g"
        assert connection.recv(1) == b"h"
        connection.close()
        os.close(third)
        second.send(b"x")
        second.close()
        finished(control)


@test
def a_listener_can_begin_again_at_the_port():
    for connection, control in connections("take(1)"):
        hand_over(connection)
        ends.bound(OWN, connection.getsockname()[1]).close()
        connection.send(b"x")
        finished(control)
        connection.close()
        break


failed = 0
for function in TESTS:
    try:
        function()
    except BaseException:
        failed += 1
        print(f"--- {function.__name__}")
        traceback.print_exc(file=sys.stdout)
print("done" if not failed else f"{failed} failed", flush=True)
sys.exit(bool(failed))
