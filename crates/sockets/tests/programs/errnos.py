"""Walks through calls and states of TCP sockets, and prints what each call says and what it leaves behind.

usage: errnos.py OWN-ADDRESS PEER-ADDRESS [STATE...]

One line for each state and call: `STATE | CALL | what it said | what poll, epoll, SO_ERROR, FIONREAD and SIOCOUTQ say then`.
The calls go straight to libc: Python neither repeats nor refuses any.
"""
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time

import ends

OWN, PEER = sys.argv[1:3]
FAMILY = socket.AF_INET6 if ":" in OWN else socket.AF_INET
LIBC = ctypes.CDLL(None, use_errno=True)
for name in "read", "write", "recv", "send", "recvfrom", "sendto", "recvmsg", "sendmsg", "readv", "writev", "preadv2", \
        "pwritev2", "sendfile", "splice", "lseek", "pread", "pwrite", "dprintf":
    getattr(LIBC, name).restype = ctypes.c_long

POLL = [(1, "IN"), (2, "PRI"), (4, "OUT"), (8, "ERR"), (16, "HUP"), (32, "NVAL"), (64, "RDNORM"), (128, "RDBAND"), (256, "WRNORM"),
        (512, "WRBAND"), (0x2000, "RDHUP")]
ALL_EVENTS = 1 | 2 | 4 | 64 | 128 | 256 | 512 | 0x2000
FIONREAD, SIOCOUTQ, SIOCATMARK, FIONBIO, SIOCINQ = 0x541B, 0x5411, 0x8905, 0x5421, 0x541B
MSG_ZEROCOPY, MSG_FASTOPEN, MSG_NOSIGNAL = 0x4000000, 0x20000000, 0x4000
RWF_NOWAIT, RWF_APPEND = 8, 16
FIN_WAIT1, LAST_ACK, CLOSING = 4, 9, 11

pipes = []
signal.signal(signal.SIGPIPE, lambda *_: pipes.append(1))


def events(bits):
    return "+".join(name for bit, name in POLL if bits & bit) or "-"


def said(result):
    number = ctypes.get_errno()
    text = str(result) if result >= 0 else errno.errorcode.get(number, str(number))
    if pipes:
        text += " SIGPIPE"
        pipes.clear()
    return text


def call(name, *arguments):
    ctypes.set_errno(0)
    return getattr(LIBC, name)(*arguments)


# ---- what there is to see of a socket ----


class PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class Event(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]


def polled(fd, wait=0, wanted=ALL_EVENTS):
    record = PollFd(fd, wanted, 0)
    LIBC.poll(ctypes.byref(record), 1, wait)
    return record.revents & 0xffff


def epolled(fd):
    if not fd_is_open(fd):
        # The set would get its number.
        return "closed"
    epoll = LIBC.epoll_create1(0)
    record = Event(ALL_EVENTS, 1)
    ctypes.set_errno(0)
    if LIBC.epoll_ctl(epoll, 1, fd, ctypes.byref(record)) < 0:
        text = said(-1)
    else:
        found = Event(0, 0)
        text = events(found.events) if LIBC.epoll_wait(epoll, ctypes.byref(found), 1, 0) > 0 else "-"
    os.close(epoll)
    return text


def queued(fd, request):
    number = ctypes.c_int(-1)
    result = call("ioctl", fd, ctypes.c_ulong(request), ctypes.byref(number))
    return str(number.value) if result == 0 else said(result)


def integer(fd, level, name):
    number, length = ctypes.c_int(-77), ctypes.c_uint(4)
    result = call("getsockopt", fd, level, name, ctypes.byref(number), ctypes.byref(length))
    return f"{number.value}/{length.value}" if result == 0 else said(result)


def error_of(fd):
    number, length = ctypes.c_int(-77), ctypes.c_uint(4)
    result = call("getsockopt", fd, socket.SOL_SOCKET, socket.SO_ERROR, ctypes.byref(number), ctypes.byref(length))
    return errno.errorcode.get(number.value, str(number.value)) if result == 0 else said(result)


def after(fd, moved, patience):
    """What the socket looks like when everything that is under way has arrived; on a busy machine that takes its time."""
    if moved:
        time.sleep(0.003)
    end = time.monotonic() + patience
    while queued(fd, SIOCOUTQ) not in ("0", "EBADF", "EINVAL", "ENOTTY") and not polled(fd) & 16 and time.monotonic() < end and not full:
        time.sleep(0.001)
    found = polled(fd)
    first = events(found)
    # What never arrived is no news once the connection is over.
    outq = "full" if full else "over" if found & 16 else queued(fd, SIOCOUTQ)
    return f"{first} {epolled(fd)} {error_of(fd)} {error_of(fd)} {queued(fd, FIONREAD)} {outq}"


def tcp_state(fd):
    """Of TCP_INFO, as the kernel's numbers."""
    buffer, length = ctypes.create_string_buffer(300), ctypes.c_uint(300)
    return buffer.raw[0] if call("getsockopt", fd, socket.IPPROTO_TCP, socket.TCP_INFO, buffer, ctypes.byref(length)) == 0 else 0


