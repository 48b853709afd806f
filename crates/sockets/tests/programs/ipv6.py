"""What sockets of both families say, a line each: the same over the kernel and over Overfly.

usage: ipv6.py OWN6 PEER6 OWN4 PEER4 LINK-LOCAL%INTERFACE

peer.py runs at the other end, at the address "::".
"""
import ctypes
import errno
import select
import socket
import struct
import sys
import time

from ends import order

OWN6, PEER6, OWN4, PEER4, LINK = sys.argv[1:6]
MAPPED_OWN4, MAPPED_PEER4 = f"::ffff:{OWN4}", f"::ffff:{PEER4}"
ANY6 = ("::", 0)
TCP, IPV6, IP, SOCKET = socket.IPPROTO_TCP, socket.IPPROTO_IPV6, socket.IPPROTO_IP, socket.SOL_SOCKET
TCP_MAXSEG, TCP_CONGESTION, TCP_INFO = socket.TCP_MAXSEG, socket.TCP_CONGESTION, socket.TCP_INFO
libc = ctypes.CDLL(None, use_errno=True)
next_port = [8000]


def say(*words):
    print(*words, flush=True)


def attempt(call, *arguments):
    """What a call answers, or the name of its error."""
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, "no answer")


def port():
    next_port[0] += 1
    return next_port[0]


def listener(family, address, v6only=None):
    """A listener that this process has already looked at."""
    s = socket.socket(family)
    s.setsockopt(SOCKET, socket.SO_REUSEADDR, 1)
    if v6only is not None:
        s.setsockopt(IPV6, socket.IPV6_V6ONLY, v6only)
    number = port() if address[1] == 0 else address[1]
    s.bind((address[0], number) + tuple(address[2:]))
    s.listen()
    s.setblocking(False)
    say("nothing to accept:", attempt(s.accept))
    s.settimeout(5)
    return s, number


def name(address):
    """Without the ports that the kernel chose."""
    return (address[0], "port" if address[1] > 8999 else address[1]) + tuple(address[2:])


def describe(what, s, address=None):
    s.settimeout(5)
    say(what, "accept", address and name(address), "peer", name(s.getpeername()), "own", name(s.getsockname()))
    say(what, "domain", s.getsockopt(SOCKET, socket.SO_DOMAIN), "v6only", attempt(s.getsockopt, IPV6, socket.IPV6_V6ONLY),
        "set", attempt(s.setsockopt, IPV6, socket.IPV6_V6ONLY, 1))
    raw = ctypes.create_string_buffer(b"x" * 40, 40)
    length = ctypes.c_uint(10)
    libc.getpeername(s.fileno(), raw, ctypes.byref(length))
    say(what, "cut name", length.value, raw.raw[:2] + raw.raw[4:12])


def exchange(what, s):
    """The peer sends five bytes, and then back what it gets."""
    s.settimeout(10)
    data = b""
    while len(data) < 5:
        data += s.recv(5 - len(data))
    s.sendall(b"a" * 200_000)
    s.shutdown(socket.SHUT_WR)
    while piece := s.recv(100_000):
        data += piece
    say(what, "exchanged", data[:5], len(data))
    s.close()


ECHO = "s.sendall(b'hello'); d = take(200001); s.sendall(d)"


def accept_from(what, s, number, peer):
    control = order(peer, "connect", number, ECHO)
    try:
        c, address = s.accept()
    except TimeoutError:
        say(what, "timed out")
        return
    describe(what, c, address)
    exchange(what, c)
    control.close()


