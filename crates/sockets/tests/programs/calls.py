"""Socket calls whose outcome must be the same over the kernel and over Overfly.

usage: calls.py OWN-ADDRESS PEER-ADDRESS [TEST...]
"""
import array
import asyncio
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import ends
from ends import test

OWN, PEER = sys.argv[1:3]
FAMILY = socket.AF_INET6 if ":" in OWN else socket.AF_INET
socket.socket = ends.Connection


def order(verb, port, program):
    return ends.order(PEER, verb, port, program)


next_port = [8000]


def listener(backlog=16):
    next_port[0] += 1
    return ends.bound(OWN, next_port[0], backlog), next_port[0]


def accepted(program):
    """A connection that the peer began, and what it does with it."""
    server, port = listener()
    ends.look(server)
    control = order("connect", port, program)
    connection, address = server.accept()
    assert address[0] == PEER, address
    server.close()
    connection.control = control
    return connection


def connected(program):
    """A connection that this end began, and what the peer does with it."""
    next_port[0] += 1
    control = order("listen", next_port[0], program)
    connection = socket.create_connection((PEER, next_port[0]))
    connection.control = control
    return connection


def expect(error, call, *arguments):
    try:
        result = call(*arguments)
    except OSError as e:
        assert e.errno == error, f"{e} instead of {errno.errorcode[error]}"
    else:
        raise AssertionError(f"{result!r} instead of {errno.errorcode[error]}")


def take(connection, count):
    data = b""
    while len(data) < count and (piece := connection.recv(count - len(data))):
        data += piece
    return data


@test
def names():
    for c in accepted("take(1)"), connected("take(1)"):
        assert c.getpeername()[0] == PEER and c.getsockname()[0] == OWN
        assert c.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
        assert c.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == FAMILY
        assert c.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == socket.IPPROTO_TCP
        assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
        assert os.fstat(c.fileno()).st_mode & 0o170000 == 0o140000


@test
def stream_ends():
    c = accepted("s.sendall(b'hello'); s.shutdown(1); assert take(9) == b'bye'")
    assert take(c, 100) == b"hello"
    assert c.recv(10) == b""
    c.sendall(b"bye")
    c.close()


@test
def flags_of_recv():
    c = accepted("s.sendall(b'abcdef'); time.sleep(0.3); s.sendall(b'ghij'); take(1)")
    assert c.recv(3, socket.MSG_PEEK) == b"abc"
    assert c.recv(2) == b"ab"
    assert c.recv(8, socket.MSG_WAITALL) == b"cdefghij"
    expect(errno.EAGAIN, c.recv, 1, socket.MSG_DONTWAIT)
    expect(errno.EINVAL, c.recv, 1, socket.MSG_OOB)


@test
def vectors_and_messages():
    c = accepted("s.sendall(take(14)); take(1)")
    assert os.writev(c.fileno(), [b"ab", b"", b"cde"]) == 5
    assert c.sendmsg([b"fg", b"hi"]) == 4
    assert c.sendto(b"jkl", (PEER, 5)) == 3
    assert os.write(c.fileno(), b"mn") == 2
    buffers = [bytearray(3), bytearray(4)]
    assert os.readv(c.fileno(), buffers) == 7 and buffers == [b"abc", b"defg"]
    data, ancillary, flags, address = c.recvmsg(3)
    assert (data, ancillary, flags) == (b"hij", [], 0)
    assert c.recvfrom(2)[0] == b"kl"
    assert os.read(c.fileno(), 100) == b"mn"
    expect(errno.ESPIPE, os.pread, c.fileno(), 1, 0)
    expect(errno.ESPIPE, os.lseek, c.fileno(), 0, 0)


@test
def large_both_ways():
    data = os.urandom(3_000_000)
    for c in accepted("threading.Thread(target=lambda: [s.sendall(p) for p in iter(lambda: s.recv(65536), b'')] and s.shutdown(1)).start(); time.sleep(30)"), \
            connected("[s.sendall(p) for p in iter(lambda: s.recv(65536), b'')]; s.shutdown(1)"):
        sender = threading.Thread(target=lambda: (c.sendall(data), c.shutdown(socket.SHUT_WR)))
        sender.start()
        assert take(c, len(data) + 1) == data
        sender.join()
        c.close()


@test
def sends_a_file():
    with tempfile.TemporaryFile() as file:
        data = os.urandom(1_000_000)
        file.write(data)
        file.flush()
        c = accepted("d = take(999000); s.sendall(d); s.shutdown(1); take(1)")
        offset = 1000
        received = []
        reader = threading.Thread(target=lambda: received.append(take(c, 10**7)))
        reader.start()
        while offset < len(data):
            sent = os.sendfile(c.fileno(), file.fileno(), offset, len(data) - offset)
            assert sent > 0
            offset += sent
        assert os.sendfile(c.fileno(), file.fileno(), offset, 10) == 0
        reader.join()
        assert received == [data[1000:]]