def settle(fd):
    """Until the peer has acknowledged the FIN: POLLHUP does not wait for that, and what calls say depends on it."""
    end = time.monotonic() + 5
    while tcp_state(fd) in (FIN_WAIT1, LAST_ACK, CLOSING) and time.monotonic() < end and not full:
        time.sleep(0.0005)


# ---- the calls ----

DATA = ctypes.create_string_buffer(b"x" * 64)


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.c_void_p), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]


def sockaddr(host, port, family=None):
    family = family or FAMILY
    if family == socket.AF_INET:
        record = struct.pack("=HHI8x", family, socket.htons(port), struct.unpack("=I", socket.inet_pton(family, host))[0])
    else:
        record = struct.pack("=HHI16sI", family, socket.htons(port), 0, socket.inet_pton(family, host), 0)
    return ctypes.create_string_buffer(record, len(record))


def recv(flags, length=4):
    def run(fd):
        buffer = ctypes.create_string_buffer(64)
        result = call("recv", fd, buffer, length, flags)
        text = said(result)
        return text + (f" {buffer.raw[:min(result, length)]!r}" if result > 0 and not flags & socket.MSG_TRUNC else "")
    return run


def send(flags, length=1):
    return lambda fd: said(call("send", fd, DATA, ctypes.c_size_t(length), flags))


def message(sending, flags=0, control=None, name=None, vectors=1):
    def run(fd):
        buffer = ctypes.create_string_buffer(8)
        vector = (Iovec * 2)(Iovec(ctypes.addressof(buffer), 2), Iovec(ctypes.addressof(buffer) + 2, 2))
        room = ctypes.create_string_buffer(control or b"", max(len(control or b""), 1))
        address = ctypes.create_string_buffer(name, len(name)) if name else None
        header = Msghdr(ctypes.addressof(address) if address else None, len(name) if name else 0, ctypes.addressof(vector), vectors,
                        ctypes.addressof(room) if control else None, len(control or b""), 0)
        result = call("sendmsg" if sending else "recvmsg", fd, ctypes.byref(header), flags)
        text = said(result)
        if result >= 0 and not sending:
            text += f" {buffer.raw[:result]!r} name {header.namelen} control {header.controllen} flags {header.flags:#x}"
        return text
    return run


def receive_from(fd):
    buffer, address, length = ctypes.create_string_buffer(8), ctypes.create_string_buffer(32), ctypes.c_uint(32)
    return said(call("recvfrom", fd, buffer, ctypes.c_size_t(3), 0, address, ctypes.byref(length))) + f" {length.value}"


def name_of(call_name):
    def run(fd):
        buffer, length = ctypes.create_string_buffer(64), ctypes.c_uint(64)
        result = call(call_name, fd, buffer, ctypes.byref(length))
        if result < 0:
            return said(result)
        family = struct.unpack("=H", buffer.raw[:2])[0]
        port = socket.ntohs(struct.unpack("=H", buffer.raw[2:4])[0])
        address = buffer.raw[4:8] if family == socket.AF_INET else buffer.raw[8:24]
        return f"{length.value} {socket.inet_ntop(family, address)} {'port' if port else 'no port'}"
    return run


def short_name_of(call_name):
    def run(fd):
        buffer, length = ctypes.create_string_buffer(64), ctypes.c_uint(5)
        result = call(call_name, fd, buffer, ctypes.byref(length))
        return f"{said(result)} {length.value} {buffer.raw[5:8]!r}"
    return run


def negative_name_of(call_name):
    def run(fd):
        buffer, length = ctypes.create_string_buffer(64), ctypes.c_int(-1)
        return said(call(call_name, fd, buffer, ctypes.byref(length)))
    return run


def connect_to(address):
    return lambda fd: said(call("connect", fd, address, len(address)))


def slowly(function, fd):
    text = function(fd)
    time.sleep(0.01)
    return text


def accept(call_name, *more):
    def run(fd):
        address, length = ctypes.create_string_buffer(64), ctypes.c_uint(64)
        result = call(call_name, fd, address, ctypes.byref(length), *more)
        if result < 0:
            return said(result)
        text = f"accepted {length.value} {LIBC.fcntl(result, 3, 0) & os.O_NONBLOCK} {LIBC.fcntl(result, 1, 0)} {events(polled(result))}"
        os.close(result)
        return text
    return run


def read_option(level, name, length=4, shown=True):
    def run(fd):
        buffer, room = ctypes.create_string_buffer(512), ctypes.c_uint(length)
        result = call("getsockopt", fd, level, name, buffer, ctypes.byref(room))
        if result < 0:
            return said(result)
        return f"{room.value}" + (f" {buffer.raw[:room.value].hex()}" if shown else "")
    return run


def set_option(level, name, value, shown=True):
    """Sets it and says what it is then."""
    value = struct.pack("i", value) if isinstance(value, int) else value

    def run(fd):
        buffer = ctypes.create_string_buffer(value, max(len(value), 1))
        text = said(call("setsockopt", fd, level, name, buffer, len(value)))
        return text + (" then " + read_option(level, name, 16)(fd) if shown else "")
    return run


