"""What an administrator set, as the other end sees it: one line for each thing that there is to see, the same over the kernel and
over Overfly.

usage: settings.py OWN-ADDRESS PEER-ADDRESS LOOK...

A LOOK is one of the functions below.
"""
import json
import socket
import struct
import sys
import time

import ends

OWN, PEER = sys.argv[1:3]
T = socket.IPPROTO_TCP
TCP_INFO = 11
ports = iter(range(9100, 9200))

# What the peer runs: it notes what comes from here to or from one port, until it is told to say.
SNIFF = """
import json
port = {port}
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
raw.settimeout(0.05)
noted, stopped = [], []
def note():
    while True:
        try:
            frame = raw.recv(65535)
        except TimeoutError:
            if stopped:
                return
            continue
        ip = frame[14:]
        tcp = ip[(ip[0] & 15) * 4:]
        source, target = tcp[0] << 8 | tcp[1], tcp[2] << 8 | tcp[3]
        if ip[9] == 6 and socket.inet_ntoa(ip[12:16]) == "{own}" and port in (source, target):
            noted.append([ip[8], tcp[13], tcp[14] << 8 | tcp[15], tcp[20:(tcp[12] >> 4) * 4].hex()])
sniffer = threading.Thread(target=note)
sniffer.start()
tell(b"ready")
{then}
hold()
stopped.append(True)
sniffer.join()
tell(json.dumps(noted).encode() + b"\\n")
"""


class Sniffer:
    """What goes from here to or from a port of one end; `then` is what the peer does besides."""

    def __init__(self, port, then=""):
        # Ours before the peer connects: a handshake that the kernel has answered with a cookie is known to nobody.
        server = ends.look(ends.bound(OWN, next(ports)))
        program = SNIFF.format(port=port, own=OWN, then=then)
        # A program ends with an empty line.
        program = "\n".join(line for line in program.splitlines() if line)
        self.control = ends.order(PEER, "connect", server.getsockname()[1], program)
        self.other, _ = server.accept()
        assert self.control.recv(5) == b"ready"

    def seen(self, flags, mask=0x17):
        """Segments with these of SYN, FIN, RST and ACK: time to live, flags, window, options."""
        self.control.sendall(b"x")
        lines = self.control.makefile()
        return [segment for segment in json.loads(lines.readline()) if segment[1] & mask == flags]


def options(text):
    """Names and values of what a SYN offers, in its order."""
    bytes_, found = bytes.fromhex(text), []
    while bytes_ and bytes_[0]:
        if bytes_[0] == 1:
            found.append("nop")
            bytes_ = bytes_[1:]
            continue
        kind, value = bytes_[0], bytes_[2:bytes_[1]]
        found.append(({2: "mss", 3: "scale", 4: "sack", 8: "timestamps", 34: "fast"}.get(kind, kind),
                      int.from_bytes(value, "big") if kind in (2, 3) else len(value)))
        bytes_ = bytes_[bytes_[1]:]
    return found


def tell_syn(who, segment):
    hops, flags, window, offered = segment
    # Windows at the start are not the same to the byte.
    # Linux counts in segments, with or without their options.
    print(who, "hops", hops, "ecn", flags >> 6, "window", (window + 400) // 1460 if window < 20000 else "large",
          *options(offered))


def syn():
    """What our SYN says."""
    port = next(ports)
    sniffer = Sniffer(port)
    control = ends.order(PEER, "listen", port, "hold()")
    connection = socket.create_connection((PEER, port))
    tell_syn("syn", sniffer.seen(2)[0])
    connection.close()
    control.close()


def answer():
    """What our answer to a SYN says, and the peer then knows."""
    server = ends.look(ends.bound(OWN, next(ports)))
    port = server.getsockname()[1]
    sniffer = Sniffer(port)
    control = ends.order(PEER, "connect", port, "tell(s.getsockopt(6, 11, 8)); hold()")
    connection, _ = server.accept()
    tell_syn("answer", sniffer.seen(0x12)[0])
    print("the peer's options", control.recv(8)[5])
    connection.close()