@test
def non_blocking_write_fills_up():
    c = accepted("time.sleep(0.5); d = len(take(10**8)); s.sendall(b'%d' % d)")
    c.setblocking(False)
    sent = 0
    block = bytes(1 << 20)
    while True:
        try:
            sent += c.send(block)
        except BlockingIOError:
            break
    poller = select.poll()
    poller.register(c, select.POLLOUT)
    assert poller.poll(0) == []
    assert poller.poll(5000) == [(c.fileno(), select.POLLOUT)]
    c.setblocking(True)
    c.shutdown(socket.SHUT_WR)
    assert take(c, 100) == b"%d" % sent


@test
def timeouts():
    c = accepted("time.sleep(1); s.sendall(b'x'); take(1)")
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200_000))
    began = time.monotonic()
    expect(errno.EAGAIN, c.recv, 1)
    assert 0.15 < time.monotonic() - began < 0.8
    assert struct.unpack("ll", c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)) == (0, 200_000)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    assert c.recv(1) == b"x"
    server, _ = listener()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200_000))
    expect(errno.EAGAIN, server.accept)
    c.settimeout(0.2)
    try:
        c.recv(1)
        raise AssertionError("no timeout")
    except TimeoutError:
        pass


@test
def reset_by_the_peer():
    c = accepted("take(1); reset()")
    c.sendall(b"x")
    time.sleep(0.3)
    expect(errno.ECONNRESET, c.recv, 1)
    assert c.recv(1) == b""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    expect(errno.EPIPE, c.send, b"x")
    c.close()
    c = accepted("take(1); reset()")
    c.sendall(b"x")
    time.sleep(0.3)
    poller = select.poll()
    poller.register(c, 0)
    assert poller.poll(1000) == [(c.fileno(), select.POLLERR | select.POLLHUP)]
    assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
    assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


@test
def reset_by_linger():
    answer = socket.create_server((OWN, 6603), family=FAMILY)
    # The peer's connect() must be over, or the reset is its error.
    c = accepted("s.sendall(b'x')\nr = b'none'\ntry:\n take(5)\nexcept ConnectionResetError:\n r = b'reset'\n"
                 "socket.create_connection(('%s', 6603)).sendall(r)" % OWN)
    assert c.recv(1) == b"x"
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert struct.unpack("ii", c.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)
    c.close()
    c, _ = answer.accept()
    assert take(c, 10) == b"reset"


@test
def close_lingers():
    """Until everything has arrived, or for so long."""
    data = bytes(1_000_000)
    for blocking in False, True:
        for reads, seconds, least, most in ("time.sleep(0.4); take(10**7)", 10, 0.3, 5), ("time.sleep(20)", 1, 0.9, 3):
            c = accepted("s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100000); " + reads)
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
            c.send(data, socket.MSG_DONTWAIT)
            c.setblocking(blocking)
            began = time.monotonic()
            c.close()
            assert least < time.monotonic() - began < most, time.monotonic() - began
    # Nothing to wait for.
    c = accepted("take(1)")
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
    began = time.monotonic()
    c.close()
    assert time.monotonic() - began < 1


@test
def sigpipe():
    got = []
    signal.signal(signal.SIGPIPE, lambda *_: got.append(1))
    c = accepted("take(1)")
    c.shutdown(socket.SHUT_WR)
    expect(errno.EPIPE, c.send, b"x", socket.MSG_NOSIGNAL)
    time.sleep(0.01)
    assert got == []
    # socket.send() always asks for MSG_NOSIGNAL in Python; write() cannot.
    expect(errno.EPIPE, os.write, c.fileno(), b"x")
    time.sleep(0.01)
    assert got == [1], got
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


@test
def options():
    c = accepted("take(1)")
    for level, name in (socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE), \
            (socket.IPPROTO_TCP, socket.TCP_CORK):
        assert c.getsockopt(level, name) == 0
        c.setsockopt(level, name, 1)
        assert c.getsockopt(level, name) == 1
        c.setsockopt(level, name, 0)
    for level, name in (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), \
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT), (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
        c.setsockopt(level, name, 77)
        assert c.getsockopt(level, name) == 77
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
    assert c.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 200_000
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    expect(errno.ENOPROTOOPT, c.setsockopt, socket.IPPROTO_TCP, 9999, 1)
    info = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    assert info[0] == 1 and len(info) == 104, info
    server, _ = listener()
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)


@test
def inherited_options():
    server, port = listener()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    server.setblocking(False)
    expect(errno.EAGAIN, server.accept)
    control = order("connect", port, "take(1)")
    select.select([server], [], [], 5)
    c, _ = server.accept()
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert c.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    control.close()


@test
def control_calls():
    c = accepted("s.sendall(b'12345'); take(1)")
    assert select.select([c], [], [], 5)[0] == [c]
    number = array.array("i", [0])
    fcntl.ioctl(c, termios.FIONREAD, number)
    assert number[0] == 5
    fcntl.ioctl(c, termios.TIOCOUTQ, number)
    assert number[0] == 0
    assert not fcntl.fcntl(c, fcntl.F_GETFL) & os.O_NONBLOCK
    fcntl.fcntl(c, fcntl.F_SETFL, os.O_NONBLOCK | os.O_RDWR)
    assert fcntl.fcntl(c, fcntl.F_GETFL) & os.O_NONBLOCK
    c.recv(5)
    expect(errno.EAGAIN, os.read, c.fileno(), 1)
    fcntl.ioctl(c, 0x5421, struct.pack("i", 0))
    assert not fcntl.fcntl(c, fcntl.F_GETFL) & os.O_NONBLOCK
    assert c.get_inheritable() is False
    c.set_inheritable(True)
    assert c.get_inheritable() is True