def sendfile(fd):
    with tempfile.TemporaryFile() as file:
        file.write(b"file")
        file.flush()
        offset = ctypes.c_long(1)
        return said(call("sendfile", fd, file.fileno(), ctypes.byref(offset), ctypes.c_size_t(2))) + f" {offset.value}"


def splice(to_socket):
    def run(fd):
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        if to_socket:
            os.write(writing, b"pipe")
            text = said(call("splice", reading, None, fd, None, ctypes.c_size_t(2), 2))
        else:
            text = said(call("splice", fd, None, writing, None, ctypes.c_size_t(2), 2))
        os.close(reading)
        os.close(writing)
        return text
    return run


def vectors(name, count, *more):
    def run(fd):
        buffer = ctypes.create_string_buffer(16)
        vector = (Iovec * 4)(*[Iovec(ctypes.addressof(buffer) + 2 * index, 1) for index in range(4)])
        return said(call(name, fd, vector, count, *more))
    return run


def at(offset, flags):
    return ctypes.c_long(offset), flags


def ioctl(request):
    """How much a full queue holds is each stack's own affair."""
    return lambda fd: "full" if full else queued(fd, request)


def flags_of(fd):
    return f"{LIBC.fcntl(fd, 3, 0) & ~0o100000:#o}"


def shut_then_use(how):
    """What is left of each direction."""
    def run(fd):
        text = said(call("shutdown", fd, how))
        time.sleep(0.002)
        settle(fd)
        return f"{text}, {recv(socket.MSG_DONTWAIT)(fd)}, {send(socket.MSG_DONTWAIT)(fd)}, {said(call('shutdown', fd, how))}"
    return run


def close_it(fd):
    other = LIBC.dup(fd)
    text = f"{said(call('close', fd))} {said(call('close', fd))} {said(call('recv', fd, DATA, 1, 0))}"
    if other >= 0:
        os.dup2(other, fd)
        os.close(other)
    return text


S, T, I = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP
ELSEWHERE = sockaddr(PEER, 6999)
UNSPECIFIED = ctypes.create_string_buffer(16)
WRONG = sockaddr("::1", 80, socket.AF_INET6) if FAMILY == socket.AF_INET else sockaddr("127.0.0.1", 80, socket.AF_INET)
RIGHTS = struct.pack("=QiiI4x", 20, S, 1, 0)
STRANGE = struct.pack("=QiiI4x", 20, 77, 1, 0)

