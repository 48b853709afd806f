"""Calls at moments that a program meets seldom: one line for each thing that there is to see, the same over the kernel and over
Overfly. Each case runs in a process of its own.

usage: answers.py OWN-ADDRESS PEER-ADDRESS [CASE...]
"""
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
import traceback

import ends

OWN, PEER = sys.argv[1:3]
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
CASES = []
S, T, I = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP
PATIENCE_S = 20
next_port = [9000]


def case(function):
    CASES.append(function)
    # Children take up where the parent is: no two may have a port.
    return function


def say(*what):
    os.write(1, (" ".join(str(part) for part in what) + "\n").encode())


def trying(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)


def raw(result):
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]


def port():
    next_port[0] += 1
    return next_port[0]


def listener(backlog=16):
    return ends.look(ends.bound(OWN, port(), backlog))


def order(verb, port, program):
    return ends.order(PEER, verb, port, program)


class End:
    """Our end of a connection, and what keeps the other one."""

    def __init__(self, program, passive=True):
        if passive:
            server = listener()
            self.control = order("connect", server.getsockname()[1], program)
            self.socket, _ = server.accept()
            server.close()
        else:
            number = port()
            self.control = order("listen", number, program)
            self.socket = socket.create_connection((PEER, number))

    def told(self):
        """What the peer has to say."""
        return self.control.recv(100)


def events(descriptor, wait_ms=0, wanted=select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI):
    poll = select.poll()
    poll.register(descriptor, wanted)
    names = ("IN", "PRI", "OUT", "ERR", "HUP", "NVAL", "RDHUP")
    found = sum(bits for _, bits in poll.poll(wait_ms))
    return "+".join(name for name in names if found & getattr(select, "POLL" + name)) or "-"


def thread(work):
    started = threading.Thread(target=work, daemon=True)
    started.start()
    return started


def full_queue(number, then):
    """A listener of the peer's that answers no SYN, until it does what it is told."""
    end = End(f"h = socket.socket(s.family); h.bind((s.getsockname()[0], {number})); h.listen(0); "
              f"c = socket.create_connection(h.getsockname()[:2]); s.send(b'x'); {then}")
    end.socket.recv(1)
    return end


@case
def a_lost_syn_is_sent_again_while_another_thread_sleeps():
    idle = End("hold()")
    # The other one runs only when this one sleeps: or it might wake for what the library asks of others meanwhile.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def waits():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        idle.socket.recv(1)

    thread(waits)
    for fast in False, True:
        number = port()
        full_queue(number, "take(1); h.accept(); hold()").socket.send(b"x") if fast else None
        other = full_queue(number + 100, "time.sleep(0.9); h.accept(); hold()")
        opening = socket.socket()
        opening.setblocking(False)
        # Until no acknowledgment is due, nor anything else that would wake the other thread.
        time.sleep(0.4)
        to = (PEER, number + 100)
        say("connect", trying(opening.sendto, b"", socket.MSG_FASTOPEN, to) if fast else opening.connect_ex(to))
        time.sleep(2.6)
        say(events(opening, 0, select.POLLOUT))
        opening.close()
        other.socket.close()


@case
def datagrams_that_come_by_the_kernels_socket():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("0.0.0.0", 0))
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to = ("127.0.0.1", one.getsockname()[1])
    for _ in range(2):
        near.sendto(b"near", to)
        say(events(one, 1000, select.POLLIN), one.recv(10), events(one, 0, select.POLLIN))
        near.sendto(b"near", to)
        say(len(select.select([one], [], [], 1)[0]), one.recv(10), len(select.select([one], [], [], 0)[0]))
    epoll = select.epoll()
    epoll.register(one, select.EPOLLIN)
    for _ in range(2):
        near.sendto(b"near", to)
        say(len(epoll.poll(1)), os.read(one.fileno(), 10), len(epoll.poll(0)))
    say(os.read(one.fileno(), 0), os.readv(one.fileno(), [bytearray()]))
    # Two wait, and each gets one, whichever way it comes.
    got = []
    readers = [thread(lambda: got.append(one.recvfrom(10)[0])) for _ in range(2)]
    time.sleep(0.1)
    near.sendto(b"near", to)
    time.sleep(0.2)
    say(got)
    far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    far.bind((OWN, 0))
    far.sendto(b"own", (OWN, one.getsockname()[1]))
    for reader in readers:
        reader.join(3)
    say(sorted(got))