@test
def duplicates():
    c = accepted("d = take(6); s.sendall(d); take(1)")
    other = os.dup(c.fileno())
    third = fcntl.fcntl(c, fcntl.F_DUPFD_CLOEXEC, 300)
    assert third >= 300
    os.write(other, b"abc")
    c.close()
    os.write(third, b"def")
    os.close(third)
    expect(errno.EBADF, os.write, third, b"x")
    time.sleep(0.3)
    assert os.read(other, 10) == b"abcdef"
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, other)
    assert os.read(other, 10) == b""
    os.close(other)
    os.close(null)


@test
def closed_descriptors():
    c = accepted("take(1)")
    number = c.fileno()
    c.close()
    expect(errno.EBADF, os.read, number, 1)
    expect(errno.EBADF, os.close, number)
    expect(errno.EBADF, os.dup, number)
    expect(errno.EBADF, fcntl.fcntl, number, fcntl.F_GETFL)


@test
def connecting():
    s = socket.socket(FAMILY)
    s.setblocking(False)
    order("listen", 6500, "s.sendall(b'hi'); take(1)")
    assert s.connect_ex((PEER, 6500)) == errno.EINPROGRESS
    assert select.select([], [s], [], 5)[1] == [s]
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    # The first connect() after the end of the handshake says so; the next ones find it done.
    assert s.connect_ex((PEER, 6500)) == 0
    assert s.connect_ex((PEER, 6500)) == errno.EISCONN
    assert select.select([s], [], [], 5)[0] == [s]
    assert s.recv(5) == b"hi"
    s.close()
    s = socket.socket(FAMILY)
    expect(errno.ECONNREFUSED, s.connect, (PEER, 6599))
    s.close()
    s = socket.socket(FAMILY)
    s.setblocking(False)
    epoll = select.epoll()
    epoll.register(s, select.EPOLLOUT | select.EPOLLIN | select.EPOLLET)
    epoll.poll(0)
    assert s.connect_ex((PEER, 6599)) == errno.EINPROGRESS
    events = epoll.poll(5)
    assert events and events[0][0] == s.fileno() and events[0][1] & (select.EPOLLERR | select.EPOLLHUP), events
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    s = socket.socket(FAMILY)
    expect(errno.ENOTCONN, s.recv, 1)
    expect(errno.ENOTCONN, s.getpeername)
    expect(errno.ENOTCONN, s.shutdown, socket.SHUT_RDWR)


@test
def connecting_from_a_bound_port():
    order("listen", 6501, "s.sendall(str(s.getpeername()[1]).encode()); take(1)")
    s = socket.socket(FAMILY)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((OWN, 6777))
    s.connect((PEER, 6501))
    assert s.getsockname()[:2] == (OWN, 6777)
    assert s.recv(10) == b"6777"


@test
def loopback():
    server, port = listener()
    wild = socket.create_server(("", port + 500), family=FAMILY)
    for address in ("::1" if FAMILY == socket.AF_INET6 else "127.0.0.1", port + 500), (OWN, port), (OWN, port + 500):
        for accepting in server, wild:
            if (address[1] == port) == (accepting is server):
                client = socket.create_connection(address)
                peer, name = accepting.accept()
                assert name == client.getsockname()
                client.sendall(b"over the kernel")
                assert take(peer, 15) == b"over the kernel"
                client.close()
                assert peer.recv(1) == b""
                peer.close()
    next_port[0] += 1


@test
def epoll_with_all_kinds():
    server, port = listener()
    server.setblocking(False)
    epoll = select.epoll()
    pipe = os.pipe()
    epoll.register(server, select.EPOLLIN)
    epoll.register(pipe[0], select.EPOLLIN)
    assert epoll.poll(0) == []
    os.write(pipe[1], b"x")
    assert epoll.poll(5) == [(pipe[0], select.EPOLLIN)]
    os.read(pipe[0], 1)
    control = order("connect", port, "s.sendall(b'one'); take(1); s.sendall(b'two'); take(1)")
    assert epoll.poll(5) == [(server.fileno(), select.EPOLLIN)]
    c, _ = server.accept()
    epoll.register(c, select.EPOLLIN | select.EPOLLET | select.EPOLLRDHUP)
    assert epoll.poll(5) == [(c.fileno(), select.EPOLLIN)]
    os.write(pipe[1], b"x")
    assert epoll.poll(5) == [(pipe[0], select.EPOLLIN)]
    os.read(pipe[0], 1)
    began = time.monotonic()
    assert epoll.poll(0.2) == []
    assert 0.15 < time.monotonic() - began < 1
    c.sendall(b"1")
    assert epoll.poll(5) == [(c.fileno(), select.EPOLLIN)]
    assert c.recv(10) == b"onetwo"
    epoll.modify(c, select.EPOLLOUT | select.EPOLLONESHOT)
    assert epoll.poll(5) == [(c.fileno(), select.EPOLLOUT)]
    assert epoll.poll(0.1) == []
    epoll.modify(c, select.EPOLLRDHUP)
    c.sendall(b"2")
    assert epoll.poll(5) == [(c.fileno(), select.EPOLLRDHUP)]
    epoll.unregister(c)
    expect(errno.ENOENT, epoll.unregister, c)
    expect(errno.ENOENT, epoll.modify, c, 0)
    epoll.register(c, 0)
    expect(errno.EEXIST, epoll.register, c, 0)
    # Over loopback the same listener is ready too.
    client = socket.create_connection((OWN, port))
    events = dict(epoll.poll(5))
    assert events.get(server.fileno()) == select.EPOLLIN, events
    peer, _ = server.accept()
    client.close()
    assert peer.recv(1) == b""
    expect(errno.EAGAIN, server.accept)
    epoll.close()