CALLS = {
    "nothing": lambda fd: "",
    "recv": recv(0),
    "read nothing": lambda fd: said(call("read", fd, DATA, ctypes.c_size_t(0))),
    "recv peek": recv(socket.MSG_PEEK),
    "recv trunc": recv(socket.MSG_TRUNC),
    "recv trunc peek": recv(socket.MSG_TRUNC | socket.MSG_PEEK),
    "recv nothing": recv(0, 0),
    "recv oob": recv(socket.MSG_OOB),
    "recv errqueue": recv(socket.MSG_ERRQUEUE),
    "recv dontwait waitall": recv(socket.MSG_DONTWAIT | socket.MSG_WAITALL, 8),
    "recv cmsg_cloexec": recv(0x40000000),
    "recv twice": lambda fd: f"{recv(0)(fd)}, {recv(0)(fd)}",
    "recvfrom": receive_from,
    "recvmsg": message(False),
    "recvmsg errqueue": message(False, socket.MSG_ERRQUEUE),
    "recvmsg two": message(False, 0, b"\0" * 64, b"\0" * 16, 2),
    "recvmsg many": message(False, 0, None, None, 2000),
    "read": lambda fd: said(call("read", fd, ctypes.create_string_buffer(8), 4)),
    "readv": vectors("readv", 4),
    "readv none": vectors("readv", 0),
    "readv negative": vectors("readv", -1),
    "readv many": vectors("readv", 1025),
    "preadv2": vectors("preadv2", 4, *at(-1, 0)),
    "preadv2 nowait": vectors("preadv2", 4, *at(-1, RWF_NOWAIT)),
    "preadv2 none": vectors("preadv2", 0, *at(-1, RWF_NOWAIT)),
    "preadv2 many": vectors("preadv2", 1025, *at(-1, RWF_NOWAIT)),
    "preadv2 at": vectors("preadv2", 4, *at(0, 0)),
    "preadv2 flags": vectors("preadv2", 4, *at(-1, 1 << 20)),
    "write": lambda fd: said(call("write", fd, DATA, 1)),
    "write nothing": lambda fd: said(call("write", fd, DATA, 0)),
    "writev": vectors("writev", 4),
    "writev none": vectors("writev", 0),
    "writev negative": vectors("writev", -1),
    "pwritev2": vectors("pwritev2", 4, *at(-1, 0)),
    "pwritev2 nowait": vectors("pwritev2", 4, *at(-1, RWF_NOWAIT)),
    "pwritev2 append": vectors("pwritev2", 4, *at(-1, RWF_APPEND)),
    "pwritev2 at": vectors("pwritev2", 4, *at(0, 0)),
    "pwritev2 flags": vectors("pwritev2", 4, *at(-1, 1 << 20)),
    "dprintf": lambda fd: said(call("dprintf", fd, b"%d\n", 5)),
    "send": send(0),
    "send nosignal": send(MSG_NOSIGNAL),
    "send nothing": send(0, 0),
    "send oob": send(socket.MSG_OOB),
    "send more": send(socket.MSG_MORE),
    "send dontroute": send(socket.MSG_DONTROUTE),
    "send confirm": send(0x800),
    "send eor": send(socket.MSG_EOR),
    "send zerocopy": send(MSG_ZEROCOPY),
    "send twice": lambda fd: f"{slowly(send(0), fd)}, {send(0)(fd)}",
    "sendto": lambda fd: said(call("sendto", fd, DATA, ctypes.c_size_t(1), 0, ELSEWHERE, len(ELSEWHERE))),
    "sendto fastopen": lambda fd: said(call("sendto", fd, DATA, ctypes.c_size_t(1), MSG_FASTOPEN, ELSEWHERE, len(ELSEWHERE))),
    "sendto fastopen nowhere": lambda fd: said(call("sendto", fd, DATA, ctypes.c_size_t(1), MSG_FASTOPEN, None, 0)),
    "sendmsg": message(True),
    "sendmsg two": message(True, 0, None, None, 2),
    "sendmsg none": message(True, 0, None, None, 0),
    "sendmsg many": message(True, 0, None, None, 2000),
    "sendmsg rights": message(True, 0, RIGHTS),
    "sendmsg strange control": message(True, 0, STRANGE),
    "sendmsg with a name": message(True, 0, None, ELSEWHERE.raw),
    "sendfile": sendfile,
    "splice in": splice(True),
    "splice out": splice(False),
    "shutdown rd": shut_then_use(0),
    "shutdown wr": shut_then_use(1),
    "shutdown rdwr": shut_then_use(2),
    "shutdown 3": lambda fd: said(call("shutdown", fd, 3)),
    "connect": connect_to(ELSEWHERE),
    "connect again and again": lambda fd: ", ".join(slowly(connect_to(ELSEWHERE), fd) for _ in range(4)),
    "connect to nothing": connect_to(UNSPECIFIED),
    "connect to another family": connect_to(WRONG),
    "connect short": lambda fd: said(call("connect", fd, ELSEWHERE, 5)),
    "listen": lambda fd: said(call("listen", fd, 5)),
    "listen twice": lambda fd: said(call("listen", fd, 5)) + " " + said(call("listen", fd, 6)),
    "accept": accept("accept"),
    "accept4": accept("accept4", socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC),
    "accept4 with strange flags": accept("accept4", 0x777),
    "bind": lambda fd: said(call("bind", fd, sockaddr(OWN, 0), len(ELSEWHERE))),
    "getsockname": name_of("getsockname"),
    "getsockname short": short_name_of("getsockname"),
    "getsockname negative": negative_name_of("getsockname"),
    "getpeername": name_of("getpeername"),
    "getpeername short": short_name_of("getpeername"),
    "getpeername negative": negative_name_of("getpeername"),
    "FIONREAD": ioctl(FIONREAD),
    "SIOCOUTQ": ioctl(SIOCOUTQ),
    "SIOCOUTQNSD": ioctl(0x894B),
    "SIOCATMARK": ioctl(SIOCATMARK),
    "ioctl 0x1234": ioctl(0x1234),
    "F_GETFL": flags_of,
    "F_SETFL": lambda fd: said(LIBC.fcntl(fd, 4, os.O_NONBLOCK | os.O_APPEND)) + " " + flags_of(fd),
    "dup": lambda fd: "ok" if (other := LIBC.dup(fd)) >= 0 and os.close(other) is None else said(-1),
    "close": close_it,
    "lseek": lambda fd: said(call("lseek", fd, ctypes.c_long(0), 0)),
    "pread": lambda fd: said(call("pread", fd, DATA, ctypes.c_size_t(1), ctypes.c_long(0))),
    "pwrite": lambda fd: said(call("pwrite", fd, DATA, ctypes.c_size_t(1), ctypes.c_long(0))),
    "fsync": lambda fd: said(call("fsync", fd)),
    "ftruncate": lambda fd: said(call("ftruncate", fd, ctypes.c_long(0))),
    "fstat": lambda fd: oct(os.fstat(fd).st_mode & 0o170000) if error_of(fd) is not None and fd_is_open(fd) else "EBADF",
}