def own():
    """What our end says of itself."""
    port = next(ports)
    control = ends.order(PEER, "listen", port, "hold()")
    connection = socket.create_connection((PEER, port))
    info = connection.getsockopt(T, TCP_INFO, 104)
    print("congestion", connection.getsockopt(T, socket.TCP_CONGESTION, 16).split(b"\0")[0],
          "window", struct.unpack_from("=I", info, 80)[0], "mss", struct.unpack_from("=I", info, 16)[0],
          "keepalive", [connection.getsockopt(T, o) for o in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)])
    connection.close()
    control.close()


def idle():
    """Whether a flow that was idle starts slowly again."""
    port = next(ports)
    control = ends.order(PEER, "listen", port, "take(400_000); tell(b'x'); take(1); tell(b'x'); hold()")
    connection = socket.create_connection((PEER, port))
    connection.setsockopt(T, socket.TCP_NODELAY, 1)
    window = lambda: struct.unpack_from("=I", connection.getsockopt(T, TCP_INFO, 104), 80)[0]
    connection.sendall(bytes(400_000))
    control.recv(1)
    print("grown", window() > 20)
    time.sleep(1.5)
    connection.sendall(b"x")
    control.recv(1)
    print("still", window() > 20)
    connection.close()


def lost():
    """How often a SYN that nobody answers goes again."""
    # The peer has a neighbour's hardware address, and forwards nothing.
    port = next(ports)
    sniffer = Sniffer(port)
    connection = socket.socket()
    try:
        connection.connect(("10.99.0.77", port))
    except OSError as error:
        print("connect", error.errno)
    print("syns", len(sniffer.seen(2)))


def unanswered():
    """How often our answer to a SYN goes again."""
    server = ends.look(ends.bound(OWN, next(ports)))
    port = server.getsockname()[1]
    syn_ = ("import struct\n"
            f"head = struct.pack('!HHIIBBHHH', 45000, {port}, 7000, 0, 0x50, 2, 65000, 0, 0)\n"
            f"ends = socket.inet_aton('10.99.0.3') + socket.inet_aton('{OWN}')\n"
            "words = struct.unpack('!16H', ends + struct.pack('!HH', 6, 20) + head)\n"
            "total = sum(words)\n"
            "total = (total & 0xffff) + (total >> 16)\n"
            "total = (total & 0xffff) + (total >> 16)\n"
            "head = head[:16] + struct.pack('!H', 0xffff - total) + head[18:]\n"
            "ip = struct.pack('!BBHHHBBH', 0x45, 0, 40, 1, 0, 64, 6, 0) + ends\n"
            "out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)\n"
            f"out.sendto(ip + head, ('{OWN}', 0))")
    sniffer = Sniffer(port, syn_)
    time.sleep(6)
    print("answers", len(sniffer.seen(0x12)))


def gives_up():
    """A peer that has gone silent ends the connection."""
    port = next(ports)
    control = ends.order(PEER, "listen", port, "import subprocess; take(1); subprocess.run(['ip', 'route', 'add', "
                         f"'blackhole', '{OWN}/32']); time.sleep(9); subprocess.run(['ip', 'route', 'del', "
                         f"'blackhole', '{OWN}/32'])")
    connection = socket.create_connection((PEER, port))
    connection.sendall(b"x")
    time.sleep(1)
    connection.sendall(b"y")
    connection.settimeout(8)
    try:
        print("read", connection.recv(1))
    except OSError as error:
        print("gave up", type(error).__name__, error.errno)
    # The peer's kernel forgets the route before anybody else comes.
    time.sleep(3)
    control.close()


def fast(asks=True):
    """Whether data that comes with a SYN is taken, of two peers one after the other."""
    server = ends.bound(OWN, next(ports))
    if asks:
        server.setsockopt(T, socket.TCP_FASTOPEN, 8)
    ends.look(server)
    opens = ("f = socket.socket()\n"
             f"f.sendto(b'hello', 0x20000000, ('{OWN}', {server.getsockname()[1]}))\n"
             "f.recv(2)\n"
             "tell(f.getsockopt(6, 11, 8))")
    orders = ends.bound(OWN, next(ports))
    for _ in range(2):
        control = ends.order(PEER, "connect", orders.getsockname()[1], opens)
        connection, _ = server.accept()
        assert connection.recv(5) == b"hello"
        connection.sendall(b"ok")
        # TCPI_OPT_SYN_DATA
        print("data", control.recv(8)[5] & 32 != 0)
        connection.close()


def fast_unasked():
    fast(asks=False)


for look in sys.argv[3:]:
    globals()[look]()
print("done", flush=True)
