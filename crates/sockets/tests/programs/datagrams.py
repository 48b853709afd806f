"""UDP calls and what they answer, one line each, for a comparison of two worlds.

datagrams.py serve OWN          sends back what comes to port 7000, until `quit` comes
datagrams.py calls OWN PEER     asks PEER's port 7000
"""

import ctypes
import errno
import fcntl
import select
import socket
import struct
import sys
import termios
import time

PORT = 7000
NOBODY = 7009
# include/uapi/linux/in6.h
IPV6_DONTFRAG = 62
# include/uapi/linux/udp.h
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve(own):
    server = socket.socket(family(own), socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("::" if ":" in own else "0.0.0.0", PORT))
    print("ready", flush=True)
    while True:
        data, source = server.recvfrom(65536)
        if data == b"quit":
            return
        if data.startswith(b"flood "):
            for number in range(int(data[6:])):
                server.sendto(b"%04d" % number + bytes(996), source)
            continue
        if data.startswith(b"train "):
            count, size, rest = map(int, data[6:].split())
            server.sendmsg([payload(count * size + rest)], [(SOL_UDP, UDP_SEGMENT, struct.pack("H", size))], 0, source)
            continue
        if data.startswith(b"class "):
            level, name = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if ":" in own else (socket.IPPROTO_IP, socket.IP_TOS)
            server.sendmsg([data], [(level, name, struct.pack("i", int(data[6:])))], 0, source)
            continue
        server.sendto(data, source)


def payload(size):
    return bytes((index * 7 + size) & 255 for index in range(size))


def say(what, *result):
    print(what, *result, flush=True)


def failing(what, call):
    try:
        say(what, call())
    except OSError as error:
        say(what, errno.errorcode.get(error.errno, error.errno))


