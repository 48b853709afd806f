"""One flow out of a capture: who said what in which order, and how long each side thought before it spoke."""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from .capture_file import CaptureError, Packet, frames, packet

__all__ = ["CaptureError", "Flow", "Message", "read"]

_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
End = Tuple[bytes, int]


@dataclass
class Message:
    """What one side sends in one go. `think_ns` is the time before it that nothing on the wire explains."""

    from_client: bool
    payload: bytes
    think_ns: int


@dataclass
class Flow:
    """A capture's only flow."""

    is_tcp: bool
    is_ipv6: bool
    client_port: int
    server_port: int
    messages: List[Message] = field(default_factory=list)

    def bytes_of(self, client: bool) -> int:
        """How much payload one side sends."""
        return sum(len(message.payload) for message in self.messages if message.from_client is client)


@functools.lru_cache(maxsize=64)
def read(path: str) -> Flow:
    """The flow of the capture at `path`. Raises CaptureError, or OSError if the file cannot be read."""
    with open(path, "rb") as file:
        content = file.read()
    packets = [each for each in (packet(frame) for frame in frames(content)) if each is not None]
    if not packets:
        raise CaptureError("has no packet of TCP or UDP")
    _check_one_flow(packets)
    return _tcp_flow(packets) if packets[0].is_tcp else _udp_flow(packets)


def _name(end: End) -> str:
    address = ipaddress.ip_address(end[0])
    return f"[{address}]:{end[1]}" if address.version == 6 else f"{address}:{end[1]}"


def _check_one_flow(packets: List[Packet]) -> None:
    first = packets[0]
    ends = {first.source, first.destination}
    for each in packets:
        if {each.source, each.destination} != ends or each.is_tcp != first.is_tcp:
            kinds = ["UDP", "TCP"]
            raise CaptureError(
                f"has several flows: packet {each.number} is {kinds[each.is_tcp]} {_name(each.source)} to {_name(each.destination)}, packet "
                f"{first.number} {kinds[first.is_tcp]} {_name(first.source)} to {_name(first.destination)}; keep one of them "
                "(tshark -Y 'tcp.stream == 0' -w)"
            )


def _udp_flow(packets: List[Packet]) -> Flow:
    first = packets[0]
    flow = Flow(False, len(first.source[0]) == 16, first.source[1], first.destination[1])
    last_ns: Optional[int] = None
    for each in packets:
        think_ns = 0 if last_ns is None else max(0, each.time_ns - last_ns)
        flow.messages.append(Message(each.source == first.source, each.payload, think_ns))
        last_ns = each.time_ns
    return flow


class _Direction:
    """What one side has sent so far: its bytes in order, and what came before its turn."""

    def __init__(self, sequence: int) -> None:
        self.start = sequence
        self.early: Dict[int, Tuple[bytes, Packet]] = {}
        self.length = 0
        self.acknowledged = 0
        self.acknowledged_ns: Optional[int] = None
        self.first_missing: Optional[Packet] = None

    def position(self, sequence: int) -> int:
        """Where in the stream a sequence number is; the numbers wrap (RFC 9293 section 3.4)."""
        ahead = (sequence - self.start - self.length) & 0xFFFFFFFF
        return self.length + (ahead - (1 << 32) if ahead >= 1 << 31 else ahead)

    def take(self, segment: Packet, position: int) -> bytes:
        """The new bytes that are in order with this segment."""
        self.early.setdefault(position, (segment.payload, segment))
        if len(segment.payload) > len(self.early[position][0]):
            self.early[position] = (segment.payload, segment)
        fresh = bytearray()
        for at in sorted(self.early):
            payload, _ = self.early[at]
            if at > self.length:
                break
            fresh += payload[self.length - at :]
            self.length = max(self.length, at + len(payload))
            del self.early[at]
        return bytes(fresh)


def _tcp_flow(packets: List[Packet]) -> Flow:
    opening = packets[0]
    if not opening.flags & _SYN or opening.flags & _ACK:
        raise CaptureError(f"begins in the middle of a connection: packet {opening.number} is no SYN; capture from the connection's beginning")
    flow = Flow(True, len(opening.source[0]) == 16, opening.source[1], opening.destination[1])
    client = opening.source
    answer = next((each for each in packets if each.source != client and each.flags & _SYN), None)
    if answer is None:
        raise CaptureError("has a SYN that nobody answers: there is no connection in it")
    sides = {True: _Direction(opening.sequence + 1 & 0xFFFFFFFF), False: _Direction(answer.sequence + 1 & 0xFFFFFFFF)}
    # The handshake says how far away each end is from where the capture was taken.
    confirmed = next((each for each in packets if each.source == client and not each.flags & _SYN and each.flags & _ACK), answer)
    asked_ns = [each.time_ns for each in packets if each.source == client and each.flags & _SYN and each.time_ns <= answer.time_ns]
    # Of a SYN that was sent again the last is the one that was answered. Clocks of captures may go backwards.
    last_syn = max(asked_ns, default=answer.time_ns)
    distance_ns = {True: max(0, confirmed.time_ns - answer.time_ns), False: max(0, answer.time_ns - last_syn)}

    last_ns: Optional[int] = None
    for each in packets:
        from_client = each.source == client
        if each.flags & _SYN:
            continue
        own, other = sides[from_client], sides[not from_client]
        if each.flags & _ACK:
            _acknowledge(other, each)
        if not each.payload:
            continue
        before = own.length
        fresh = own.take(each, own.position(each.sequence))
        if not fresh:
            continue
        _append(flow, from_client, fresh, _think(flow, own, from_client, before, each, last_ns, distance_ns[from_client]))
        last_ns = each.time_ns
    _check_complete(sides)
    return flow


def _acknowledge(sender: _Direction, segment: Packet) -> None:
    position = sender.position(segment.acknowledged)
    if sender.acknowledged < position:
        # A FIN takes a number too, so that its acknowledgement is one past the last byte.
        sender.acknowledged, sender.acknowledged_ns = position, segment.time_ns


def _think(
    flow: Flow, own: _Direction, from_client: bool, before: int, segment: Packet, last_ns: Optional[int], distance_ns: int
) -> int:
    """How long the sender was silent by choice before these bytes."""
    if not flow.messages or last_ns is None:
        return 0
    if flow.messages[-1].from_client is not from_client:
        return max(0, segment.time_ns - last_ns - distance_ns)
    # The same side goes on: it was free to, and did not, only since everything before had been acknowledged.
    if own.acknowledged >= before and own.acknowledged_ns is not None:
        return max(0, segment.time_ns - max(own.acknowledged_ns, last_ns) - distance_ns)
    return 0


PAUSE_NS = 10_000_000
"""A side that goes on after a shorter silence than this goes on with the same message."""


def _append(flow: Flow, from_client: bool, fresh: bytes, think_ns: int) -> None:
    if flow.messages and flow.messages[-1].from_client is from_client and think_ns < PAUSE_NS:
        flow.messages[-1].payload += fresh
    else:
        flow.messages.append(Message(from_client, fresh, think_ns))


def _check_complete(sides: Dict[bool, _Direction]) -> None:
    for from_client, side in sides.items():
        name = "client" if from_client else "server"
        missing = f"{name}'s bytes from {side.length} on, which are not in it; capture again without loss"
        if side.early:
            _, segment = side.early[min(side.early)]
            raise CaptureError(f"misses packets: packet {segment.number} comes after the {missing}")
        if side.acknowledged > side.length + 1:
            raise CaptureError(f"misses packets: the peer acknowledged {side.acknowledged} bytes, among them the {missing}")