def connect_to(what, peer, family, address, bound=None, prepare=lambda s: None):
    number = port()
    control = order(peer, "listen", number, ECHO)
    s = socket.socket(family)
    prepare(s)
    if bound:
        s.setsockopt(SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(bound)
    say(what, "connect", attempt(s.connect, (address[0], number) + tuple(address[1:])))
    describe(what, s)
    return control, s


say("fresh v6only", socket.socket(socket.AF_INET6).getsockopt(IPV6, socket.IPV6_V6ONLY))

# A listener for both families.
s, number = listener(socket.AF_INET6, ANY6, 0)
say("dual name", s.getsockname())
accept_from("dual from v4", s, number, PEER4)
accept_from("dual from v6", s, number, PEER6)
accept_from("dual from link", s, number, LINK)
epoll = select.epoll()
epoll.register(s, select.EPOLLIN)
controls = [order(peer, "connect", number, "take(1)") for peer in (PEER4, PEER6)]
accepted = []
while len(accepted) < 2 and epoll.poll(5):
    accepted.append(s.accept())
say("epoll of both", sorted(address[0] for _, address in accepted))
say("same port, v4", attempt(socket.socket(socket.AF_INET).bind, ("0.0.0.0", number)))
say("v6only set", attempt(s.setsockopt, IPV6, socket.IPV6_V6ONLY, 1))
s.close()
del accepted

# One listener a family, at the same port.
s6, number = listener(socket.AF_INET6, ANY6, 1)
s4, _ = listener(socket.AF_INET, ("0.0.0.0", number))
accept_from("v6only", s6, number, PEER6)
accept_from("v4 beside it", s4, number, PEER4)
s4.close()
s6.settimeout(0.5)
control = order(PEER4, "connect", number, "s.sendall(b'x')")
say("v4 at a v6only listener", attempt(s6.accept), control.recv(1))
s6.close()

# Listeners at single addresses.
for what, address, peer in ("v6 address", (OWN6, 0), PEER6), ("mapped address", (MAPPED_OWN4, 0), PEER4), \
        ("mapped wildcard", ("::ffff:0.0.0.0", 0), PEER4):
    s, number = listener(socket.AF_INET6, address, 0)
    accept_from(what, s, number, peer)
    s.close()

# Active opens.
control, s = connect_to("to v6", PEER6, socket.AF_INET6, (PEER6,))
exchange("to v6", s)
control, s = connect_to("to mapped", PEER4, socket.AF_INET6, (MAPPED_PEER4,))
exchange("to mapped", s)
control, s = connect_to("to v6 from bound", PEER6, socket.AF_INET6, (PEER6,), (OWN6, port()))
exchange("to v6 from bound", s)
control, s = connect_to("to mapped from bound", PEER4, socket.AF_INET6, (MAPPED_PEER4,), (MAPPED_OWN4, port()))
exchange("to mapped from bound", s)
control, s = connect_to("to mapped from wildcard", PEER4, socket.AF_INET6, (MAPPED_PEER4,), ("::", port()))
exchange("to mapped from wildcard", s)
link = socket.getaddrinfo(LINK, 0, type=socket.SOCK_STREAM)[0][4]
control, s = connect_to("to link", LINK, socket.AF_INET6, (link[0], 0, link[3]))
exchange("to link", s)

# What the kernel refuses, and the same socket afterwards.
s = socket.socket(socket.AF_INET6)
say("refused", attempt(s.connect, (PEER6, 6599)))
s = socket.socket(socket.AF_INET6)
say("refused, mapped", attempt(s.connect, (MAPPED_PEER4, 6599)))
s = socket.socket(socket.AF_INET6)
say("no scope", attempt(s.connect, (link[0], 6599, 0, 0)))
s.setsockopt(IPV6, socket.IPV6_V6ONLY, 1)
say("mapped from v6only", attempt(s.connect, (MAPPED_PEER4, 6599)))
v4 = struct.pack("=HH4s8x", socket.AF_INET, 0x3930, socket.inet_aton(PEER4))
say("v4 address", libc.connect(s.fileno(), v4, 16), errno.errorcode[ctypes.get_errno()])
short = struct.pack("=HHI16s", socket.AF_INET6, 0x3930, 0, socket.inet_pton(socket.AF_INET6, PEER6))
say("too short", libc.connect(s.fileno(), short, 20), errno.errorcode[ctypes.get_errno()])
say("without a scope's place", libc.connect(s.fileno(), short, 24), errno.errorcode[ctypes.get_errno()])
v6 = struct.pack("=HHI16sI", socket.AF_INET6, 0x3930, 0, socket.inet_pton(socket.AF_INET6, PEER6), 0)
s = socket.socket()
say("v6 address", libc.connect(s.fileno(), v6, 28), errno.errorcode[ctypes.get_errno()])
number = port()
control = order(PEER4, "listen", number, ECHO)
say("then v4", attempt(s.connect, (PEER4, number)))
exchange("then v4", s)

# Options, before and after connect(), and from a listener.
SETTINGS = [(TCP, socket.TCP_KEEPIDLE, 11), (TCP, socket.TCP_KEEPINTVL, 12), (TCP, socket.TCP_KEEPCNT, 13),
            (TCP, socket.TCP_USER_TIMEOUT, 5000), (SOCKET, socket.SO_RCVBUF, 100_000), (SOCKET, socket.SO_KEEPALIVE, 1),
            (TCP, TCP_CONGESTION, b"reno"), (TCP, TCP_MAXSEG, 1000),
            (SOCKET, socket.SO_SNDBUF, 50_000), (IP, socket.IP_TTL, 17), (IPV6, socket.IPV6_UNICAST_HOPS, 18)]
CASES = [(TCP, socket.TCP_KEEPINTVL, (0, 1, 32767, 32768, -1)), (TCP, socket.TCP_KEEPCNT, (0, 1, 127, 128)),
         (TCP, socket.TCP_KEEPIDLE, (0, 1, 32767, 32768)), (TCP, socket.TCP_USER_TIMEOUT, (0, 1, 2**31 - 1, -1)),
         (TCP, TCP_CONGESTION, (b"cubic", b"reno\0junk", b"nonsense", b"", b"\0", b"r" * 30)),
         (TCP, TCP_MAXSEG, (87, 88, 32768, -5)), (SOCKET, socket.SO_RCVBUF, (0, 1, 3000, 2**31 - 1, -1)),
         (TCP, socket.TCP_QUICKACK, (1, 3)), (IPV6, socket.IPV6_TCLASS, (0x20, -1, 256)), (IP, socket.IP_TOS, (0x20,)),
         (IPV6, socket.IPV6_UNICAST_HOPS, (64, 256, 0, 7, -1)), (IP, socket.IP_TTL, (64, 256, 0, 7, -1))]


def value_of(s, level, option):
    if option == TCP_CONGESTION and level == TCP:
        return [s.getsockopt(TCP, TCP_CONGESTION, room) for room in (3, 5, 16, 30)]
    return attempt(s.getsockopt, level, option)


def show(what, s):
    for level, option, _ in SETTINGS:
        say(what, level, option, value_of(s, level, option))
    say(what, "rcvbuf of 2 bytes", s.getsockopt(SOCKET, socket.SO_RCVBUF, 2))


def prepare(s):
    for level, option, value in SETTINGS:
        s.setsockopt(level, option, value)


for what, peer, address in ("v6 untouched", PEER6, PEER6), ("mapped untouched", PEER4, MAPPED_PEER4):
    control, s = connect_to(what, peer, socket.AF_INET6, (address,))
    for level, option, _ in SETTINGS:
        if (level, option) != (SOCKET, socket.SO_SNDBUF) and (level, option) != (SOCKET, socket.SO_RCVBUF):
            say(what, level, option, value_of(s, level, option))
    prepare(s)
    show(what + ", set", s)
    for level, option, values in CASES:
        for value in values:
            say(what, level, option, value, attempt(s.setsockopt, level, option, value), value_of(s, level, option))
    say(what, "info", [len(s.getsockopt(TCP, TCP_INFO, room)) for room in (1, 8, 104, 192, 232, 400, 1000)])
    exchange(what, s)
control, s = connect_to("prepared", PEER6, socket.AF_INET6, (PEER6,), prepare=prepare)
show("prepared", s)
info = s.getsockopt(TCP, TCP_INFO, 232)
say("state, congestion, retransmits, probes, backoff, options", info[0], info[1], info[2], info[3], info[4], info[5])
say("sent segments", struct.unpack_from("=I", info, 16))
time.sleep(0.3)
exchange("prepared", s)
s, number = listener(socket.AF_INET6, ANY6, 0)
prepare(s)
s.close()
s = socket.socket(socket.AF_INET6)
s.setsockopt(SOCKET, socket.SO_REUSEADDR, 1)
prepare(s)
s.bind(("::", number))
s.listen()
s.setblocking(False)
attempt(s.accept)
s.settimeout(5)
for peer in PEER4, PEER6:
    control = order(peer, "connect", number, ECHO)
    c, address = s.accept()
    show("inherited " + address[0], c)
    describe("inherited", c, address)
    exchange("inherited", c)

# More than a window each way, and what tcp_info says of it.
control, s = connect_to("bulk", PEER6, socket.AF_INET6, (PEER6,))
control.close()
control = order(PEER6, "listen", port(), "s.sendall(bytes(2_000_000)); take(3_000_000); time.sleep(0.3)")
s.close()
s = socket.socket(socket.AF_INET6)
s.connect((PEER6, next_port[0]))
got = 0
while got < 2_000_000:
    got += len(s.recv(100_000))
s.sendall(bytes(3_000_000))
deadline = time.monotonic() + 5
while time.monotonic() < deadline:
    info = s.getsockopt(TCP, TCP_INFO, 240)
    if struct.unpack_from("=Q", info, 120)[0] >= 3_000_000:
        break
    time.sleep(0.01)
acknowledged, received = struct.unpack_from("=QQ", info, 120)
say("bytes acknowledged", acknowledged in (3_000_000, 3_000_001), "received", received)
rtt, variation = struct.unpack_from("=II", info, 68)
window, offered = struct.unpack_from("=II", info, 228)
say("round trip", 0 < rtt < 1_000_000, 0 <= variation < 1_000_000, "least", 0 < struct.unpack_from("=I", info, 148)[0] < 1_000_000)
say("windows", window > 60_000, offered > 60_000, "congestion", struct.unpack_from("=I", info, 80)[0] >= 10)
say("nothing in flight", struct.unpack_from("=III", info, 24), "unsent", struct.unpack_from("=I", info, 144))
say("done")