@test
def pipe_beside_busy_connections():
    """User-level events that never end must not starve a pipe."""
    c = accepted("s.sendall(b'x'); time.sleep(30)")
    epoll = select.epoll()
    pipe = os.pipe()
    epoll.register(c, select.EPOLLIN)
    epoll.register(pipe[0], select.EPOLLIN)
    epoll.poll(5)
    os.write(pipe[1], b"x")
    end = time.monotonic() + 5
    while pipe[0] not in dict(epoll.poll(1)):
        assert time.monotonic() < end


@test
def poll_and_select():
    c = accepted("time.sleep(0.2); s.sendall(b'x'); take(1)")
    pipe = os.pipe()
    poller = select.poll()
    poller.register(c, select.POLLIN)
    poller.register(pipe[0], select.POLLIN)
    assert poller.poll(10) == []
    assert poller.poll(5000) == [(c.fileno(), select.POLLIN)]
    os.write(pipe[1], b"x")
    assert sorted(poller.poll(5000)) == sorted([(c.fileno(), select.POLLIN), (pipe[0], select.POLLIN)])
    assert select.select([c, pipe[0]], [c], [c], 1) == ([c, pipe[0]], [c], [])
    c.recv(1)
    assert select.select([c], [], [], 0.1) == ([], [], [])
    threading.Timer(0.2, os.write, (pipe[1], b"y")).start()
    os.read(pipe[0], 1)
    assert select.select([c, pipe[0]], [], [], 5)[0] == [pipe[0]]


