"""Reads captures: pcap and pcapng, and the packets of IPv4 and IPv6 in their frames.

Formats: pcap, https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html; pcapng,
https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html; link types, https://www.tcpdump.org/linktypes.html.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple


class CaptureError(Exception):
    """What is wrong with a capture; the message names the packet, counted from 1 as Wireshark does."""


@dataclass(frozen=True)
class Frame:
    """One captured frame. `number` counts from 1; `bytes_on_wire` may be more than was captured."""

    number: int
    time_ns: int
    link_type: int
    data: bytes
    bytes_on_wire: int


_PCAP_MAGIC: Dict[bytes, Tuple[str, int]] = {
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
}
_PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"


def frames(data: bytes) -> Iterator[Frame]:
    """The frames of a file's content, in its order."""
    if data[:4] in _PCAP_MAGIC:
        return _pcap(data)
    if data[:4] == _PCAPNG_MAGIC:
        return _pcapng(data)
    raise CaptureError("is no capture: it begins like neither pcap nor pcapng" if data else "is empty")


def _pcap(data: bytes) -> Iterator[Frame]:
    order, unit_ns = _PCAP_MAGIC[data[:4]]
    if len(data) < 24:
        raise CaptureError("is damaged: it ends within the file's header")
    # The upper bits of the link type say how long a frame check sequence is.
    link_type = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    offset, number = 24, 0
    while offset < len(data):
        number += 1
        if offset + 16 > len(data):
            raise CaptureError(f"is damaged: it ends within the header of packet {number}")
        seconds, fraction, captured, on_wire = struct.unpack_from(order + "IIII", data, offset)
        offset += 16
        if offset + captured > len(data):
            raise CaptureError(f"is damaged: it ends within packet {number}")
        yield Frame(number, seconds * 10**9 + fraction * unit_ns, link_type, data[offset : offset + captured], on_wire)
        offset += captured