@case
def splice_with_more_than_the_pipe_has():
    end = End("assert take(7) == b'spliced'; assert take(4) == b'late'; tell(take(3)); hold()")
    other = End("while data := s.recv(100): s.sendall(data)")
    reading, writing = os.pipe()
    os.write(writing, b"spliced")
    say(os.splice(reading, end.socket.fileno(), 1000))
    say(trying(os.splice, reading, end.socket.fileno(), 1000, None, None, 2))
    # Others go on while it waits.
    waiting = thread(lambda: say("waited", os.splice(reading, end.socket.fileno(), 1000)))
    time.sleep(0.1)
    began = time.monotonic()
    other.socket.sendall(b"echo")
    say(other.socket.recv(10), time.monotonic() - began < 0.5)
    os.write(writing, b"late")
    waiting.join(3)
    say(trying(os.sendfile, end.socket.fileno(), reading, None, 10), trying(os.sendfile, end.socket.fileno(), reading, 0, 10))
    say([raw(LIBC.sendfile(end.socket.fileno(), number, None, 10)) for number in (-1, 999)])
    os.write(writing, b"end")
    os.close(writing)
    say(os.splice(reading, end.socket.fileno(), 1 << 30), os.splice(reading, end.socket.fileno(), 10), end.told())


@case
def splice_into_a_pipe_that_fills_up():
    end = End("s.sendall(bytes(300_000)); hold()")
    reading, writing = os.pipe()
    time.sleep(0.3)
    # Room for a part of it: no more is waited for.
    room = fcntl.fcntl(writing, 1032)
    os.write(writing, bytes(room - 8192))
    moved = os.splice(end.socket.fileno(), writing, 1 << 20)
    say(0 < moved <= 8192)
    while select.select([], [writing], [], 0)[1]:
        os.write(writing, bytes(4096))
    say(trying(os.splice, end.socket.fileno(), writing, 1 << 20, None, None, 2))
    # The next one waits for room.
    later = []
    waiting = thread(lambda: later.append(os.splice(end.socket.fileno(), writing, 1 << 20)))
    time.sleep(0.1)
    # As it is before the read, which makes room.
    say(list(later), 0 < len(os.read(reading, room)) <= room)
    waiting.join(3)
    say(len(later), 0 < later[0] <= room)


@case
def splice_with_urgent_data():
    end = End("s.sendall(b'ab'); s.send(b'!', socket.MSG_OOB); s.sendall(b'cd'); tell(take(3)); hold()")
    reading, writing = os.pipe()
    time.sleep(0.3)
    say(trying(os.splice, end.socket.fileno(), writing, 100), os.read(reading, 100))
    os.write(writing, b"xyz")
    say(trying(os.splice, reading, end.socket.fileno(), 3), end.told())


@case
def a_writer_hears_of_the_reset_after_another_thread_polled():
    end = End("take(1); reset()")
    thread(lambda: select.select([end.socket], [], [], 0)).join()
    end.socket.send(b"x")
    time.sleep(0.2)
    say(trying(end.socket.send, b"x"))
    say(trying(end.socket.send, b"x"))


@case
def who_asks_for_the_peers_name_hears_of_the_reset():
    end = End("take(1); reset()")
    end.socket.send(b"x")
    time.sleep(0.2)
    say(trying(end.socket.getpeername))
    say(trying(end.socket.getsockname)[0])