def bad_pointers():
    """Addresses where nobody has memory: the first page, and the kernel's half."""
    addresses = {"null": None, "low": ctypes.c_void_p(8), "high": ctypes.c_void_p(-1)}
    if "OVERFLY_TEST_SANITIZER" in os.environ:
        # AddressSanitizer's own getsockname() reads what it is given, before anybody else sees it.
        del addresses["low"]
    for text, address in addresses.items():
        def add(name, function):
            CALLS[f"{name} {text}"] = function

        number = ctypes.c_int(4)
        four = ctypes.c_size_t(4)
        bad = address
        add("recv to", lambda fd, bad=bad: said(call("recv", fd, bad, four, 0)))
        add("recv trunc to", lambda fd, bad=bad: said(call("recv", fd, bad, four, socket.MSG_TRUNC)))
        add("read to", lambda fd, bad=bad: said(call("read", fd, bad, four)))
        add("send from", lambda fd, bad=bad: said(call("send", fd, bad, four, 0)))
        add("write from", lambda fd, bad=bad: said(call("write", fd, bad, four)))
        add("send nothing from", lambda fd, bad=bad: said(call("send", fd, bad, ctypes.c_size_t(0), 0)))
        add("readv with", lambda fd, bad=bad: said(call("readv", fd, bad, 2)))
        add("writev with", lambda fd, bad=bad: said(call("writev", fd, bad, 2)))
        add("recvmsg with", lambda fd, bad=bad: said(call("recvmsg", fd, bad, 0)))
        add("sendmsg with", lambda fd, bad=bad: said(call("sendmsg", fd, bad, 0)))
        add("getsockopt to", lambda fd, bad=bad: said(call("getsockopt", fd, 6, 1, bad, ctypes.byref(ctypes.c_uint(4)))))
        add("getsockopt with length", lambda fd, bad=bad: said(call("getsockopt", fd, 6, 1, ctypes.byref(number), bad)))
        add("setsockopt from", lambda fd, bad=bad: said(call("setsockopt", fd, 6, 1, bad, 4)))
        add("getsockname to", lambda fd, bad=bad: said(call("getsockname", fd, bad, ctypes.byref(ctypes.c_uint(16)))))
        add("getsockname with length", lambda fd, bad=bad: said(call("getsockname", fd, ctypes.create_string_buffer(32), bad)))
        add("FIONREAD to", lambda fd, bad=bad: said(call("ioctl", fd, ctypes.c_ulong(FIONREAD), bad)))
        add("FIONBIO from", lambda fd, bad=bad: said(call("ioctl", fd, ctypes.c_ulong(FIONBIO), bad)))


def fd_is_open(fd):
    return LIBC.fcntl(fd, 1, 0) >= 0