@test
def signals_interrupt():
    c = accepted("time.sleep(1.5); s.sendall(b'x'); take(1)")
    epoll = select.epoll()
    epoll.register(c, select.EPOLLIN)

    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    signal.signal(signal.SIGALRM, ring)
    for wait in lambda: epoll.poll(5), lambda: c.recv(1), lambda: select.select([c], [], [], 5):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        try:
            wait()
            raise AssertionError("not interrupted")
        except Alarm:
            assert time.monotonic() - began < 1
    # Python retries after a handler that does not raise.
    counted = []
    signal.signal(signal.SIGALRM, lambda *_: counted.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    assert c.recv(1) == b"x"
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(counted) > 3


@test
def handlers_use_sockets():
    c = accepted("take(50); time.sleep(0.2); s.sendall(b'done'); take(1)")
    sent = []
    signal.signal(signal.SIGALRM, lambda *_: sent.append(c.send(b"x")))
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    while len(sent) < 50:
        try:
            c.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert take(c, 4) == b"done"


@test
def threads_block_together():
    server, port = listener(64)
    controls = []
    served = []

    def serve():
        c, _ = server.accept()
        while data := c.recv(100):
            c.sendall(data)
        served.append(1)
        c.close()

    threads = [threading.Thread(target=serve) for _ in range(10)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    for index in range(10):
        controls.append(order("connect", port, f"for i in range(50):\n m = b'%d %d' % ({index}, i)\n s.sendall(m)\n assert take(len(m)) == m"))
    for thread in threads:
        thread.join(10)
    assert len(served) == 10, served


@test
def another_thread_wakes_a_sleeper():
    c = accepted("take(1); s.sendall(b'x'); take(1)")
    epoll = select.epoll()
    result = []
    waiter = threading.Thread(target=lambda: result.append(epoll.poll(5)))
    waiter.start()
    time.sleep(0.1)
    epoll.register(c, select.EPOLLIN)
    c.sendall(b"1")
    waiter.join(6)
    assert result == [[(c.fileno(), select.EPOLLIN)]], result


@test
def subprocesses_leave_connections_alone():
    c = accepted("s.sendall(b'a'); take(1); s.sendall(b'b'); take(1)")
    assert c.recv(1) == b"a"
    assert subprocess.check_output(["echo", "hi"], close_fds=True) == b"hi\n"
    assert subprocess.check_output("echo hi; exit 0", shell=True, close_fds=False) == b"hi\n"
    child = os.fork()
    if child == 0:
        c.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    c.sendall(b"1")
    assert c.recv(1) == b"b"


@test
def ranges_are_closed():
    """close_range(2), closefrom(3) and close_range with CLOSE_RANGE_CLOEXEC: connections among other descriptors."""
    libc = ctypes.CDLL(None, use_errno=True)

    def at(number):
        """Returns what hears of the connection's end."""
        c = accepted("tell(b'ended' if s.recv(1) == b'' else b'more!')")
        os.dup2(c.fileno(), number, inheritable=True)
        c.close()
        return c.control

    def is_open(number):
        try:
            return bool(os.fstat(number))
        except OSError:
            return False

    null = os.open("/dev/null", os.O_RDONLY)
    for close in (lambda: libc.close_range(600, 610, 0), lambda: libc.syscall(436, 600, 610, 0), lambda: libc.closefrom(600)):
        first, second = at(601), at(605)
        for number in 600, 603, 610:
            os.dup2(null, number)
        assert libc.close_range(620, 610, 0) == -1 and ctypes.get_errno() == errno.EINVAL
        assert libc.close_range(601, 610, 4) == 0
        assert all(map(is_open, (600, 601, 603, 605, 610))) and not os.get_inheritable(601)
        close()
        assert not any(map(is_open, range(600, 611)))
        assert take(first, 5) == take(second, 5) == b"ended"
        # The numbers are free for others, and the library goes on.
        c = accepted("s.sendall(b'x'); take(1)")
        os.dup2(c.fileno(), 605)
        assert os.read(605, 1) == b"x" and os.write(605, b"y") == 1
        os.close(605)
    os.close(null)


@test
def a_vfork_is_a_fork():
    """subprocess uses vfork() where it can: the child closes descriptors, and may fail to exec."""
    c = accepted("s.sendall(b'a'); take(1); s.sendall(b'b'); take(1)")
    assert c.recv(1) == b"a"
    for _ in range(3):
        assert subprocess.run(["/bin/true"], close_fds=True).returncode == 0
        try:
            subprocess.run(["/nowhere"], close_fds=True)
            raise AssertionError("it ran")
        except FileNotFoundError:
            pass
    c.sendall(b"1")
    assert c.recv(1) == b"b"


@test
def inherited_listener():
    """The child of a fork serves the listener that its parent made."""
    server, port = listener()
    child = os.fork()
    if child == 0:
        c, _ = server.accept()
        c.sendall(c.recv(10) + b" from the child")
        c.close()
        os._exit(0)
    time.sleep(0.3)
    answer = socket.create_server((OWN, port + 600), family=FAMILY)
    order("connect", port, "s.sendall(b'hello'); d = take(20); assert d == b'hello from the child', d; "
                           "socket.create_connection((s.getpeername()[0], %d)).sendall(d)" % (port + 600))
    c, _ = answer.accept()
    assert take(c, 20) == b"hello from the child"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@test
def exit_delivers():
    """What was written just before exit arrives."""
    program = ("import socket, sys, os\ns = socket.create_connection((sys.argv[1], 6601))\n"
               "s.sendall(bytes(300_000))\n")
    for end in "sys.exit(0)", "os._exit(0)":
        answer = socket.create_server((OWN, 6602), family=FAMILY)
        control = order("listen", 6601, "d = take(400000)\nassert len(d) == 300000, len(d)\n"
                        f"socket.create_connection((s.getpeername()[0], 6602)).sendall(b'%d' % len(d))")
        subprocess.run([sys.executable, "-c", program + end, PEER], check=True)
        c, _ = answer.accept()
        assert take(c, 6) == b"300000"
        answer.close()


@test
def asyncio_server_and_client():
    async def main():
        async def serve(reader, writer):
            while data := await reader.read(1000):
                writer.write(data.upper())
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, OWN, 8901)
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        controls = [await loop.run_in_executor(None, order, "connect", 8901,
                    "for i in range(20):\n s.sendall(b'abc')\n assert take(3) == b'ABC'") for _ in range(10)]
        for control in controls:
            assert await loop.run_in_executor(None, control.recv, 1) == b""
        await loop.run_in_executor(None, order, "listen", 6700, "s.sendall(take(5)[::-1])")
        reader, writer = await asyncio.open_connection(PEER, 6700)
        writer.write(b"abcde")
        assert await reader.read(10) == b"edcba"
        writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(main(), 20))


@test
def many_connections_reuse_descriptors():
    server, port = listener(64)
    server.setblocking(False)
    expect(errno.EAGAIN, server.accept)
    server.setblocking(True)
    for _ in range(5):
        order("connect", port, "peer = s.getpeername()[:2]\ns.close()\nfor i in range(40):\n c = socket.create_connection(peer)\n c.sendall(b'q')\n assert c.recv(9) == b'answer'\n assert c.recv(9) == b''\n c.close()")
    numbers = set()
    for _ in range(205):
        c, _ = server.accept()
        numbers.add(c.fileno())
        if c.recv(1) == b"q":
            c.sendall(b"answer")
        c.close()
    assert len(numbers) < 30, numbers


@test
def urgent_data():
    """The kernel sends it: the connection is handed over."""
    for make in accepted, connected:
        c = make("time.sleep(0.2); urgent = s.recv(1, socket.MSG_OOB); s.sendall(take(2) + urgent); take(1)")
        c.sendall(b"a")
        assert c.send(b"!", socket.MSG_OOB) == 1
        c.sendall(b"b")
        assert take(c, 3) == b"ab!"
    # A call that begins before the connection is open, and waits for that.
    next_port[0] += 1
    control = order("listen", next_port[0], "time.sleep(0.2); urgent = s.recv(1, socket.MSG_OOB); s.sendall(take(1) + urgent); take(1)")
    c = socket.socket(FAMILY)
    c.setblocking(False)
    expect(errno.EINPROGRESS, c.connect, (PEER, next_port[0]))
    c.setblocking(True)
    assert c.send(b"!", socket.MSG_OOB) == 1
    c.sendall(b"b")
    assert take(c, 2) == b"b!"
    control.close()