@case
def a_connection_that_is_reset_before_accept():
    server = listener()
    for program in "", "s.sendall(b'data'); time.sleep(0.05); ":
        gone = order("connect", server.getsockname()[1], program + "reset()")
        gone.recv(1)
        time.sleep(0.1)
        say(events(server, 0))
        server.settimeout(3)
        c, address = server.accept()
        c.setblocking(True)
        say(address[0], events(c), trying(c.getpeername), c.getsockname()[0])
        say(trying(c.recv, 3), trying(c.recv, 3), c.getsockopt(S, socket.SO_ERROR), trying(c.send, b"x"))
        c.close()
    # Those that wait behind it come as they came.
    ports = []
    for program in "reset()", "hold()", "reset()", "s.sendall(b'last'); hold()":
        ports.append(order("connect", server.getsockname()[1], program))
        time.sleep(0.1)
    say([(trying(c.getpeername) != "ENOTCONN", c.close()) for c, _ in (server.accept() for _ in ports)])
    server.setblocking(False)
    say(trying(server.accept))


@case
def close_while_another_thread_reads():
    for passive in True, False:
        end = End("time.sleep(0.4); s.sendall(b'late'); tell(s.recv(1) + b'end')", passive)
        got = []
        reader = thread(lambda: got.append(trying(end.socket.recv, 10)))
        time.sleep(0.1)
        os.close(end.socket.fileno())
        say(got)
        reader.join(3)
        say(got, end.told())
        end.socket.detach()


@case
def a_descriptor_is_replaced_and_its_reader_interrupted():
    """As Java's channels close."""
    end = End("tell(s.recv(1) + b'end')", False)
    marker, other = socket.socketpair()
    other.close()
    signal.signal(signal.SIGUSR1, lambda *_: None)
    number, got = end.socket.detach(), []
    LIBC.read.restype = ctypes.c_long
    # Python would read again.
    reader = thread(lambda: got.extend((raw(LIBC.read(number, ctypes.create_string_buffer(4), 4)), trying(os.read, number, 4))))
    time.sleep(0.1)
    os.dup2(marker.fileno(), number)
    time.sleep(0.1)
    say(got)
    signal.pthread_kill(reader.ident, signal.SIGUSR1)
    reader.join(3)
    say(got, end.told())


@case
def close_while_another_thread_writes():
    end = End("time.sleep(0.6); n = 0\nwhile piece := s.recv(1 << 20): n += len(piece)\ntell(b'%d' % n)", False)
    end.socket.setsockopt(S, socket.SO_SNDBUF, 10_000)
    sent = []
    writer = thread(lambda: sent.append(trying(os.write, end.socket.fileno(), bytes(20_000_000))))
    time.sleep(0.2)
    os.close(end.socket.fileno())
    say(sent)
    writer.join(5)
    say(sent, end.told())
    end.socket.detach()


@case
def time_outs_below_zero():
    negative = struct.pack("ll", -3, 0)
    end = End("s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096); hold()")
    end.socket.setsockopt(S, socket.SO_RCVTIMEO, negative)
    end.socket.setsockopt(S, socket.SO_SNDTIMEO, negative)
    say(end.socket.getsockopt(S, socket.SO_RCVTIMEO, 16).hex(), trying(end.socket.recv, 1))
    while isinstance(outcome := trying(end.socket.send, bytes(1 << 20)), int):
        pass
    say(outcome)
    end.socket.setsockopt(S, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
    say(trying(end.socket.recv, 1))
    number = port()
    quiet = full_queue(number, "take(1)")
    opening = socket.socket()
    opening.setsockopt(S, socket.SO_SNDTIMEO, negative)
    opening.setsockopt(S, socket.SO_RCVTIMEO, negative)
    say("connect", opening.connect_ex((PEER, number)), opening.getsockopt(S, socket.SO_SNDTIMEO, 16).hex())
    say(trying(opening.recv, 1))
    server = ends.bound(OWN, port())
    server.setsockopt(S, socket.SO_RCVTIMEO, negative)
    say(trying(server.accept))
    server.setsockopt(S, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
    server.setsockopt(S, socket.SO_RCVTIMEO, negative)
    say(trying(server.accept))
    quiet.socket.send(b"x")
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((OWN, 0))
    datagrams.setsockopt(S, socket.SO_RCVTIMEO, negative)
    say(trying(datagrams.recv, 1), trying(datagrams.recv, 1))


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.c_void_p), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]