def options():
    """getsockopt() and setsockopt() of everything, right and wrong."""
    numbers = {
        "SO_REUSEADDR": (S, 2), "SO_TYPE": (S, 3), "SO_ERROR": (S, 4), "SO_DONTROUTE": (S, 5), "SO_BROADCAST": (S, 6), "SO_KEEPALIVE": (S, 9),
        "SO_OOBINLINE": (S, 10), "SO_PRIORITY": (S, 12), "SO_REUSEPORT": (S, 15), "SO_RCVLOWAT": (S, 18), "SO_SNDLOWAT": (S, 19),
        "SO_TIMESTAMP": (S, 29), "SO_ACCEPTCONN": (S, 30), "SO_MARK": (S, 36), "SO_PROTOCOL": (S, 38), "SO_DOMAIN": (S, 39),
        "SO_RCVBUFFORCE": (S, 33), "SO_SNDBUFFORCE": (S, 32), "SO_BUSY_POLL": (S, 46), "SO_ZEROCOPY": (S, 60), "SO_TIMESTAMPING": (S, 37), "SO_BINDTOIFINDEX": (S, 62),
        "TCP_NODELAY": (T, 1), "TCP_CORK": (T, 3), "TCP_KEEPIDLE": (T, 4), "TCP_KEEPINTVL": (T, 5), "TCP_KEEPCNT": (T, 6),
        "TCP_SYNCNT": (T, 7), "TCP_LINGER2": (T, 8), "TCP_DEFER_ACCEPT": (T, 9), "TCP_WINDOW_CLAMP": (T, 10), "TCP_QUICKACK": (T, 12),
        "TCP_THIN_LINEAR_TIMEOUTS": (T, 16), "TCP_THIN_DUPACK": (T, 17), "TCP_USER_TIMEOUT": (T, 18), "TCP_REPAIR": (T, 19), "TCP_FASTOPEN": (T, 23),
        "TCP_NOTSENT_LOWAT": (T, 25), "TCP_SAVE_SYN": (T, 27), "TCP_SAVED_SYN": (T, 28), "TCP_FASTOPEN_CONNECT": (T, 30),
        "TCP_FASTOPEN_NO_COOKIE": (T, 34), "TCP_INQ": (T, 36), "TCP_TX_DELAY": (T, 37), "tcp 9999": (T, 9999),
        "IP_TOS": (I, 1), "IP_TTL": (I, 2), "IP_RECVERR": (I, 11), "IP_MTU_DISCOVER": (I, 10), "IP_MTU": (I, 14), "IP_FREEBIND": (I, 15), "IP_TRANSPARENT": (I, 19),
        "IP_MINTTL": (I, 21), "IP_BIND_ADDRESS_NO_PORT": (I, 24), "IPV6_V6ONLY": (41, 26), "IPV6_TCLASS": (41, 67),
        "IPV6_UNICAST_HOPS": (41, 16), "IPV6_RECVERR": (41, 25), "IPV6_MINHOPCOUNT": (41, 73), "IPV6_TRANSPARENT": (41, 75),
        "SO_TIMESTAMPNS": (S, 35), "SO_TIMESTAMP_NEW": (S, 63), "SO_TIMESTAMPNS_NEW": (S, 64), "SO_TIMESTAMPING_NEW": (S, 65),
        "IP_OPTIONS": (I, 4), "TCP_MD5SIG": (T, 14), "TCP_CC_INFO": (T, 26), "TCP_MD5SIG_EXT": (T, 38), "TCP_AO_ADD_KEY": (T, 39),
        "level 77": (77, 1),
    }
    vary = {"TCP_WINDOW_CLAMP", "IP_MTU"}
    for name, (level, option) in numbers.items():
        CALLS[f"get {name}"] = read_option(level, option, 16, name not in vary)
        CALLS[f"get {name} short"] = read_option(level, option, 2, name not in vary)
        CALLS[f"set {name} 1"] = set_option(level, option, 1, name not in vary)
        CALLS[f"set {name} short"] = set_option(level, option, b"\1\0", name not in vary)
    for name, (level, option), values in (
        ("TCP_KEEPIDLE", (T, 4), (0, -1, 32767, 32768)), ("TCP_KEEPINTVL", (T, 5), (0, -1, 32767, 32768)),
        ("TCP_KEEPCNT", (T, 6), (0, -1, 127, 128)), ("TCP_USER_TIMEOUT", (T, 18), (-1, 0, 5000)), ("TCP_SYNCNT", (T, 7), (0, 127, 128)),
        ("TCP_NODELAY", (T, 1), (-1, 2)), ("TCP_CORK", (T, 3), (2,)), ("TCP_LINGER2", (T, 8), (-1, 0, 30, 1000)), ("TCP_QUICKACK", (T, 12), (0, 2)),
        ("TCP_NOTSENT_LOWAT", (T, 25), (0, -1, 16384)), ("TCP_DEFER_ACCEPT", (T, 9), (0, -1, 5, 1000)), ("SO_KEEPALIVE", (S, 9), (-1,)),
        ("SO_RCVLOWAT", (S, 18), (0, -1, 3)), ("SO_PRIORITY", (S, 12), (7, -1)), ("SO_INCOMING_CPU", (S, 49), (0,)),
        ("TCP_FASTOPEN", (T, 23), (0, -1, 5, 100000)), ("IP_TOS", (I, 1), (0, 16, 255, 256, -1)), ("IP_TTL", (I, 2), (0, -1, 255, 256)),
        ("IPV6_TCLASS", (41, 67), (0, -1, 255, 256)), ("TCP_MAXSEG", (T, 2), (0, 1, 87, 88, 32767, 32768, -1)),
    ):
        for value in values:
            CALLS[f"set {name} {value}"] = set_option(level, option, value, name not in ("SO_INCOMING_CPU", "TCP_MAXSEG"))
    CALLS["set SO_SNDBUF 100000"] = set_option(S, 7, 100_000)
    CALLS["set SO_SNDBUF 1"] = set_option(S, 7, 1)
    CALLS["set SO_RCVBUF 100000"] = set_option(S, 8, 100_000)
    CALLS["set SO_RCVBUF 1"] = set_option(S, 8, 1)
    CALLS["set SO_SNDBUF -1"] = set_option(S, 7, -1)
    CALLS["set SO_RCVBUF -1"] = set_option(S, 8, -1)
    CALLS["get SO_SNDBUF"] = read_option(S, 7, 16, False)
    CALLS["get SO_RCVBUF"] = read_option(S, 8, 16, False)
    CALLS["get SO_INCOMING_CPU"] = read_option(S, 49, 16, False)
    CALLS["get SO_PEERCRED"] = read_option(S, 17, 12, False)
    CALLS["get TCP_MAXSEG"] = read_option(T, 2, 16, False)
    CALLS["get TCP_INFO"] = read_option(T, 11, 300, False)
    CALLS["get TCP_INFO short"] = read_option(T, 11, 4, False)
    CALLS["set TCP_INFO 1"] = set_option(T, 11, 1, False)
    CALLS["set TCP_INFO short"] = set_option(T, 11, b"\1\0", False)
    CALLS["set IP_TOS nothing"] = set_option(I, 1, b"")
    CALLS["set IP_MTU nothing"] = set_option(I, 14, b"", False)
    for name, option in ("TCP_INFO", (T, 11)), ("TCP_NODELAY", (T, 1)), ("SO_KEEPALIVE", (S, 9)), ("IP_TOS", (I, 1)), ("TCP_CONGESTION", (T, 13)):
        CALLS[f"get {name} into nothing"] = read_option(*option, 0)
    CALLS["set TCP_WINDOW_CLAMP 0"] = set_option(T, 10, 0, False)
    CALLS["set SO_RCVBUFFORCE 100000"] = lambda fd: set_option(S, 33, 100_000, False)(fd) + " " + read_option(S, 8)(fd)
    CALLS["set SO_RCVBUFFORCE -1"] = lambda fd: set_option(S, 33, -1, False)(fd) + " " + read_option(S, 8)(fd)
    CALLS["set SO_SNDBUFFORCE 100000"] = lambda fd: set_option(S, 32, 100_000, False)(fd) + " " + read_option(S, 7)(fd)
    CALLS["set SO_SNDBUFFORCE -1"] = lambda fd: set_option(S, 32, -1, False)(fd) + " " + read_option(S, 7)(fd)
    CALLS["get TCP_CONGESTION"] = read_option(T, 13, 64)
    CALLS["get TCP_CONGESTION short"] = read_option(T, 13, 3)
    CALLS["set TCP_CONGESTION"] = set_option(T, 13, b"reno")
    CALLS["set TCP_CONGESTION unknown"] = set_option(T, 13, b"no such")
    CALLS["set TCP_CONGESTION nothing"] = set_option(T, 13, b"")
    CALLS["set TCP_ULP unknown"] = set_option(T, 31, b"no such", False)
    CALLS["get TCP_ULP"] = read_option(T, 31, 16)
    CALLS["set SO_LINGER"] = set_option(S, 13, struct.pack("ii", 1, 5))
    CALLS["set SO_LINGER off"] = set_option(S, 13, struct.pack("ii", 0, 5))
    CALLS["set SO_LINGER on and off"] = lambda fd: set_option(S, 13, struct.pack("ii", 1, 5))(fd) + set_option(S, 13, struct.pack("ii", 0, 9))(fd)
    CALLS["set SO_LINGER negative"] = set_option(S, 13, struct.pack("ii", 1, -1))
    CALLS["set SO_LINGER short"] = set_option(S, 13, struct.pack("i", 1))
    CALLS["get SO_LINGER short"] = read_option(S, 13, 4)
    for name, option in ("SO_RCVTIMEO", 20), ("SO_SNDTIMEO", 21):
        CALLS[f"set {name}"] = set_option(S, option, struct.pack("ll", 3, 200_000))
        CALLS[f"set {name} negative"] = set_option(S, option, struct.pack("ll", -3, 0))
        CALLS[f"set {name} wrong"] = set_option(S, option, struct.pack("ll", 0, 1_000_000))
        CALLS[f"set {name} short"] = set_option(S, option, struct.pack("i", 3))
        CALLS[f"get {name} short"] = read_option(S, option, 4)
    CALLS["set SO_BINDTODEVICE"] = set_option(S, 25, b"veth0\0")
    CALLS["set SO_BINDTODEVICE unknown"] = set_option(S, 25, b"no such\0")
    CALLS["get SO_BINDTODEVICE"] = read_option(S, 25, 16)


