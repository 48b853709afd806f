"""One end of generated sequences of calls: does what it is told, call by call, and says what each call said.

usage: sequences.py     (orders come from standard input; tests/sequences.rs gives them)

`begin PATH SIDE OWN PEER BASE UNIT` forks a process for one sequence, whose actor says its name and process at the Unix socket PATH and then takes
one step a line, which it answers with one line; `end` kills it, with its threads and children. Ports are BASE and a digit: 0 to 4 are
listened at by side L, 5 to 9 by side R. UNIT is what everything takes its patience from, in milliseconds.
The calls go straight to libc: Python neither repeats nor refuses any.
"""
import ctypes
import errno
import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import zlib

LIBC = ctypes.CDLL(None, use_errno=True)
for name in "recv", "send", "recvmsg", "sendmsg", "readv", "writev":
    getattr(LIBC, name).restype = ctypes.c_long

S, T = socket.SOL_SOCKET, socket.IPPROTO_TCP
F_GETFL, F_SETFL = 3, 4
FIONREAD, SIOCOUTQ = 0x541B, 0x5411
EVENTS = {"I": 1, "P": 2, "O": 4, "R": 0x2000, "E": 1 << 31, "1": 1 << 30, "X": 1 << 28}
SHOWN = [(1, "IN"), (2, "PRI"), (4, "OUT"), (8, "ERR"), (16, "HUP"), (32, "NVAL"), (0x2000, "RDHUP")]
FLAGS = {"-": 0, "d": socket.MSG_DONTWAIT, "p": socket.MSG_PEEK, "w": socket.MSG_WAITALL, "t": socket.MSG_TRUNC}
STATES = dict(enumerate("- ESTABLISHED SYN_SENT SYN_RECV FIN_WAIT1 FIN_WAIT2 TIME_WAIT CLOSE CLOSE_WAIT LAST_ACK LISTEN CLOSING".split()))
NO_DESCRIPTOR = 900
PR_SET_CHILD_SUBREAPER = 36


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.c_void_p), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]


class PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class Event(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]


def call(name, *arguments):
    """The call's result, or its error's name."""
    ctypes.set_errno(0)
    result = getattr(LIBC, name)(*arguments)
    number = ctypes.get_errno()
    return result if result >= 0 else errno.errorcode.get(number, f"errno {number}")


def events(bits):
    return "+".join(name for bit, name in SHOWN if bits & bit) or "-"


def wanted(letters):
    return sum(EVENTS[letter] for letter in letters if letter != "-")


def flags(letters):
    return sum(FLAGS[letter] for letter in letters)


def pieces(*lengths):
    """Buffers, and the vectors that point at them."""
    buffers = [ctypes.create_string_buffer(max(length, 1)) for length in lengths]
    vectors = (Iovec * len(lengths))(*[Iovec(ctypes.addressof(buffer), length) for buffer, length in zip(buffers, lengths)])
    return buffers, vectors


def digest(data):
    """Short ones as they are, which tells the step that sent them."""
    return data.hex() if len(data) <= 8 else f"{data[:2].hex()}..{data[-2:].hex()} {zlib.crc32(data):08x}"