class Mmsghdr(ctypes.Structure):
    _fields_ = [("header", Msghdr), ("length", ctypes.c_uint)]


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def several(descriptor, number, flags=0, timeout=None):
    """recvmmsg() into records of four bytes."""
    buffers = [ctypes.create_string_buffer(4) for _ in range(number)]
    vectors = [Iovec(ctypes.addressof(buffer), 4) for buffer in buffers]
    records = (Mmsghdr * number)(*[Mmsghdr(Msghdr(None, 0, ctypes.addressof(vector), 1, None, 0, 0), 77) for vector in vectors])
    outcome = raw(LIBC.recvmmsg(descriptor, records, number, flags, timeout and ctypes.byref(timeout)))
    if not isinstance(outcome, int):
        return outcome
    return [buffers[index].raw[:records[index].length] for index in range(outcome)]


@case
def recvmmsg_on_a_stream():
    end = End("s.sendall(b'abcdefghij'); take(1); time.sleep(0.2); s.sendall(b'klmnop'); take(1); s.shutdown(1); take(1); reset()")
    number = end.socket.fileno()
    time.sleep(0.1)
    say(several(number, 2))
    say(several(number, 5, 0x10000), several(number, 5, socket.MSG_DONTWAIT))
    end.socket.send(b"x")
    say(several(number, 2))
    time_out = Timespec(5, 0)
    end.socket.send(b"x")
    say(several(number, 3, 0, time_out), time_out.seconds < 5)
    say(several(number, 1, 0, Timespec(5, 2_000_000_000)))
    end = End("s.sendall(b'abcd'); take(1); reset()")
    end.socket.send(b"x")
    time.sleep(0.2)
    say(several(end.socket.fileno(), 3), several(end.socket.fileno(), 3), several(end.socket.fileno(), 3))


@case
def dup3_with_flags_that_there_are_not():
    end = End("s.sendall(take(4)); hold()")
    say(raw(LIBC.dup3(0, end.socket.fileno(), 0x777)))
    end.socket.sendall(b"echo")
    say(end.socket.recv(10), fcntl.fcntl(end.socket, fcntl.F_GETFD))
    say(raw(LIBC.dup3(0, 0, 0x777)), raw(LIBC.dup3(0, 0, 0)))


class PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


