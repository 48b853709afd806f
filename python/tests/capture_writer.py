"""Makes captures: frames of one or several flows, as pcap and as pcapng."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field
from typing import List, Optional, Tuple

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16


def ones_sum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass
class Recorder:
    """Frames with their times in nanoseconds."""

    client: str = "10.1.0.1"
    server: str = "10.2.0.1"
    client_port: int = 40000
    server_port: int = 80
    vlans: Tuple[int, ...] = ()
    frames: List[Tuple[int, bytes]] = field(default_factory=list)
    now_ns: int = 1_700_000_000 * 10**9
    sequences: List[int] = field(default_factory=lambda: [0xFFFFFF00, 7])
    """Of client and server: the client's wraps soon."""
    rtt_ns: int = 200_000

    def ip(self, from_client: bool, protocol: int, payload: bytes, fragment: int = 0) -> bytes:
        ends = [ipaddress.ip_address(self.client), ipaddress.ip_address(self.server)]
        source, destination = ends if from_client else reversed(ends)
        if source.version == 6:
            return struct.pack(">IHBB", 6 << 28, len(payload), protocol, 64) + source.packed + destination.packed + payload
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 0, fragment, 64, protocol, 0) + source.packed + destination.packed
        return header[:10] + struct.pack(">H", ones_sum(header)) + header[12:] + payload

    def transport(self, from_client: bool, protocol: int, segment: bytes, at: int) -> bytes:
        """A TCP segment or UDP datagram with its checksum in place."""
        ends = [ipaddress.ip_address(self.client), ipaddress.ip_address(self.server)]
        source, destination = ends if from_client else reversed(ends)
        pseudo = source.packed + destination.packed + struct.pack(">II", len(segment), protocol)
        return segment[:at] + struct.pack(">H", ones_sum(pseudo + segment) or 0xFFFF) + segment[at + 2 :]

    def frame(self, packet: bytes, kind: Optional[int] = None) -> None:
        kind = kind or (0x86DD if packet[0] >> 4 == 6 else 0x0800)
        tags = b"".join(struct.pack(">HH", 0x8100, vlan) for vlan in self.vlans)
        ethernet = b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02" + tags + struct.pack(">H", kind) + packet
        self.frames.append((self.now_ns, ethernet + b"\0" * (60 - len(ethernet))))

    def segment(self, from_client: bool, flags: int, payload: bytes = b"", sequence: Optional[int] = None) -> None:
        own, other = (0, 1) if from_client else (1, 0)
        number = self.sequences[own] if sequence is None else sequence
        ports = (self.client_port, self.server_port) if from_client else (self.server_port, self.client_port)
        acknowledged = self.sequences[other] if flags & ACK else 0
        header = struct.pack(">HHIIBBHHH", *ports, number & 0xFFFFFFFF, acknowledged & 0xFFFFFFFF, 5 << 4, flags, 65535, 0, 0)
        self.frame(self.ip(from_client, 6, self.transport(from_client, 6, header + payload, 16)))
        if sequence is None:
            self.sequences[own] += len(payload) + bool(flags & (SYN | FIN))

    def wait(self, nanoseconds: int) -> None:
        self.now_ns += nanoseconds

    def open(self) -> None:
        """The handshake, captured at the client: the server is a round trip away, the client is here."""
        self.segment(True, SYN)
        self.wait(self.rtt_ns)
        self.segment(False, SYN | ACK)
        self.segment(True, ACK)

    def say(self, from_client: bool, payload: bytes, mss: int = 1460) -> None:
        """Data in segments, acknowledged."""
        for start in range(0, len(payload), mss):
            self.segment(from_client, ACK | PSH, payload[start : start + mss])
            self.wait(1000)
        self.wait(self.rtt_ns if from_client else 0)
        self.segment(not from_client, ACK)

    def close(self) -> None:
        self.segment(True, FIN | ACK)
        self.segment(False, FIN | ACK)
        self.segment(True, ACK)

    def datagram(self, from_client: bool, payload: bytes) -> None:
        ports = (self.client_port, self.server_port) if from_client else (self.server_port, self.client_port)
        udp = struct.pack(">HHHH", *ports, 8 + len(payload), 0) + payload
        self.frame(self.ip(from_client, 17, self.transport(from_client, 17, udp, 6)))

    def pcap(self, order: str = "<", nanoseconds: bool = False, snap: int = 65535) -> bytes:
        magic, unit = (0xA1B23C4D, 1) if nanoseconds else (0xA1B2C3D4, 1000)
        parts = [struct.pack(order + "IHHIIII", magic, 2, 4, 0, 0, snap, 1)]
        for time_ns, frame in self.frames:
            kept = frame[:snap]
            parts.append(struct.pack(order + "IIII", time_ns // 10**9, time_ns % 10**9 // unit, len(kept), len(frame)) + kept)
        return b"".join(parts)

    def pcapng(self, order: str = "<", resolution: int = 9) -> bytes:
        def block(kind: int, body: bytes) -> bytes:
            body += b"\0" * (-len(body) % 4)
            return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)

        parts = [block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))]
        parts.append(block(1, struct.pack(order + "HHI", 1, 0, 0) + struct.pack(order + "HHBxxxHH", 9, 1, resolution, 0, 0)))
        parts.append(block(4, struct.pack(order + "HH", 0, 0)))  # name resolution: to be passed over
        for time_ns, frame in self.frames:
            units = time_ns * 10**resolution // 10**9
            body = struct.pack(order + "IIIII", 0, units >> 32, units & 0xFFFFFFFF, len(frame), len(frame)) + frame
            parts.append(block(6, body))
        return b"".join(parts)


def http(response: int = 20_000) -> Recorder:
    """A request of 100 bytes, 3 ms in which the server thinks, and the response."""
    recorder = Recorder()
    recorder.open()
    recorder.say(True, b"G" * 100)
    recorder.wait(3_000_000)
    recorder.say(False, b"r" * response)
    recorder.close()
    return recorder