def _pcapng(data: bytes) -> Iterator[Frame]:
    order, offset, number = "<", 0, 0
    interfaces: List[Tuple[int, int]] = []
    while offset < len(data):
        if offset + 12 > len(data):
            raise CaptureError(f"is damaged: it ends within a block after packet {number}")
        if data[offset : offset + 4] == _PCAPNG_MAGIC:
            order = "<" if data[offset + 8 : offset + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        kind, length = struct.unpack_from(order + "II", data, offset)
        if length < 12 or length % 4 or offset + length > len(data):
            raise CaptureError(f"is damaged: a block after packet {number} claims {length} bytes")
        body = data[offset + 8 : offset + length - 4]
        offset += length
        if kind == 1:
            interfaces.append(_interface(order, body))
        elif kind in (3, 6):
            number += 1
            yield _packet_block(order, kind, body, interfaces, number)


def _interface(order: str, body: bytes) -> Tuple[int, int]:
    """Link type, and timestamp units in a second, of an interface description block."""
    if len(body) < 8:
        raise CaptureError("is damaged: an interface description is too short")
    link_type = struct.unpack_from(order + "H", body)[0]
    offset, units = 8, 10**6
    while offset + 4 <= len(body):
        option, length = struct.unpack_from(order + "HH", body, offset)
        if option == 9 and length == 1:
            resolution = body[offset + 4]
            units = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10 ** (resolution & 0x7F)
        if option == 0:
            break
        offset += 4 + (length + 3) // 4 * 4
    return link_type, units


def _packet_block(order: str, kind: int, body: bytes, interfaces: List[Tuple[int, int]], number: int) -> Frame:
    header = 20 if kind == 6 else 4
    if len(body) < header:
        raise CaptureError(f"is damaged: the block of packet {number} is too short")
    if kind == 6:
        interface, high, low, captured, on_wire = struct.unpack_from(order + "IIIII", body)
    else:  # a simple packet block: no time, the first interface
        interface, high, low, on_wire = 0, 0, 0, struct.unpack_from(order + "I", body)[0]
        captured = min(on_wire, len(body) - header)
    if interface >= len(interfaces):
        raise CaptureError(f"is damaged: packet {number} is from an interface that was not described")
    if header + captured > len(body):
        raise CaptureError(f"is damaged: packet {number} is longer than its block")
    link_type, units = interfaces[interface]
    return Frame(number, (high << 32 | low) * 10**9 // units, link_type, body[header : header + captured], on_wire)


@dataclass(frozen=True)
class Packet:
    """A TCP segment or a UDP datagram. Addresses are the packet's own bytes; `flags`, `sequence`, `acknowledged` are TCP's."""

    number: int
    time_ns: int
    is_tcp: bool
    source: Tuple[bytes, int]
    destination: Tuple[bytes, int]
    payload: bytes
    flags: int = 0
    sequence: int = 0
    acknowledged: int = 0


_VLAN = (0x8100, 0x88A8, 0x9100)
_TCP, _UDP = 6, 17


def packet(frame: Frame) -> Optional[Packet]:
    """What the frame carries, or None if that is neither TCP nor UDP: ARP, ICMP and other company of a flow."""
    ip = _network_layer(frame)
    if ip is None or not ip:
        return None
    version = ip[0] >> 4
    if version == 4:
        protocol, source, destination, rest = _ipv4(frame, ip)
    elif version == 6:
        protocol, source, destination, rest = _ipv6(frame, ip)
    else:
        raise CaptureError(f"packet {frame.number} is neither IPv4 nor IPv6 (version {version})")
    if protocol == _UDP:
        return _udp(frame, source, destination, rest)
    return _tcp(frame, source, destination, rest) if protocol == _TCP else None


def _network_layer(frame: Frame) -> Optional[bytes]:
    """The IP packet of a frame, or None if it has another one."""
    data = frame.data
    if frame.link_type in (12, 14, 101):  # raw IP
        return data
    if frame.link_type in (0, 108):  # loopback: an address family first
        return data[4:]
    at = {1: 12, 113: 14, 276: 0}.get(frame.link_type)
    header = {1: 14, 113: 16, 276: 20}.get(frame.link_type)
    if at is None or header is None:
        raise CaptureError(f"packet {frame.number} has link type {frame.link_type}; Ethernet, Linux cooked and raw IP can be read")
    if len(data) < header:
        raise CaptureError(f"packet {frame.number} is too short for its link's header")
    kind = int.from_bytes(data[at : at + 2], "big")
    while kind in _VLAN:
        kind, header = int.from_bytes(data[header + 2 : header + 4], "big"), header + 4
    return data[header:] if kind in (0x0800, 0x86DD) else None


_Network = Tuple[int, bytes, bytes, bytes]


def _whole(frame: Frame, there: int, length: int) -> None:
    if there < length:
        if frame.bytes_on_wire > len(frame.data):
            raise CaptureError(
                f"packet {frame.number} was cut: {len(frame.data)} of {frame.bytes_on_wire} bytes were captured; capture whole packets (tcpdump -s 0)"
            )
        raise CaptureError(f"packet {frame.number} is damaged: it is shorter than its header says")


def _ipv4(frame: Frame, ip: bytes) -> _Network:
    _whole(frame, len(ip), 20)
    header, length = (ip[0] & 0xF) * 4, int.from_bytes(ip[2:4], "big")
    # A length of 0 is what a sender's segmentation offload leaves there.
    length = length or len(ip)
    if header < 20 or length < header:
        raise CaptureError(f"packet {frame.number} is damaged: its IPv4 header is too short")
    _whole(frame, len(ip), length)
    if int.from_bytes(ip[6:8], "big") & 0x3FFF:
        raise CaptureError(f"packet {frame.number} is an IP fragment; capture a flow whose packets fit the path")
    return ip[9], ip[12:16], ip[16:20], ip[header:length]


def _ipv6(frame: Frame, ip: bytes) -> _Network:
    _whole(frame, len(ip), 40)
    length = int.from_bytes(ip[4:6], "big")
    length = 40 + length if length else len(ip)
    _whole(frame, len(ip), length)
    protocol, offset = ip[6], 40
    while protocol in (0, 43, 60) and offset + 2 <= length:  # hop-by-hop, routing, destination options (RFC 8200 section 4)
        protocol, offset = ip[offset], offset + 8 + ip[offset + 1] * 8
    if protocol == 44:
        raise CaptureError(f"packet {frame.number} is an IP fragment; capture a flow whose packets fit the path")
    return protocol, ip[8:24], ip[24:40], ip[offset:length]


def _udp(frame: Frame, source: bytes, destination: bytes, udp: bytes) -> Packet:
    _whole(frame, len(udp), 8)
    source_port, destination_port, length = struct.unpack_from(">HHH", udp)
    length = length or len(udp)
    if length < 8:
        raise CaptureError(f"packet {frame.number} is damaged: its UDP length is {length}")
    _whole(frame, len(udp), length)
    return Packet(frame.number, frame.time_ns, False, (source, source_port), (destination, destination_port), udp[8:length])


def _tcp(frame: Frame, source: bytes, destination: bytes, tcp: bytes) -> Packet:
    _whole(frame, len(tcp), 20)
    source_port, destination_port, sequence, acknowledged, offset, flags = struct.unpack_from(">HHIIBB", tcp)
    header = (offset >> 4) * 4
    if header < 20:
        raise CaptureError(f"packet {frame.number} is damaged: its TCP header is too short")
    _whole(frame, len(tcp), header)
    return Packet(
        frame.number,
        frame.time_ns,
        True,
        (source, source_port),
        (destination, destination_port),
        tcp[header:],
        flags,
        sequence,
        acknowledged if flags & 0x10 else 0,
    )