@case
def waiting_by_the_numbers_of_the_calls():
    ppoll, pselect6, epoll_pwait = {"x86_64": (271, 270, 281), "aarch64": (73, 72, 22)}[os.uname().machine]
    end = End("take(1); time.sleep(0.2); s.sendall(b'x'); hold()")
    number = end.socket.fileno()
    record, mask = PollFd(number, select.POLLIN, 0), ctypes.c_uint64(0)
    time_out = Timespec(5, 0)
    say("size", raw(LIBC.syscall(ppoll, ctypes.byref(record), 1, ctypes.byref(time_out), ctypes.byref(mask), 4)), time_out.seconds)
    time_out = Timespec(0, 20_000_000)
    say("over", raw(LIBC.syscall(ppoll, ctypes.byref(record), 1, ctypes.byref(time_out), None, 0)), time_out.nanoseconds)
    end.socket.send(b"x")
    time_out = Timespec(5, 0)
    say("ready", raw(LIBC.syscall(ppoll, ctypes.byref(record), 1, ctypes.byref(time_out), ctypes.byref(mask), 8)), time_out.seconds)
    # Of a set of descriptors, its first 1024 bits.
    words = (ctypes.c_uint64 * 16)()
    words[number // 64] |= 1 << number % 64

    class Mask(ctypes.Structure):
        _fields_ = [("address", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    time_out = Timespec(5, 0)
    sized = Mask(ctypes.addressof(mask), 8)
    say("ready", raw(LIBC.syscall(pselect6, number + 1, words, None, None, ctypes.byref(time_out), ctypes.byref(sized))), time_out.seconds)
    sized.length = 4
    say("size", raw(LIBC.syscall(pselect6, number + 1, words, None, None, ctypes.byref(time_out), ctypes.byref(sized))))
    sized.address = None
    say("no mask", raw(LIBC.syscall(pselect6, number + 1, words, None, None, ctypes.byref(time_out), ctypes.byref(sized))))
    end.socket.recv(1)
    time_out = Timespec(0, 20_000_000)
    say("over", raw(LIBC.syscall(pselect6, number + 1, words, None, None, ctypes.byref(time_out), None)), time_out.nanoseconds)
    # select(2) as glibc has it says what is left, too.
    left = (ctypes.c_long * 2)(0, 20_000)
    words[number // 64] |= 1 << number % 64
    say("select", raw(LIBC.select(number + 1, words, None, None, left)), list(left))
    epoll = select.epoll()
    epoll.register(end.socket, select.EPOLLIN)
    found = ctypes.create_string_buffer(64)
    say("size", raw(LIBC.syscall(epoll_pwait, epoll.fileno(), found, 4, 0, ctypes.byref(mask), ctypes.c_size_t(4))))
    say("none", raw(LIBC.syscall(epoll_pwait, epoll.fileno(), found, 4, 0, ctypes.byref(mask), ctypes.c_size_t(8))))


@case
def a_set_in_which_much_is_ready_at_once():
    watched = listener()
    events = select.epoll()
    events.register(watched, select.EPOLLIN)
    ready = [os.eventfd(1) for _ in range(300)]
    for one in ready:
        events.register(one, select.EPOLLIN)
    edges = [os.eventfd(1) for _ in range(200)]
    for one in edges:
        events.register(one, select.EPOLLIN | select.EPOLLET)
    for room in (150, 1000, 1000):
        found = [descriptor for descriptor, _ in events.poll(1, room)]
        say(room, len(found), len(set(found)))
    found = [descriptor for descriptor, _ in events.poll(1, 1000)]
    say(len(set(found) & set(ready)), len(set(found) & set(edges)))


@case
def time_stamps_with_identifiers():
    wanted = 1 << 1 | 1 << 4 | 1 << 7
    for name in 37, 65:
        for passive in True, False:
            end = End("s.sendall(take(5)); hold()", passive)
            say(trying(end.socket.setsockopt, S, name, wanted), end.socket.getsockopt(S, 37))
            end.socket.sendall(b"stamp")
            say(end.socket.recv(5), events(end.socket, 500, 0))
            control = end.socket.recvmsg(10, 512, socket.MSG_ERRQUEUE)[1]
            say(sorted((level, kind) for level, kind, _ in control))
    number = port()
    quiet = full_queue(number, "time.sleep(0.4); h.accept(); hold()")
    opening = socket.socket()
    opening.setblocking(False)
    say(opening.connect_ex((PEER, number)), trying(opening.setsockopt, S, 37, wanted))
    say(events(opening, 3000, select.POLLOUT), opening.getsockopt(S, 37), opening.send(b"x"))
    say(events(opening, 500, 0))
    quiet.socket.close()
    say(trying(socket.socket().setsockopt, S, 37, wanted))


@case
def a_time_out_for_what_the_peer_never_ends():
    end = End("time.sleep(2.5); s.shutdown(1); time.sleep(0.2); tell(b'%d' % s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))")
    end.socket.setsockopt(T, socket.TCP_LINGER2, 1)
    end.socket.close()
    say(errno.errorcode[int(end.told())])


@case
def attempts_to_connect():
    number = port()
    quiet = full_queue(number, "hold()")
    opening = socket.socket()
    opening.setsockopt(T, 7, 1)
    began = time.monotonic()
    say(errno.errorcode[opening.connect_ex((PEER, number))], 2 < time.monotonic() - began < 6)
    quiet.socket.close()


@case
def a_connect_that_waits_for_data():
    """The peer's cookie is known after the first connection."""
    for _ in range(2):
        number = port()
        order("listen", number, "s.sendall(take(5)); hold()")
        first = socket.socket()
        first.setsockopt(T, 30, 1)
        first.connect((PEER, number))
        first.send(b"hello")
        say(first.recv(5))
        first.close()
    later = socket.socket()
    later.setsockopt(T, 30, 1)
    say(trying(later.connect, (PEER, 6599)), trying(later.send, b"x"))


@case
def what_has_come_is_counted():
    end = End("s.sendall(b'12345'); take(1); s.sendall(b'67890'); take(1); s.sendall(b'abc'); hold()")
    waiting = lambda: struct.unpack("i", fcntl.ioctl(end.socket, termios.FIONREAD, bytes(4)))[0]
    time.sleep(0.1)
    say(waiting())
    end.socket.send(b"x")
    time.sleep(0.1)
    say(waiting(), end.socket.recv(100, socket.MSG_PEEK))
    end.socket.send(b"x")
    time.sleep(0.1)
    say(end.socket.recv(100, socket.MSG_PEEK), waiting())


@case
def what_is_known_of_the_path():
    for passive in True, False:
        end = End("hold()", passive)
        say(struct.unpack_from("I", end.socket.getsockopt(T, socket.TCP_INFO, 256), 60)[0])


def bind_again(number):
    """What bind() to a port that something else has, or listen() then, says: without SO_REUSEADDR, and with it."""
    said = []
    for reuses in 0, 1:
        with socket.socket() as other:
            other.setsockopt(S, socket.SO_REUSEADDR, reuses)
            said.append(trying(other.bind, (OWN, number)) or trying(other.listen) or "free")
    return " ".join(said)


def server_with(reuses):
    server = socket.socket()
    server.setsockopt(S, socket.SO_REUSEADDR, reuses)
    server.bind((OWN, port()))
    server.listen()
    return ends.look(server)


@case
def a_port_that_connections_have():
    for reuses in 0, 1:
        # Accepted: while it is open, in FIN-WAIT-2, and in TIME-WAIT.
        server = server_with(reuses)
        number = server.getsockname()[1]
        control = order("connect", number, "take(1); tell(b'.'); hold()")
        connection, _ = server.accept()
        say("listening", reuses, bind_again(number))
        server.close()
        say("accepted", reuses, bind_again(number))
        connection.send(b"x")
        control.recv(1)
        connection.shutdown(socket.SHUT_WR)
        say("half closed", reuses, bind_again(number))
        connection.close()
        time.sleep(0.05)
        say("closed", reuses, bind_again(number))
        control.close()
        time.sleep(0.1)
        say("time-wait", reuses, bind_again(number))


@case
def a_port_whose_connection_the_peer_has_closed():
    for reuses in 0, 1:
        server = server_with(reuses)
        number = server.getsockname()[1]
        control = order("connect", number, "s.close(); tell(b'.'); hold()")
        connection, _ = server.accept()
        server.close()
        control.recv(1)
        say(connection.recv(1), reuses, bind_again(number))
        connection.close()
        time.sleep(0.1)
        say("gone", reuses, bind_again(number))
        control.close()


@case
def a_port_that_connects():
    for bound in False, True:
        for reuses in 0, 1:
            number = port()
            control = order("listen", number, "take(1); tell(b'.'); hold()")
            end = socket.socket()
            end.setsockopt(S, socket.SO_REUSEADDR, reuses)
            if bound:
                end.bind((OWN, port()))
            end.connect((PEER, number))
            own = end.getsockname()[1]
            say("open", bound, reuses, bind_again(own))
            end.send(b"x")
            control.recv(1)
            end.close()
            time.sleep(0.05)
            say("closed", bound, reuses, bind_again(own))
            control.close()
            time.sleep(0.1)
            say("time-wait", bound, reuses, bind_again(own))


@case
def a_port_in_time_wait_connects_again():
    for reuses in 0, 1:
        number, own = port(), port()
        for turn in 1, 2:
            control = order("listen", number, "s.recv(1); tell(b'.')")
            end = socket.socket()
            end.setsockopt(S, socket.SO_REUSEADDR, reuses)
            said = trying(end.bind, (OWN, own)) or trying(end.connect, (PEER, number)) or "free"
            say(turn, reuses, said)
            end.close()
            if said == "free":
                control.recv(1)
            else:
                with socket.create_connection((PEER, number)):
                    pass
            time.sleep(0.05)


def main():
    chosen = sys.argv[3:]
    for index, function in enumerate(CASES):
        next_port[0] = 9000 + 200 * index
        if chosen and function.__name__ not in chosen:
            continue
        say(f"{function.__name__}:")

        def work():
            signal.alarm(PATIENCE_S)
            function()

        pid = ends.child(work)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            say("ends with", status)
    say("done")


main()