class Actor:
    """What carries out steps one after the other: a thread, or a process's first one. Threads share `slots`."""

    def __init__(self, name, sequence, slots):
        self.name, self.sequence, self.slots = name, sequence, slots
        self.step = 0

    def work(self):
        try:
            self.follow()
        except OSError:
            pass  # who gives the steps has gone, maybe with an answer unread
        os._exit(0)

    def follow(self):
        """Takes steps until there are no more."""
        control = socket.socket(socket.AF_UNIX)
        control.connect(self.sequence.path)
        self.sequence.controls.append(control)
        control.sendall(f"{self.name} {os.getpid()}\n".encode())
        for line in control.makefile():
            number, word, *arguments = line.split()
            self.step = int(number)
            try:
                said = getattr(self, word)(*arguments)
            except Exception as error:
                # Of this script's own.
                said = f"FAULT {error!r}"
            control.sendall(f"{said}\n".encode())

    def fd(self, slot):
        return self.slots.get(slot, NO_DESCRIPTOR + ord(slot))

    def into(self, slot, result):
        """A new descriptor: its number says nothing."""
        if not isinstance(result, int):
            return result
        self.slots[slot] = result
        return "new"

    # ---- sockets ----

    def socket(self, slot, how):
        kind = socket.SOCK_STREAM | (socket.SOCK_NONBLOCK if how == "n" else 0)
        result = call("socket", self.sequence.family, kind, 0)
        said = self.into(slot, result)
        # Nagle's and the peer's delayed acknowledgment would make any step's data come at the next one's time.
        one = ctypes.c_int(1)
        call("setsockopt", self.fd(slot), T, socket.TCP_NODELAY, ctypes.byref(one), 4)
        call("setsockopt", self.fd(slot), S, socket.SO_REUSEADDR, ctypes.byref(one), 4)
        return said

    def bind(self, slot, port):
        address = self.sequence.address(self.sequence.own, port)
        return call("bind", self.fd(slot), address, len(address))

    def listen(self, slot, backlog):
        return call("listen", self.fd(slot), int(backlog))

    def connect(self, slot, port):
        address = self.sequence.address(self.sequence.host_of(port), port)
        return call("connect", self.fd(slot), address, len(address))

    def unconnect(self, slot):
        return call("connect", self.fd(slot), ctypes.create_string_buffer(16), 16)

    def accept(self, slot, new, how):
        return self.into(new, call("accept4", self.fd(slot), None, None, socket.SOCK_NONBLOCK if how == "n" else 0))

    def shutdown(self, slot, how):
        return call("shutdown", self.fd(slot), int(how))

    def close(self, slot):
        """The number is tried once more, before anybody else can have it."""
        fd = self.fd(slot)
        self.slots.pop(slot, None)
        buffer = ctypes.create_string_buffer(1)
        return f"{call('close', fd)}, then {call('recv', fd, buffer, 1, socket.MSG_DONTWAIT)}"

    def dup(self, slot, new):
        return self.into(new, call("dup", self.fd(slot)))

    def nonblock(self, slot, on):
        fd = self.fd(slot)
        now = call("fcntl", fd, F_GETFL, 0)
        if not isinstance(now, int):
            return now
        return call("fcntl", fd, F_SETFL, now | os.O_NONBLOCK if on == "1" else now & ~os.O_NONBLOCK)

    # ---- data ----

    def data(self, length):
        """Every step sends bytes of its own."""
        first = self.step * 37 % 256
        return (bytes(range(256)) * (length // 256 + 2))[first:first + length]

    def send(self, slot, length, letters):
        data = self.data(int(length))
        result = call("send", self.fd(slot), data, ctypes.c_size_t(len(data)), flags(letters))
        # Of more than any queue holds some went, or none, if it ended early: how much, is each stack's own affair.
        some = result == "EAGAIN" or isinstance(result, int) and 0 < result < len(data)
        return "some" if len(data) > 1_000_000 and some else result

    def writev(self, slot, *lengths):
        data = self.data(sum(map(int, lengths)))
        buffers, vectors = pieces(*map(int, lengths))
        for buffer, length in zip(buffers, map(int, lengths)):
            ctypes.memmove(buffer, data[:length], length)
            data = data[length:]
        return call("writev", self.fd(slot), vectors, len(vectors))

    def sendmsg(self, slot, length, letters):
        data = self.data(int(length))
        buffers, vectors = pieces(len(data))
        ctypes.memmove(buffers[0], data, len(data))
        header = Msghdr(None, 0, ctypes.addressof(vectors), 1, None, 0, 0)
        return call("sendmsg", self.fd(slot), ctypes.byref(header), flags(letters))

    def recv(self, slot, length, letters):
        room = int(length)
        buffer = ctypes.create_string_buffer(max(room, 1))
        result = call("recv", self.fd(slot), buffer, ctypes.c_size_t(room), flags(letters))
        if not isinstance(result, int) or "t" in letters:
            return result
        return f"{result} {digest(buffer.raw[:result])}"

    def readv(self, slot, *lengths):
        buffers, vectors = pieces(*map(int, lengths))
        result = call("readv", self.fd(slot), vectors, len(vectors))
        if not isinstance(result, int):
            return result
        data = b"".join(buffer.raw[:int(length)] for buffer, length in zip(buffers, lengths))
        return f"{result} {digest(data[:result])}"

    def recvmsg(self, slot, length, letters):
        buffers, vectors = pieces(int(length))
        header = Msghdr(None, 0, ctypes.addressof(vectors), 1, None, 0, 0)
        result = call("recvmsg", self.fd(slot), ctypes.byref(header), flags(letters))
        if not isinstance(result, int):
            return result
        return f"{result} {digest(buffers[0].raw[:result])} flags {header.flags:#x}"

    def until_quiet(self, move):
        """Repeats a call that does not wait, until it has nothing to do for a while; what it says instead."""
        quiet = 0
        for _ in range(10_000):
            result = move()
            if result == "EAGAIN" and quiet < 5:
                quiet += 1
                time.sleep(self.sequence.timer_ms / 7_500)
            elif not isinstance(result, int) or result == 0:
                return result
            else:
                quiet = 0
        return "no end"

    def fill(self, slot):
        """Until the queues of both ends are full. How much that is, is each stack's own affair."""
        data, room = bytes(1 << 16), ctypes.c_int(20_000)
        call("setsockopt", self.fd(slot), S, socket.SO_SNDBUF, ctypes.byref(room), 4)
        return self.until_quiet(lambda: call("send", self.fd(slot), data, ctypes.c_size_t(len(data)), socket.MSG_DONTWAIT))

    def drain(self, slot):
        """Until nothing more comes."""
        buffer = ctypes.create_string_buffer(1 << 16)
        return self.until_quiet(lambda: call("recv", self.fd(slot), buffer, ctypes.c_size_t(len(buffer)), socket.MSG_DONTWAIT))

    # ---- waiting ----

    def time_out(self, letter):
        return {"0": 0, "-": -1, "+": self.sequence.timer_ms}[letter]

    def timed(self, function):
        """What it says, and whether that took until a timer rang."""
        began = time.monotonic()
        said = function()
        took_ms = (time.monotonic() - began) * 1000
        return f"{said} {'at once' if took_ms < self.sequence.timer_ms / 2 else 'after the timer'}"

    def poll(self, slot, letters, until):
        record = PollFd(self.fd(slot), wanted(letters), 0)

        def run():
            result = call("poll", ctypes.byref(record), 1, self.time_out(until))
            return f"{result} {events(record.revents & 0xffff)}"

        return self.timed(run) if until == "+" else run()

    def epoll(self, slot):
        return self.into(slot, call("epoll_create1", 0))

    def ctl(self, slot, how, of, letters):
        record = Event(wanted(letters) & 0xffffffff, ord(of))
        return call("epoll_ctl", self.fd(slot), {"add": 1, "del": 2, "mod": 3}[how], self.fd(of), ctypes.byref(record))

    def wait(self, slot, until):
        records = (Event * 8)()

        def run():
            result = call("epoll_wait", self.fd(slot), records, 8, self.time_out(until))
            if not isinstance(result, int):
                return result
            found = sorted((chr(records[index].data), events(records[index].events)) for index in range(result))
            return " ".join([str(result)] + [f"{of}:{bits}" for of, bits in found])

        return self.timed(run) if until == "+" else run()

    def patient(self, what, slot, argument):
        """A call with a time-out of its own (SO_RCVTIMEO)."""
        limit = struct.pack("ll", *divmod(self.sequence.timer_ms * 1000, 1_000_000))
        call("setsockopt", self.fd(slot), S, socket.SO_RCVTIMEO, limit, 16)
        said = self.timed(lambda: self.recv(slot, argument, "-") if what == "recv" else self.accept(slot, argument, "n"))
        call("setsockopt", self.fd(slot), S, socket.SO_RCVTIMEO, bytes(16), 16)
        return said

    # ---- what there is to see, and to set ----

    def number(self, slot, request):
        number = ctypes.c_int(-1)
        result = call("ioctl", self.fd(slot), ctypes.c_ulong(request), ctypes.byref(number))
        return number.value if result == 0 else result

    def option(self, slot, level, name, length=4):
        buffer, room = ctypes.create_string_buffer(256), ctypes.c_uint(length)
        result = call("getsockopt", self.fd(slot), level, name, buffer, ctypes.byref(room))
        return buffer.raw[:room.value] if result == 0 else result

    def integer(self, slot, level, name):
        found = self.option(slot, level, name)
        return struct.unpack("i", found)[0] if isinstance(found, bytes) else found

    def get(self, slot, what):
        return getattr(self, "get_" + what)(slot)

    def get_error(self, slot):
        number = self.integer(slot, S, socket.SO_ERROR)
        return errno.errorcode.get(number, number) if isinstance(number, int) else number

    def get_state(self, slot):
        found = self.option(slot, T, socket.TCP_INFO, 104)
        return STATES[found[0]] if isinstance(found, bytes) else found

    def get_listens(self, slot):
        return self.integer(slot, S, socket.SO_ACCEPTCONN)

    def get_queued(self, slot):
        return self.number(slot, FIONREAD)

    def get_unsent(self, slot):
        """What is under way may wait for a delayed acknowledgment."""
        end = time.monotonic() + self.sequence.timer_ms * 2 / 1000
        while (found := self.number(slot, SIOCOUTQ)) not in (0, "EBADF", "EINVAL", "ENOTTY") and time.monotonic() < end:
            time.sleep(0.002)
        return found

    def get_flags(self, slot):
        found = call("fcntl", self.fd(slot), F_GETFL, 0)
        return f"{found & ~0o100000:#o}" if isinstance(found, int) else found

    def name_of(self, slot, which):
        buffer, length = ctypes.create_string_buffer(64), ctypes.c_uint(64)
        result = call(which, self.fd(slot), buffer, ctypes.byref(length))
        return f"{length.value} {'port' if buffer.raw[2:4] != bytes(2) else 'no port'}" if result == 0 else result

    def get_peer(self, slot):
        return self.name_of(slot, "getpeername")

    def get_name(self, slot):
        return self.name_of(slot, "getsockname")

    def set(self, slot, what, number):
        level, name = {"linger": (S, socket.SO_LINGER), "lowat": (S, socket.SO_RCVLOWAT), "keepalive": (S, socket.SO_KEEPALIVE)}[what]
        # Lingering for no time: close() resets.
        value = struct.pack("ii", int(number), 0) if what == "linger" else struct.pack("i", int(number))
        return call("setsockopt", self.fd(slot), level, name, value, len(value))

    # ---- threads and processes ----

    def thread(self):
        """`M` beside `L`, `S` beside `R`."""
        other = Actor({"L": "M", "R": "S"}[self.name], self.sequence, self.slots)
        threading.Thread(target=other.work, daemon=True).start()
        return "started"

    def fork(self):
        """`C` of `L`, `D` of `R`: what is open it has as well."""
        pid = os.fork()
        if pid == 0:
            # Who hangs up there has gone.
            while self.sequence.controls:
                self.sequence.controls.pop().close()
            Actor({"L": "C", "R": "D"}[self.name], self.sequence, dict(self.slots)).work()
        return "forked"

    def exit(self):
        os._exit(0)


class Sequence:
    """What all actors of one side have in common."""

    def __init__(self, path, side, own, peer, base, unit_ms):
        self.path, self.side, self.own, self.peer, self.base = path, side, own, peer, int(base)
        self.timer_ms = int(unit_ms) * 15
        self.controls = []
        self.family = socket.AF_INET6 if ":" in own else socket.AF_INET

    def host_of(self, port):
        return self.own if (int(port) < 5) == (self.side == "L") else self.peer

    def address(self, host, port):
        raw, number = socket.inet_pton(self.family, host), socket.htons(self.base + int(port))
        if self.family == socket.AF_INET:
            record = struct.pack("=HH4s8x", self.family, number, raw)
        else:
            record = struct.pack("=HHI16sI", self.family, number, 0, raw, 0)
        return ctypes.create_string_buffer(record, len(record))


def play(path, side, *more):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        Actor(side, Sequence(path, side, *more), {}).work()
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # it has done so itself
    return pid


def stop(pid):
    """The process, and its children with it."""
    os.killpg(pid, signal.SIGKILL)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Children of a process that was killed are ours to reap.
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A collection would copy what a process has in common with this one.
    gc.disable()
    playing = None
    for line in sys.stdin:
        word, *arguments = line.split()
        if word == "begin":
            playing = play(*arguments)
        else:
            stop(playing)
            playing = None
            try:
                print("ended", flush=True)
            except BrokenPipeError:
                os._exit(0)
    if playing:
        stop(playing)


main()