def calls(own, peer):
    kind = family(peer)
    v6 = kind == socket.AF_INET6
    most = 1452 if v6 else 1472

    def fresh(connected=True):
        made = socket.socket(kind, socket.SOCK_DGRAM)
        if connected:
            made.connect((peer, PORT))
        return made

    def wait(made, events=select.POLLIN, patience=5000):
        poll = select.poll()
        poll.register(made, events)
        return [state for _, state in poll.poll(patience)]

    one = fresh()
    say("sizes", all(one.send(payload(n)) == n and one.recv(2000) == payload(n) for n in range(most + 1)))
    say("large", all(one.send(payload(n)) == n and one.recv(65536) == payload(n) for n in (most + 1, 4000, 30000)))
    say("names", one.getsockname()[0], one.getpeername()[:2])
    failing("too much", lambda: one.send(bytes(65536)))

    two = fresh(connected=False)
    failing("nowhere", lambda: two.send(b"x"))
    say("sendto", two.sendto(b"hello", (peer, PORT)))
    data, source = two.recvfrom(100)
    say("recvfrom", data, source[:2])
    two.sendto(payload(100), (peer, PORT))
    wait(two)
    say("fionread", struct.unpack("i", fcntl.ioctl(two, termios.FIONREAD, bytes(4)))[0])
    say("peek", two.recv(10, socket.MSG_PEEK), two.recv(200, socket.MSG_PEEK) == payload(100))
    say("trunc", two.recv_into(bytearray(10), 10, socket.MSG_PEEK | socket.MSG_TRUNC))
    data, _, flags, source = two.recvmsg(10)
    say("recvmsg", data, flags, source[:2])
    failing("empty", lambda: two.recv(10, socket.MSG_DONTWAIT))
    two.sendmsg([b"one ", b"", b"and two"], [], 0, (peer, PORT))
    first, second = bytearray(3), bytearray(20)
    say("vectors", two.recvmsg_into([first, second])[0], bytes(first), bytes(second))
    two.sendto(b"", (peer, PORT))
    say("nothing", wait(two), two.recvfrom(10)[0])
    two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
    began = time.monotonic()
    failing("timeout", lambda: two.recv(10))
    say("timeout took", 0.04 < time.monotonic() - began < 2)

    three = fresh(connected=False)
    three.connect((peer, NOBODY))
    say("to nobody", three.send(b"x"))
    failing("refused", lambda: three.recv(10))
    say("to nobody", three.send(b"x"))
    say("error", wait(three), errno.errorcode.get(three.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
    say("error gone", three.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    three.connect((peer, PORT))
    three.send(b"again")
    say("connected anew", three.recv(10))
    libc = ctypes.CDLL(None, use_errno=True)
    say("disconnect", libc.connect(three.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16))
    failing("peer", three.getpeername)
    three.sendto(b"loose", (peer, PORT))
    say("loose", three.recvfrom(10)[0])
    duplicate = three.dup()
    three.close()
    duplicate.sendto(b"by another name", (peer, PORT))
    say("dup", duplicate.recv(20))

    four = fresh()
    epoll = select.epoll()
    epoll.register(four, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    say("epoll", [state for _, state in epoll.poll(1)])
    say("epoll again", epoll.poll(0.01))
    four.send(b"a")
    time.sleep(0.05)
    say("epoll in", any(state & select.EPOLLIN for _, state in epoll.poll(1)))
    say("read", four.recv(10))
    epoll.modify(four, select.EPOLLIN)
    say("level", epoll.poll(0.01))
    four.send(b"b")
    say("level in", [state for _, state in epoll.poll(1)], [state for _, state in epoll.poll(1)], four.recv(10))
    four.send(b"c")
    say("select", [len(ready) for ready in select.select([four], [four], [four], 5)][1:])
    say("select in", len(select.select([four], [], [], 5)[0]), four.recv(10))

    # What comes another way than by the link.
    five = fresh(connected=False)
    five.bind(("::" if v6 else "0.0.0.0", 0))
    port = five.getsockname()[1]
    watch = select.epoll()
    watch.register(five, select.EPOLLIN)
    near = socket.socket(kind, socket.SOCK_DGRAM)
    loopback = "::1" if v6 else "127.0.0.1"
    five.sendto(b"far", (peer, PORT))
    near.sendto(b"near", (loopback, port))
    got = set()
    while len(got) < 2:
        say_nothing = watch.poll(5)
        if not say_nothing:
            break
        got.add(five.recvfrom(100)[0])
    say("both ways", sorted(got))
    near.sendto(b"own", (own, port))
    say("own address", five.recvfrom(100)[0])
    failing("broadcast", lambda: five.sendto(b"x", ("255.255.255.255", 9))) if not v6 else None

    six = fresh(connected=False)
    six.bind((own, 0))
    if v6:
        six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        six.setsockopt(socket.IPPROTO_IP, 8, 1)
    six.sendto(b"where to?", (peer, PORT))
    say("packet info", len(six.recvmsg(100, 200)[1]))
    packet_information(own, peer)
    segments(peer, most)
    errors(peer)

    seven = fresh()
    seven.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    seven.send(b"flood 200")
    time.sleep(0.3)
    count, last = 0, -1
    ordered = True
    while wait(seven, patience=100):
        number = int(seven.recv(2000)[:4])
        ordered, last, count = ordered and number > last, number, count + 1
    say("flood", 0 < count < 100, ordered)
    seven.send(b"alive")
    say("after", seven.recv(10))
    seven.shutdown(socket.SHUT_RD)
    say("shut", seven.recv(10), sorted(wait(seven)))
    seven.shutdown(socket.SHUT_WR)
    try:
        seven.send(b"x")
    except OSError as error:
        say("shut for writing", errno.errorcode[error.errno])
    unconnected = fresh(connected=False)
    failing("shutdown unconnected", lambda: unconnected.shutdown(socket.SHUT_RDWR))


# IP_PKTINFO, IP_RECVTTL, IP_RECVTOS; IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS.
TOLD = {socket.AF_INET: [(socket.IPPROTO_IP, name) for name in (8, 12, 13)],
        socket.AF_INET6: [(socket.IPPROTO_IPV6, name) for name in (49, 51, 66)]}


def readable(control):
    """Control messages, with what is the same at both ends and at all times."""
    told = []
    for level, kind, data in control:
        if level == socket.SOL_SOCKET:
            fraction = 1e9 if kind in (35, 64) else 1e6
            seconds, parts = struct.unpack("qq", data)
            told.append((level, kind, abs(time.time() - seconds - parts / fraction) < 5))
        elif (level, kind) == (socket.IPPROTO_IP, 8):
            index, own, to = struct.unpack("i4s4s", data)
            told.append((level, kind, index in dict(socket.if_nameindex()), socket.inet_ntoa(own), socket.inet_ntoa(to)))
        elif (level, kind) == (socket.IPPROTO_IPV6, 50):
            to, index = struct.unpack("16si", data)
            told.append((level, kind, index in dict(socket.if_nameindex()), socket.inet_ntop(socket.AF_INET6, to)))
        else:
            told.append((level, kind, data.hex()))
    return told


def packet_information(own, peer):
    kind = family(peer)
    v6 = kind == socket.AF_INET6
    one = socket.socket(kind, socket.SOCK_DGRAM)
    one.settimeout(5)
    one.bind(("::" if v6 else "0.0.0.0", 0))

    def asked(data, room=500, flags=0):
        one.sendto(data, (peer, PORT))
        answer, control, flags, _ = one.recvmsg(100, room, flags)
        return answer, readable(control), flags

    say("told nothing", asked(b"x"))
    for level, name in TOLD[kind]:
        one.setsockopt(level, name, 1)
        say("told", name, asked(b"class 184"))
    for name in 29, 35, 63, 64:
        one.setsockopt(socket.SOL_SOCKET, name, 1)
        say("time", name, asked(b"x"))
        one.setsockopt(socket.SOL_SOCKET, name, 0)
    say("no time", asked(b"class 3"))
    one.setsockopt(socket.SOL_SOCKET, 29, 1)
    for room in 0, 8, 16, 20, 32, 40, 48, 64, 70, 80, 96:
        one.sendto(b"class 5", (peer, PORT))
        answer, control, flags, _ = one.recvmsg(3, room)
        say("room", room, answer, [(level, kind, len(data)) for level, kind, data in control], flags)
    one.setsockopt(socket.SOL_SOCKET, 29, 0)
    say("peek", asked(b"x", 500, socket.MSG_PEEK), one.recvmsg(100, 500)[0])
    one.sendto(b"x", (peer, PORT))
    say("without room", one.recv(10))
    for level, name in TOLD[kind]:
        one.setsockopt(level, name, 0)
    say("told nothing again", asked(b"class 184"))

    # Where an answer comes from.
    def pack(address, index=0):
        if v6:
            return [(socket.IPPROTO_IPV6, 50, socket.inet_pton(kind, address) + struct.pack("i", index))]
        return [(socket.IPPROTO_IP, 8, struct.pack("i4s4s", index, socket.inet_aton(address), bytes(4)))]

    def sent(control):
        one.sendmsg([b"from"], control, 0, (peer, PORT))
        return one.recvfrom(10)[0]

    failing("from own", lambda: sent(pack(own)))
    failing("from anywhere", lambda: sent(pack("::" if v6 else "0.0.0.0")))
    failing("from nobody's", lambda: sent(pack("fd00::99" if v6 else "10.250.250.250")))
    failing("by no interface", lambda: sent(pack(own, 9999)))
    failing("class", lambda: sent([(socket.IPPROTO_IPV6, 67, struct.pack("i", 8)) if v6 else (socket.IPPROTO_IP, 1, struct.pack("i", 8))]))
    bound = socket.socket(kind, socket.SOCK_DGRAM)
    bound.bind((own, 0))
    failing("from what it is bound to", lambda: bound.sendmsg([b"x"], pack(own), 0, (peer, PORT)))
    say("answer", bound.recv(10))
    # What DNS servers set besides.
    bound.setsockopt(socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP, 23 if v6 else 10, 5)
    if v6:
        bound.setsockopt(socket.IPPROTO_IPV6, 24, 1280)
    for size in 100, 1232, 1233, 1400, 4000:
        bound.sendto(payload(size), (peer, PORT))
        say("size", size, bound.recv(5000) == payload(size))
    if v6:
        bound.setsockopt(socket.IPPROTO_IPV6, IPV6_DONTFRAG, 1)
        for size in 1232, 1233, 4000:
            failing(f"whole {size}", lambda: bound.sendto(payload(size), (peer, PORT)))
        say("whole", bound.recv(5000) == payload(1232))
        both_families(own)


def segments(peer, most):
    """UDP_SEGMENT and UDP_GRO, by option and by control message."""
    one = socket.socket(family(peer), socket.SOCK_DGRAM)
    one.settimeout(5)
    one.connect((peer, PORT))

    def cut(size):
        return [(SOL_UDP, UDP_SEGMENT, struct.pack("H", size))]

    def lengths(number):
        return [len(one.recv(65536)) for _ in range(number)]

    for value in -1, 65536, 1000:
        failing(f"segment {value}", lambda: one.setsockopt(SOL_UDP, UDP_SEGMENT, value))
        say("segment is", one.getsockopt(SOL_UDP, UDP_SEGMENT))
    for size in 0, 999, 1000, 1001, 3500, 4000:
        say("by option", one.send(payload(size)), lengths(max(1, -(-size // 1000))))
    say("message before option", one.sendmsg([payload(2400), payload(1)], cut(1200)), lengths(3))
    say("message of nothing", one.sendmsg([payload(1400)], cut(0)), lengths(1))
    one.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
    say("without", one.send(payload(1400)), lengths(1))
    one.send(payload(1300))
    first = one.recv(2000)
    one.sendmsg([payload(1300)], cut(600))
    say("the same bytes", b"".join(one.recv(2000) for _ in range(3)) == first)
    say("as long as it may be", one.sendmsg([bytes(2 * most)], cut(most)), lengths(2))
    failing("too long", lambda: one.sendmsg([bytes(2 * most)], cut(most + 1)))
    say("not too many", one.sendmsg([bytes(64 * 10)], cut(10)), lengths(64))
    failing("too many", lambda: one.sendmsg([bytes(65500)], cut(10)))
    failing("odd message", lambda: one.sendmsg([bytes(100)], [(SOL_UDP, UDP_SEGMENT, struct.pack("I", 10))]))
    failing("unknown message", lambda: one.sendmsg([bytes(100)], [(SOL_UDP, 99, struct.pack("H", 10))]))

    def train(count, size, rest):
        one.send(b"train %d %d %d" % (count, size, rest))
        whole, parts = b"", []
        while len(whole) < count * size + rest:
            data, control, flags, _ = one.recvmsg(65536, 200)
            whole += data
            parts.append((len(data), control, flags))
        return whole == payload(count * size + rest), parts

    say("train", train(5, 1000, 300))
    one.setsockopt(SOL_UDP, UDP_GRO, 1)
    say("joins", one.getsockopt(SOL_UDP, UDP_GRO))
    # What the kernel joins is its own affair.
    for count, size, rest in (5, 1000, 300), (7, 1000, 0), (40, 1200, 1), (1, 100, 0), (60, 100, 99):
        whole, parts = train(count, size, rest)
        told = struct.pack("i", size)
        sound = all(control == ([(SOL_UDP, UDP_GRO, told)] if length > size else []) for length, control, _ in parts)
        say("joined", whole, sound, {flags for _, _, flags in parts})
    one.setsockopt(SOL_UDP, UDP_GRO, 0)
    say("train again", train(2, 500, 0))


def errors(peer):
    """IP_RECVERR, IPV6_RECVERR and MSG_ERRQUEUE."""
    kind = family(peer)
    v6 = kind == socket.AF_INET6
    level, name = (socket.IPPROTO_IPV6, 25) if v6 else (socket.IPPROTO_IP, 11)

    def wait(made, patience):
        poll = select.poll()
        poll.register(made, select.POLLIN)
        return [state for _, state in poll.poll(patience)]

    def soon(made):
        # What says that nobody is there.
        return wait(made, 5000)

    def pending(made):
        return errno.errorcode.get(made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def report(control):
        *others, (at, what, data) = control
        error, origin, icmp, code, _, info, more, where = struct.unpack("=IBBBBIIH", data[:18])
        offender = socket.inet_ntop(kind, data[24:40] if v6 else data[20:24])
        said = errno.errorcode[error], origin, icmp, code, info, more, where == kind, offender, len(data)
        return at, what, said, readable(others)

    def queued(made, length=2000, room=500):
        data, control, flags, source = made.recvmsg(length, room, socket.MSG_ERRQUEUE)
        return len(data), data == payload(100)[:length], report(control), flags, source[:2]

    one = socket.socket(kind, socket.SOCK_DGRAM)
    one.connect((peer, NOBODY))
    one.setsockopt(level, name, 1)
    say("told of errors", one.getsockopt(level, name))
    failing("no error", lambda: one.recvmsg(100, 100, socket.MSG_ERRQUEUE))
    one.send(payload(100))
    say("error comes", soon(one))
    failing("read fails", lambda: one.recv(10))
    say("queued still", wait(one, 100), queued(one))
    say("queue is empty", wait(one, 20), pending(one))
    failing("no error", lambda: one.recvmsg(100, 100, socket.MSG_ERRQUEUE))
    one.send(payload(100))
    say("again", soon(one), pending(one), pending(one))
    one.send(payload(100))
    deadline = time.monotonic() + 5
    while (said := pending(one)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    say("two wait", said)
    say("first", queued(one), pending(one), pending(one))
    say("second", queued(one), pending(one), wait(one, 20))
    one.send(payload(100))
    say("by recvfrom", soon(one), one.recvfrom(50, socket.MSG_ERRQUEUE)[1][:2])
    one.send(payload(100))
    soon(one)
    one.setsockopt(level, name, 0)
    say("not told any more", pending(one), wait(one, 20))
    failing("thrown away", lambda: one.recvmsg(100, 100, socket.MSG_ERRQUEUE))

    two = socket.socket(kind, socket.SOCK_DGRAM)
    two.setsockopt(level, name, 1)
    two.sendto(payload(100), (peer, NOBODY))
    say("unconnected", soon(two), queued(two, length=7))
    two.sendto(payload(100), (peer, NOBODY))
    soon(two)
    failing("unconnected send", lambda: two.sendto(b"x", (peer, PORT)))
    two.sendto(b"x", (peer, PORT))
    say("goes on", two.recv(10), queued(two))
    for at, what in [*TOLD[kind], (socket.SOL_SOCKET, 29)]:
        two.setsockopt(at, what, 1)
    two.sendto(payload(100), (peer, NOBODY))
    say("with all", soon(two), queued(two))
    for at, what in [*TOLD[kind], (socket.SOL_SOCKET, 29)]:
        two.setsockopt(at, what, 0)
    for room in 0, 16, 40, 48, 60:
        two.sendto(payload(100), (peer, NOBODY))
        soon(two)
        data, control, flags, _ = two.recvmsg(200, room, socket.MSG_ERRQUEUE)
        say("room", room, len(data), [(at, what, len(data)) for at, what, data in control], flags)


def joined(peer, times):
    """What came together is read together; what is sent together is cut."""
    one = socket.socket(family(peer), socket.SOCK_DGRAM)
    one.settimeout(5)
    one.connect((peer, PORT))
    one.setsockopt(SOL_UDP, UDP_GRO, 1)

    def read(left):
        reads = 0
        while left > 0:
            left -= len(one.recv(65536))
            reads += 1
        return reads

    reads = 0
    for _ in range(times):
        one.send(b"train 20 1000 300")
        time.sleep(0.05)
        reads += read(20_300)
    assert reads <= times * 10, reads
    # Into room for three and a half at once, which nothing may be cut to fit.
    one.send(b"train 20 1000 300")
    time.sleep(0.05)
    left = 20_300
    while left > 0:
        data, _, flags, _ = one.recvmsg(3500, 200)
        assert flags == 0 and len(data) <= 3300, (len(data), flags)
        left -= len(data)
    one.setsockopt(SOL_UDP, UDP_SEGMENT, 500)
    for _ in range(times):
        one.send(payload(5000))
        read(5000)


def both_families(own):
    """A socket of IPv6 that hears its own host's IPv4 as well: all that is told."""
    both = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    both.bind(("::", 0))
    for level, name in TOLD[socket.AF_INET] + TOLD[socket.AF_INET6]:
        both.setsockopt(level, name, 1)
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    near.sendto(b"near", ("127.0.0.1", both.getsockname()[1]))
    data, control, flags, _ = both.recvmsg(100, 500)
    say("both", data, readable(control), flags)


def information(own, peer, times):
    """Asks again and again with a socket that is told everything, and answers from its own address."""
    one = socket.socket(family(peer), socket.SOCK_DGRAM)
    one.bind(("::" if ":" in own else "0.0.0.0", 0))
    for level, name in TOLD[family(peer)]:
        one.setsockopt(level, name, 1)
    if ":" in own:
        # BIND does so to all that it has.
        one.setsockopt(socket.IPPROTO_IPV6, IPV6_DONTFRAG, 0)
    one.setsockopt(socket.SOL_SOCKET, 35, 1)
    packed = socket.inet_pton(family(own), own)
    control = [(socket.IPPROTO_IPV6, 50, packed + bytes(4))] if ":" in own else [(socket.IPPROTO_IP, 8, bytes(4) + packed + bytes(4))]
    for _ in range(times):
        one.sendmsg([b"hello"], control, 0, (peer, PORT))
        data, told, _, _ = one.recvmsg(100, 500)
        assert data == b"hello" and len(told) == 4, told


def share(own, count):
    """Several sockets at one port: each answers with its number, and one that is told to go goes."""
    servers = {}
    for number in range(count):
        server = socket.socket(family(own), socket.SOCK_DGRAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("::" if ":" in own else "0.0.0.0", PORT))
        server.setblocking(False)
        servers[server] = b"%d" % number
    print("ready", flush=True)
    while servers:
        for server in select.select(list(servers), [], [])[0]:
            try:
                data, source = server.recvfrom(65536)
            except BlockingIOError:
                continue
            if data == b"quit":
                return
            server.sendto(servers[server], source)
            if data == b"go":
                del servers[server]
                server.close()


def broadcast(own, peer, count):
    """Asks a peer, with the option that lets a socket send to all hosts of a network, and sends to them."""
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(5)
    one.bind((own, 0))
    everybody = peer.rpartition(".")[0] + ".255"
    failing("not allowed", lambda: one.sendto(b"all", (everybody, 9)))
    failing("nor to connect", lambda: one.connect((everybody, 9)))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    say("option", one.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST))
    for number in range(count):
        one.sendto(b"%d" % number, (peer, PORT))
        say("asked", one.recvfrom(100))
        say("all", one.sendto(b"all", (everybody, 9)))
    two = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    two.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    two.connect((everybody, 9))
    say("connected", two.getpeername(), two.send(b"all"))
    two.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 0)


if sys.argv[1] == "serve":
    serve(sys.argv[2])
elif sys.argv[1] == "share":
    share(sys.argv[2], 4)
elif sys.argv[1] == "errors":
    errors(sys.argv[3])
elif sys.argv[1] == "joined":
    joined(sys.argv[3], 20)
elif sys.argv[1] == "broadcast":
    broadcast(sys.argv[2], sys.argv[3], 20)
elif sys.argv[1] == "information":
    information(sys.argv[2], sys.argv[3], 100)
else:
    calls(sys.argv[2], sys.argv[3])