@test
def urgent_data_signals_a_process_that_makes_no_calls():
    heard = []
    signal.signal(signal.SIGURG, lambda *_: heard.append(True))
    for make in accepted, connected:
        c = make("take(1); s.send(b'!', socket.MSG_OOB); take(1)")
        fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid())
        heard.clear()
        c.send(b"x")
        end = time.monotonic() + 10
        while not heard and time.monotonic() < end:
            time.sleep(0.05)
        assert heard
        assert c.recv(1, socket.MSG_OOB) == b"!"
    signal.signal(signal.SIGURG, signal.SIG_DFL)


@test
def urgent_data_that_comes():
    """Not in the stream: the kernel goes on with the connection, before or after it was accepted."""
    for make in accepted, connected:
        c = make("s.sendall(b'ab'); take(1); s.send(b'c!', socket.MSG_OOB); s.sendall(b'd'); take(1)")
        assert take(c, 2) == b"ab"
        c.send(b"x")
        # A blocking read waits through it.
        assert c.recv(1) == b"c"
        while True:
            # Whoever reads beyond it has lost it.
            try:
                assert c.recv(1, socket.MSG_OOB) == b"!"
                break
            except (BlockingIOError, OSError) as error:
                assert error.errno in (errno.EAGAIN, errno.EINVAL)
        assert c.recv(1) == b"d"
        c = make("take(1); s.send(b'c!', socket.MSG_OOB); s.sendall(b'd'); take(1)")
        epoll = select.epoll()
        epoll.register(c, select.EPOLLIN | select.EPOLLPRI)
        c.send(b"x")
        seen = 0
        while not seen & select.EPOLLPRI:
            [(number, events)] = epoll.poll(5)
            assert number == c.fileno()
            seen |= events
        assert c.recv(1, socket.MSG_OOB) == b"!"
        assert take(c, 2) == b"cd"
        poller = select.poll()
        c = make("take(1); s.send(b'c!', socket.MSG_OOB); s.sendall(b'd'); take(1)")
        poller.register(c, select.POLLPRI)
        c.send(b"x")
        assert poller.poll(5000) == [(c.fileno(), select.POLLPRI)]
        assert take(c, 2) == b"cd"
    server, port = listener()
    server.setblocking(False)
    expect(errno.EAGAIN, server.accept)
    control = order("connect", port, "s.send(b'c!', socket.MSG_OOB); s.sendall(b'd'); take(1)")
    time.sleep(0.1)
    assert select.select([server], [], [], 5)[0] == [server]
    c, _ = server.accept()
    assert c.recv(1) == b"c"
    assert c.recv(1, socket.MSG_OOB) == b"!"
    assert c.recv(1) == b"d"
    control.close()


@test
def zero_copy():
    """Who asks for completions gets them: from the kernel, which goes on with the connection."""
    SO_ZEROCOPY, MSG_ZEROCOPY, SO_EE_ORIGIN_ZEROCOPY = 60, 0x4000000, 5
    for make in accepted, connected:
        c = make("d = take(200000); s.sendall(b'%d' % len(d)); take(1)")
        # Without the option the flag means nothing.
        assert c.send(bytes(100_000), MSG_ZEROCOPY) == 100_000
        c.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        data = bytes(100_000)
        sent = 0
        while sent < len(data):
            sent += c.send(data[sent:], MSG_ZEROCOPY)
        assert take(c, 6) == b"200000"
        poller = select.poll()
        poller.register(c, 0)
        assert poller.poll(5000) == [(c.fileno(), select.POLLERR)]
        _, [(level, kind, record)], flags, _ = c.recvmsg(0, 200, socket.MSG_ERRQUEUE)
        assert struct.unpack("=IBBBxII", record[:16])[1] == SO_EE_ORIGIN_ZEROCOPY and flags & socket.MSG_ERRQUEUE
    # Before there is a connection, the kernel has it from the beginning.
    next_port[0] += 1
    control = order("listen", next_port[0], "s.sendall(take(5)); take(1)")
    c = socket.socket(FAMILY)
    c.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    c.connect((PEER, next_port[0]))
    assert c.send(b"hello", MSG_ZEROCOPY) == 5 and take(c, 5) == b"hello"
    assert c.recvmsg(0, 200, socket.MSG_ERRQUEUE)[1]
    control.close()