BASIC = len(CALLS)
options()
bad_pointers()

# ---- the states ----

next_port = [20_000]
full = False


def order(verb, port, program):
    return ends.order(PEER, verb, port, program)


LISTENER = socket.create_server((OWN, 6900), family=FAMILY, backlog=100)


class End:
    """Our end of a connection, and what keeps the other one."""

    def __init__(self, passive, program):
        if passive:
            self.control = order("connect", 6900, program)
            self.socket, _ = LISTENER.accept()
        else:
            next_port[0] += 1
            self.control = order("listen", next_port[0], program)
            self.socket = socket.create_connection((PEER, next_port[0]))
        self.fd = self.socket.fileno()
        os.set_blocking(self.fd, False)

    def until(self, wanted):
        end = time.monotonic() + 5
        while (found := polled(self.fd, 1000, ALL_EVENTS & ~(4 | 256 | 512))) & wanted != wanted:
            assert time.monotonic() < end, f"{events(found)}, not {events(wanted)}"
            time.sleep(0.0005)
        return self


IN, OUT, ERR, HUP, RDHUP = 1, 4, 8, 16, 0x2000


def established(passive):
    return End(passive, "hold()")


def with_data(passive):
    return End(passive, "s.sendall(b'hello'); hold()").until(IN)


def peer_shut(passive):
    return End(passive, "s.shutdown(1); hold()").until(RDHUP)


def peer_shut_with_data(passive):
    return End(passive, "s.sendall(b'hello'); s.shutdown(1); hold()").until(RDHUP | IN)


def peer_closed(passive):
    return End(passive, "").until(RDHUP)


def peer_reset(passive):
    end = End(passive, "take(1); reset()")
    end.socket.send(b"x")
    return end.until(HUP)


def peer_reset_with_data(passive):
    end = End(passive, "s.sendall(b'hello'); take(1); reset()").until(IN)
    end.socket.send(b"x")
    return end.until(HUP)


def peer_reset_after_fin(passive):
    end = End(passive, "").until(RDHUP)
    end.socket.send(b"x")
    return end.until(HUP)


def peer_reset_and_error_read(passive):
    end = peer_reset(passive)
    error_of(end.fd)
    return end


def shut(how):
    def run(passive):
        end = established(passive)
        end.socket.shutdown(how)
        time.sleep(0.003)
        settle(end.fd)
        return end
    return run


def shut_with_data(how):
    def run(passive):
        end = with_data(passive)
        end.socket.shutdown(how)
        time.sleep(0.003)
        settle(end.fd)
        return end
    return run


