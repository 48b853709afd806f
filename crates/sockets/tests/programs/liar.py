"""Frames whose lengths lie, beside those that are true.

usage: liar.py INTERFACE PORT

Sees what leaves by INTERFACE, and sends copies of some of the frames for PORT over IPv4, with their own payload and sequence numbers,
whose headers say other lengths than they have. Ends with its standard input, and says how many the kernel took.
"""
import collections
import select
import socket
import struct
import sys

INTERFACE, PORT = sys.argv[1], int(sys.argv[2])
SOL_PACKET, PACKET_VNET_HDR, ETH_P_ALL, PACKET_OUTGOING = 263, 15, 3, 4
VIRTIO = struct.Struct("<BBHHHH")
# One of so many is copied.
SELDOM = 2


def folded(words):
    words = (words & 0xFFFF) + (words >> 16)
    return (words & 0xFFFF) + (words >> 16)


def checksum(header):
    return 0xFFFF - folded(sum(struct.unpack(f">{len(header) // 2}H", header)))


def with_total(frame, total):
    """Says another length in the IP header, and for all else is as a true one."""
    frame[16:18] = struct.pack(">H", total)
    frame[24:26] = b"\0\0"
    frame[24:26] = struct.pack(">H", checksum(bytes(frame[14:34])))
    # The sum of the pseudo-header, which a frame has whose checksum is not computed.
    pseudo = bytes(frame[26:34]) + struct.pack(">HH", 6, (total - 20) & 0xFFFF)
    frame[50:52] = struct.pack(">H", folded(sum(struct.unpack(">6H", pseudo))))
    return frame


def lies(header, frame):
    """By name: what the kernel is told, and the frame."""
    flags, segmentation, headers, segment, begin, offset = VIRTIO.unpack(header)
    told = lambda **said: VIRTIO.pack(*{**dict(
        flags=flags, segmentation=segmentation, headers=headers, segment=segment, begin=begin, offset=offset
    ), **said}.values())
    true = lambda: bytearray(frame)
    total = len(frame) - 14
    yield "longer than it is", header, with_total(true(), min(total + 1000, 65535))
    yield "as long as can be", header, with_total(true(), 65535)
    yield "shorter than it is", header, with_total(true(), total // 2)
    yield "no more than headers", header, with_total(true(), 52)
    yield "less than headers", header, with_total(true(), 30)
    yield "nothing", header, with_total(true(), 0)
    long = true()
    long[46] = 0xF0 | long[46] & 0xF  # the TCP header's length
    yield "a header that is too long", header, with_total(long, 60)
    short = true()
    short[46] = 0x10 | short[46] & 0xF
    yield "a header that is too short", header, short
    long = true()
    long[14] = 0x4F
    yield "IP's header is longer", header, with_total(long, total)
    cut = true()[: len(frame) * 2 // 3]
    yield "cut short", header, cut
    yield "cut in the headers", header, true()[:60]
    if segmentation:
        yield "segments of one byte", told(segment=1), true()
        yield "segments of all", told(segment=65535), true()
        yield "no segments", told(segmentation=0, segment=0), true()
        yield "of IPv6", told(segmentation=4), true()
        yield "headers of one byte", told(headers=1), true()
        yield "headers of all", told(headers=65535), true()


wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
wire.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
wire.bind((INTERFACE, ETH_P_ALL))
print("ready", flush=True)
taken, refused, seen, turn = collections.Counter(), collections.Counter(), 0, 0
while True:
    readable, _, _ = select.select([wire, sys.stdin], [], [])
    if sys.stdin in readable:
        break
    whole, address = wire.recvfrom(70000)
    header, frame = whole[: VIRTIO.size], whole[VIRTIO.size :]
    is_ours = len(frame) > 1000 and frame[12:15] == b"\x08\0\x45" and frame[36:38] == PORT.to_bytes(2, "big")
    if address[2] != PACKET_OUTGOING or not is_ours:
        continue
    seen += 1
    if seen % SELDOM:
        continue
    all_of_them = list(lies(header, frame))
    name, told, lie = all_of_them[turn % len(all_of_them)]
    turn += 1
    try:
        wire.send(bytes(told) + bytes(lie))
        taken[name] += 1
    except OSError:
        refused[name] += 1
print(f"taken {dict(taken)}, refused {dict(refused)}")