@test
def options_that_the_kernel_must_follow():
    def changed(c):
        if FAMILY == socket.AF_INET6:
            c.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 33)
        else:
            c.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 33)
        c.sendall(b"hello")
        assert take(c, 5) == b"hello"
        c.close()

    changed(accepted("s.sendall(take(5)); take(1)"))
    changed(connected("s.sendall(take(5)); take(1)"))
    # While the connection is being opened.
    next_port[0] += 1
    control = order("listen", next_port[0], "s.sendall(take(5)); take(1)")
    c = socket.socket(FAMILY)
    c.setblocking(False)
    assert c.connect_ex((PEER, next_port[0])) == errno.EINPROGRESS
    c.setsockopt(socket.SOL_SOCKET, socket.SO_TIMESTAMP if hasattr(socket, "SO_TIMESTAMP") else 29, 1)
    epoll = select.epoll()
    epoll.register(c, select.EPOLLOUT)
    assert epoll.poll(5) == [(c.fileno(), select.EPOLLOUT)]
    c.sendall(b"hello")
    epoll.modify(c, select.EPOLLIN)
    assert epoll.poll(5) == [(c.fileno(), select.EPOLLIN)]
    assert c.recv(5) == b"hello"
    control.close()
    # A transparent listener is the kernel's.
    server, port = listener()
    level, name = (41, 75) if FAMILY == socket.AF_INET6 else (0, 19)
    server.setsockopt(level, name, 1)
    control = order("connect", port, "s.sendall(take(5)); take(1)")
    c, _ = server.accept()
    c.sendall(b"hello")
    assert take(c, 5) == b"hello"
    control.close()


@test
def sockets_tied_to_an_interface():
    if OWN == PEER:
        return  # there is no interface between them
    next_port[0] += 1
    control = order("listen", next_port[0], "s.sendall(take(5)); take(1)")
    c = socket.socket(FAMILY)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"veth0")
    c.connect((PEER, next_port[0]))
    c.sendall(b"hello")
    assert take(c, 5) == b"hello"
    control.close()
    # Who listens on the loopback interface alone is not there for the peer, whether it was tied before or after.
    for late in False, True:
        server, port = listener()
        server.setblocking(False)
        if late:
            expect(errno.EAGAIN, server.accept)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        expect(errno.EAGAIN, server.accept)
        control = order("connect", port, "take(1)")
        assert control.recv(1) == b""
        expect(errno.EAGAIN, server.accept)


@test
def options_of_a_listener_that_is_in_use():
    server, port = listener()
    server.setblocking(False)
    expect(errno.EAGAIN, server.accept)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    control = order("connect", port, "take(1)")
    select.select([server], [], [], 5)
    c, _ = server.accept()
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    control.close()


@test
def deferred_accept():
    server, port = listener()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
    server.setblocking(False)
    expect(errno.EAGAIN, server.accept)
    control = order("connect", port, "time.sleep(0.3); s.sendall(b'hello'); take(1)")
    assert select.select([server], [], [], 0.15)[0] == []
    expect(errno.EAGAIN, server.accept)
    assert select.select([server], [], [], 5)[0] == [server]
    c, _ = server.accept()
    assert c.recv(10, socket.MSG_DONTWAIT) == b"hello"
    control.close()
    # Without data it takes as long as was asked for.
    control = order("connect", port, "take(1)")
    began = time.monotonic()
    assert select.select([server], [], [], 5)[0] == [server]
    assert 0.8 < time.monotonic() - began < 2
    c, _ = server.accept()
    expect(errno.EAGAIN, c.recv, 10, socket.MSG_DONTWAIT)
    control.close()


@test
def fast_open():
    """A client of the kernel's sends data with its second SYN."""
    if OWN == PEER:
        return  # whether one has a cookie depends on who has answered before
    with open("/proc/sys/net/ipv4/tcp_fastopen", "w") as setting:
        setting.write("3")
    server, port = listener()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 5)
    server.setblocking(False)
    expect(errno.EAGAIN, server.accept)
    server.setblocking(True)
    control = order("connect", port,
                    "address = s.getpeername()\n"
                    "for data in b'first', b'later':\n"
                    " f = socket.socket(s.family)\n"
                    " assert f.sendto(data, socket.MSG_FASTOPEN, address) == 5\n"
                    " assert f.recv(9) == data, data\n"
                    " f.close()\n"
                    "s.sendall(b'done')")
    c, _ = server.accept()
    for data in b"first", b"later":
        fast, _ = server.accept()
        assert take(fast, 5) == data
        fast.sendall(data)
        fast.close()
    assert take(c, 4) == b"done"
    # As a client: the first connection asks for the cookie, the others use it.
    large = os.urandom(20_000)
    for data, blocking in (b"hello", True), (b"hello", True), (large, True), (large, False):
        next_port[0] += 1
        control = order("listen", next_port[0], f"s.sendall(take({len(data)})); take(1)")
        c = socket.socket(FAMILY)
        c.setblocking(blocking)
        assert c.sendto(data, socket.MSG_FASTOPEN, (PEER, next_port[0])) == len(data)
        c.setblocking(True)
        assert take(c, len(data)) == data
        if blocking:
            expect(errno.EISCONN, c.sendto, b"x", socket.MSG_FASTOPEN, (PEER, next_port[0]))
        c.close()
        control.close()
    control = order("listen", next_port[0], "s.sendall(take(5)); take(1)")
    c = socket.socket(FAMILY)
    TCP_FASTOPEN_CONNECT = 30
    c.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    c.connect((PEER, next_port[0]))
    c.sendall(b"hello")
    assert take(c, 5) == b"hello"
    control.close()