def over(end):
    end.socket.shutdown(1)
    end.until(HUP)
    time.sleep(0.003)
    settle(end.fd)
    return end


def both_shut(passive):
    return over(peer_shut(passive))


def both_shut_with_data(passive):
    return over(peer_shut_with_data(passive))


def shut_first(passive):
    """The end in TIME-WAIT."""
    end = End(passive, "take(1)")
    end.socket.shutdown(1)
    return end.until(HUP)


def filled(passive):
    global full
    end = End(passive, "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096); hold()")
    end.socket.setsockopt(S, socket.SO_SNDBUF, 20_000)
    time.sleep(0.002)
    quiet = 0
    while quiet < 20:
        try:
            end.socket.send(bytes(1 << 16))
            quiet = 0
        except BlockingIOError:
            quiet += 1
            time.sleep(0.005)
    full = True
    return end


class Plain:
    def __init__(self, nonblocking=True):
        self.socket = socket.socket(FAMILY)
        self.fd = self.socket.fileno()
        os.set_blocking(self.fd, not nonblocking)
        self.control = None


def unconnected(_):
    return Plain()


def bound(_):
    plain = Plain()
    plain.socket.bind((OWN, 0))
    return plain


def listening(_):
    plain = bound(_)
    plain.socket.listen(5)
    return plain


def accepting(_):
    """A listener that has been asked for a connection before."""
    plain = listening(_)
    polled(plain.fd)
    return plain


def listening_with_connection(_):
    plain = accepting(_)
    plain.control = order("connect", plain.socket.getsockname()[1], "hold()")
    while not polled(plain.fd, 1000) & IN:
        pass
    return plain


def refused(_):
    plain = Plain()
    assert plain.socket.connect_ex((PEER, 6998)) == errno.EINPROGRESS
    while not polled(plain.fd, 1000) & HUP:
        pass
    return plain


def refused_and_told(_):
    plain = refused(_)
    error_of(plain.fd)
    return plain


SILENT = []


def connecting(_):
    """The peer's queue is full: it does not answer."""
    if not SILENT:
        SILENT.append(End(True, "h = socket.socket(s.family); h.bind((s.getsockname()[0], 6996)); h.listen(0); "
                                "c = socket.create_connection(h.getsockname()[:2]); s.send(b'x'); take(1)").until(IN))
    plain = Plain()
    assert plain.socket.connect_ex((PEER, 6996)) == errno.EINPROGRESS
    return plain


def connected_untold(_):
    """The handshake is over, and connect() has not said so yet."""
    plain = Plain()
    next_port[0] += 1
    plain.control = order("listen", next_port[0], "hold()")
    assert plain.socket.connect_ex((PEER, next_port[0])) == errno.EINPROGRESS
    while not polled(plain.fd, 1000) & OUT:
        pass
    return plain


def closed(_):
    plain = Plain()
    plain.socket.close()
    return plain


ENDS = (established, with_data, peer_shut, peer_shut_with_data, peer_closed, peer_reset, peer_reset_with_data, peer_reset_after_fin,
        peer_reset_and_error_read, both_shut, both_shut_with_data, shut_first, filled)
STATES = {function.__name__: function for function in (
    unconnected, bound, listening, accepting, listening_with_connection, refused, refused_and_told, connecting, connected_untold, closed)}
for function in ENDS:
    STATES[function.__name__ + " passive"] = lambda _, function=function: function(True)
    STATES[function.__name__ + " active"] = lambda _, function=function: function(False)
for how, name in (0, "read"), (1, "write"), (2, "both"):
    for passive, role in (True, "passive"), (False, "active"):
        STATES[f"shut {name} {role}"] = lambda _, how=how, passive=passive: shut(how)(passive)
        STATES[f"shut {name} with data {role}"] = lambda _, how=how, passive=passive: shut_with_data(how)(passive)


# Where options are walked through as well.
WITH_OPTIONS = ("unconnected", "listening", "accepting", "refused", "connecting", "connected_untold", "established passive",
                "established active", "with_data passive", "both_shut active")


def walk(state, make):
    global full
    for name, function in list(CALLS.items())[:None if state in WITH_OPTIONS else BASIC]:
        full = False
        try:
            end = make(None)
        except Exception as error:
            print(f"{state} | {name} | no such state: {type(error).__name__} {error}", flush=True)
            continue
        outcome = function(end.fd)
        # An unanswered SYN and a corked tail stay where they are.
        patience = 0.03 if state == "connecting" or name == "send more" else 5
        print(f"{state} | {name} | {outcome} | {after(end.fd, name[:4] not in ('get ', 'set '), patience)}", flush=True)
        if state != "closed":
            end.socket.setsockopt(S, socket.SO_LINGER, struct.pack("ii", 1, 0)) if fd_is_open(end.fd) else None
            end.socket.close()
        if end.control:
            end.control.close()


for state in sys.argv[3:] or STATES:
    if state in STATES:
        walk(state, STATES[state])
    else:
        for name in [name for name in STATES if name.startswith(state)]:
            walk(name, STATES[name])
print("done")