@test
def formatted_output():
    libc = ctypes.CDLL(None, use_errno=True)
    c = accepted("s.sendall(take(52)); take(1)")
    numbers = [ctypes.c_double(index / 4) for index in range(1, 10)]
    for _ in range(2):
        assert libc.dprintf(c.fileno(), b"%s %d %.2f", b"text", -5, ctypes.c_double(2.5)) == 12
    # More than there are registers for.
    assert libc.__dprintf_chk(c.fileno(), 1, b"%d%d%d%d%d%d%d" + b"%.0f" * 9 + b"%s", 1, 2, 3, 4, 5, 6, 7, *numbers, b"the end.....") == 28
    assert take(c, 52) == b"text -5 2.50" * 2 + b"1234567001112222the end....."
    reading, writing = os.pipe()
    assert libc.dprintf(writing, b"%d", 77) == 2
    assert os.read(reading, 10) == b"77"


@test
def writers_hear_that_the_peer_has_gone():
    """A program that only writes, and never waits."""
    c = accepted("")
    time.sleep(0.1)
    end = time.monotonic() + 5
    try:
        while True:
            c.send(b"x")
            time.sleep(0.01)
            assert time.monotonic() < end
    except BrokenPipeError:
        pass


@test
def a_socket_connects_again():
    c = socket.socket(FAMILY)
    expect(errno.ECONNREFUSED, c.connect, (PEER, 6599))
    expect(errno.ECONNREFUSED, c.connect, (PEER, 6599))
    epoll = select.epoll()
    epoll.register(c, select.EPOLLIN)
    for _ in range(2):
        next_port[0] += 1
        control = order("listen", next_port[0], "s.sendall(take(5)); take(1)")
        c.connect((PEER, next_port[0]))
        c.sendall(b"hello")
        assert epoll.poll(5) == [(c.fileno(), select.EPOLLIN)]
        assert take(c, 5) == b"hello"
        # AF_UNSPEC ends it.
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.connect(c.fileno(), bytes(16), 16) == 0
        assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
        expect(errno.ENOTCONN, c.recv, 1)
        control.close()


@test
def a_listener_pauses():
    """As HAProxy does: the kernel's socket stops listening, and begins again."""
    libc = ctypes.CDLL(None, use_errno=True)
    server, port = listener()
    server.setblocking(False)
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN)
    assert epoll.poll(0) == []
    for stop in lambda: server.shutdown(socket.SHUT_RD), lambda: libc.connect(server.fileno(), bytes(16), 16):
        stop()
        control = order("connect", port, "take(1)")
        assert control.recv(1) == b""
        expect(errno.EINVAL, server.accept)
        server.listen(5)
        control = order("connect", port, "take(1)")
        assert epoll.poll(5) == [(server.fileno(), select.EPOLLIN)]
        c, _ = server.accept()
        c.close()
        control.close()


@test
def calls_by_their_numbers():
    """syscall(2) with the numbers of x86-64 and of aarch64."""
    numbers = {"x86_64": (0, 1, 44, 45, 51, 54, 3), "aarch64": (63, 64, 206, 207, 204, 208, 57)}
    read, write, sendto, recvfrom, getsockname, setsockopt, close = numbers[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    for c in accepted("s.sendall(take(8)); s.recv(1)"), connected("s.sendall(take(8)); s.recv(1)"):
        number = c.fileno()
        assert libc.syscall(write, number, b"abcd", 4) == 4
        assert libc.syscall(sendto, number, b"efgh", 4, 0, None, 0) == 4
        buffer = ctypes.create_string_buffer(8)
        assert libc.syscall(recvfrom, number, buffer, 4, socket.MSG_WAITALL, None, None) == 4
        assert buffer.raw[:4] == b"abcd"
        assert libc.syscall(read, number, buffer, 8) == 4 and buffer.raw[:4] == b"efgh"
        on = ctypes.c_int(1)
        assert libc.syscall(setsockopt, number, socket.IPPROTO_TCP, socket.TCP_NODELAY, ctypes.byref(on), 4) == 0
        assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        length = ctypes.c_uint(128)
        assert libc.syscall(getsockname, number, ctypes.create_string_buffer(128), ctypes.byref(length)) == 0
        assert length.value in (16, 28)
        control = c.control
        assert libc.syscall(close, c.detach()) == 0
        assert libc.syscall(read, number, buffer, 8) == -1 and ctypes.get_errno() == errno.EBADF
        control.close()
    # EF_IO_URING is 0: what a ring does is not seen.
    assert libc.syscall(425, 4, ctypes.create_string_buffer(120)) == -1 and ctypes.get_errno() == errno.ENOSYS


def splice_through_a_pipe():
    c = accepted("s.sendall(b'spliced'); assert take(7) == b'SPLICED'; s.sendall(b'!'); take(1)")
    pipe = os.pipe()
    assert os.splice(c.fileno(), pipe[1], 100) == 7
    assert os.read(pipe[0], 100) == b"spliced"
    os.write(pipe[1], b"SPLICED")
    assert os.splice(pipe[0], c.fileno(), 7) == 7
    assert c.recv(1) == b"!"


if hasattr(os, "splice"):
    test(splice_through_a_pipe)

ends.run(sys.argv[3:])
