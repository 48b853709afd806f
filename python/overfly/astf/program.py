"""What one side of a flow does, step by step."""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple, Union

from . import capture
from .arguments import list_of, number, of_type, optional, payload, whole
from .commands import (
    ASTFCmd,
    ASTFCmdAddStats,
    ASTFCmdAddTickStats,
    ASTFCmdAddTickVar,
    ASTFCmdAddVal,
    ASTFCmdCloseMsg,
    ASTFCmdConnect,
    ASTFCmdDelay,
    ASTFCmdDelayRnd,
    ASTFCmdExecTemplate,
    ASTFCmdJMPDP,
    ASTFCmdJMPNZ,
    ASTFCmdJump,
    ASTFCmdJumpIf,
    ASTFCmdKeepaliveMsg,
    ASTFCmdNoClose,
    ASTFCmdRecv,
    ASTFCmdRecvMsg,
    ASTFCmdReset,
    ASTFCmdSend,
    ASTFCmdSetNextTemplate,
    ASTFCmdSetTickVar,
    ASTFCmdSetVal,
    ASTFCmdTxMode,
    ASTFCmdTxPkt,
    COUNT_MOST,
)
from .errors import ASTFError, Place, here

VARIABLES_MOST = 5
"""A flow's variables, and its timers, are so many at most."""

SHORTEST_THINK_NS = 50_000
"""Think times of a capture that are shorter are the network's, not the program's."""
LONGEST_UNASKED_US = 900_000
"""A UDP flow that is silent for longer gets a keep-alive of half as long again."""

profile_folder: Optional[str] = None
"""Where the profile that is being run lies; captures with a relative name are looked up there."""

Delay = Union[ASTFCmdDelay, ASTFCmdDelayRnd]


def capture_path(name: str, place: Optional[Place]) -> str:
    """Where a capture is: an absolute name, or one beside the profile."""
    folder = profile_folder or (os.path.dirname(place.file) if place else os.curdir)
    return os.path.normpath(os.path.join(folder, name))


def read_capture(name: str, place: Optional[Place]) -> capture.Flow:
    """The flow of a capture; what is wrong with it is the fault of the line that named it."""
    path = capture_path(name, place)
    try:
        return capture.read(path)
    except capture.CaptureError as error:
        raise ASTFError(f"capture {path} {error}" if not str(error).startswith("packet") else f"capture {path}: {error}", place) from None
    except OSError as error:
        raise ASTFError(f"capture {path} cannot be read: {error.strerror}", place) from None


class ASTFProgram:
    """A program of one side: written step by step, or taken from a capture.

    `stream` says TCP (True) or UDP; `side` ("c" or "s") and `file` take one side of a capture, whose server waits `s_delay`
    before each answer, and whose datagrams are cut to fit `udp_mtu`. With `addon` "latency" the messages of both sides measure latency.
    """

    def __init__(
        self,
        file: Optional[str] = None,
        side: str = "c",
        commands: Union[ASTFCmd, List[ASTFCmd], None] = None,
        stream: bool = True,
        s_delay: Optional[Delay] = None,
        udp_mtu: Optional[int] = None,
        addon: Optional[str] = None,
        *,
        place: Optional[Place] = None,
    ) -> None:
        self.place = place or here()
        self.addon = addon
        self.stream = bool(of_type("ASTFProgram: stream", stream, (bool, int)))
        self.commands: List[ASTFCmd] = []
        self.labels: Dict[str, Tuple[int, Optional[Place]]] = {}
        self.flow: Optional[capture.Flow] = None
        self._to_receive = 0
        if side not in ("c", "s"):
            raise ASTFError(f'ASTFProgram: side is "c" or "s", not {side!r:.60}')
        if addon not in (None, "latency"):
            raise ASTFError(f'ASTFProgram: addon is "latency", or not given; {addon!r:.60} cannot be done')
        optional("ASTFProgram: s_delay", s_delay, (ASTFCmdDelay, ASTFCmdDelayRnd))
        if udp_mtu is not None:
            whole("ASTFProgram: udp_mtu", udp_mtu, 43, 65_535)
        if file is not None:
            self.flow = read_capture(of_type("ASTFProgram: file", file, str), self.place)
            self.stream = self.flow.is_tcp
            self._follow(self.flow, side == "c", s_delay, udp_mtu)
        elif commands is not None:
            self.commands = list_of("ASTFProgram: commands", commands, ASTFCmd)

    def is_stream(self) -> bool:
        """Whether this is a program for TCP."""
        return self.stream

    @property
    def total_send_bytes(self) -> int:
        """The payload of all sends as they are written, each counted once."""
        return sum(command.payload.size for command in self.commands if command.payload)

    @property
    def payload_len(self) -> int:
        """The payload of both sides of the capture."""
        return 0 if self.flow is None else self.flow.bytes_of(True) + self.flow.bytes_of(False)

    # Both transports

    def delay(self, usec: float) -> None:
        """Do nothing for `usec` microseconds."""
        self.commands.append(ASTFCmdDelay(usec))

    def delay_rand(self, min_usec: float, max_usec: float) -> None:
        """Do nothing for a time between the two, in microseconds."""
        self.commands.append(ASTFCmdDelayRnd(min_usec, max_usec))

    def set_var(self, var_id: str, val: int) -> None:
        """Give a variable of the flow a value."""
        self.commands.append(ASTFCmdSetVal(var_id, val))

    def add_var(self, var_id: str, val: int) -> None:
        """Add to a variable; the value may be negative."""
        self.commands.append(ASTFCmdAddVal(var_id, val))

    def set_tick_var(self, var_id: str) -> None:
        """Start a timer."""
        self.commands.append(ASTFCmdSetTickVar(var_id))

    def add_tick_var(self, var_id: str, duration: float) -> None:
        """Move the start of a timer by `duration` seconds."""
        self.commands.append(ASTFCmdAddTickVar(var_id, duration))

    def add_stats(self, stats_id: str, val: int) -> None:
        """Add to the counter "A" to "D" of the template."""
        self.commands.append(ASTFCmdAddStats(stats_id, val))

    def add_tick_stats(self, stats_id: str, var_id: str) -> None:
        """Add to the counter "A" to "D" the microseconds since the timer started."""
        self.commands.append(ASTFCmdAddTickStats(stats_id, var_id))

    def set_label(self, label: str) -> None:
        """Name the step that comes next, for jumps."""
        if label in self.labels:
            raise ASTFError(f"set_label: there is a label {label!r} already, {self._at(self.labels[label][1])}")
        self.labels[of_type("set_label: label", label, str)] = (len(self.commands), here())

    def jmp(self, label: str) -> None:
        """Go to the label."""
        self.commands.append(ASTFCmdJump(label))

    def jmp_nz(self, var_id: str, label: str) -> None:
        """Take one from the variable, and go to the label unless it is zero then."""
        self.commands.append(ASTFCmdJMPNZ(var_id, 0, label))

    def jmp_dp(self, var_id: str, label: str, duration: float) -> None:
        """Go to the label if fewer than `duration` seconds have passed since the timer started."""
        self.commands.append(ASTFCmdJMPDP(var_id, 0, label, duration))

    def jmp_cmp(self, var_id: str, label: str, value: int, comparison: str) -> None:
        """Go to the label if the variable is `comparison` ("lt", "gt", "eq", "ge", "le", "ne") `value`."""
        self.commands.append(ASTFCmdJumpIf(comparison, var_id, label, value))

    def jmp_lt(self, var_id: str, label: str, value: int) -> None:
        """Go to the label if the variable is less than `value`."""
        self.jmp_cmp(var_id, label, value, "lt")

    def jmp_gt(self, var_id: str, label: str, value: int) -> None:
        """Go to the label if the variable is more than `value`."""
        self.jmp_cmp(var_id, label, value, "gt")

    def jmp_eq(self, var_id: str, label: str, value: int) -> None:
        """Go to the label if the variable is `value`."""
        self.jmp_cmp(var_id, label, value, "eq")

    def jmp_ge(self, var_id: str, label: str, value: int) -> None:
        """Go to the label if the variable is `value` or more."""
        self.jmp_cmp(var_id, label, value, "ge")

    def jmp_le(self, var_id: str, label: str, value: int) -> None:
        """Go to the label if the variable is `value` or less."""
        self.jmp_cmp(var_id, label, value, "le")

    def jmp_ne(self, var_id: str, label: str, value: int) -> None:
        """Go to the label if the variable is not `value`."""
        self.jmp_cmp(var_id, label, value, "ne")

    def set_next_template(self, tg_name: str) -> None:
        """Which template group's first template `exec_template` runs next."""
        self.commands.append(ASTFCmdSetNextTemplate(tg_name))

    def exec_template(self) -> None:
        """Open a flow of the next template from the same client, and wait for its end."""
        self.commands.append(ASTFCmdExecTemplate())

    # TCP

    def connect(self) -> None:
        """Wait until the connection is established; a client's first step."""
        self.commands.append(ASTFCmdConnect())

    def accept(self) -> None:
        """Wait until the connection is established; a server's first step."""
        self.commands.append(ASTFCmdConnect())

    def send(self, buf: Union[bytes, str], size: int = 0, fill: Union[bytes, str, None] = None) -> None:
        """Send `buf`, and `fill` over and over after it up to `size` bytes, and wait for the acknowledgement."""
        self.commands.append(ASTFCmdSend(buf, size, fill))

    def send_chunk(self, l7_buf: Union[bytes, str], chunk_size: int, delay_usec: int) -> None:
        """Send `l7_buf` in pieces of `chunk_size` bytes, with a delay after each."""
        data = payload("send_chunk: l7_buf", l7_buf)
        step = whole("send_chunk: chunk_size", chunk_size, 1, COUNT_MOST)
        for start in range(0, len(data), step):
            self.send(data[start : start + step])
            if number("send_chunk: delay_usec", delay_usec, 0, 2**32 - 1):
                self.delay(delay_usec)

    def recv(self, bytes: int, clear: Union[bool, int] = False) -> None:
        """Wait for `bytes` more than all recv() before it, since the last that cleared the counter, waited for."""
        self._to_receive += whole("recv: bytes", bytes, 0, COUNT_MOST)
        self.commands.append(ASTFCmdRecv(self._to_receive, clear))
        self._to_receive = 0 if clear else self._to_receive

    def set_send_blocking(self, block: bool) -> None:
        """Whether a send waits until its last byte was acknowledged, as it does at first, or only for room to queue it."""
        self.commands.append(ASTFCmdTxMode(0 if of_type("set_send_blocking: block", block, (bool, int)) else 1))

    def reset(self) -> None:
        """Send RST and end; the last step."""
        self.commands.append(ASTFCmdReset())

    def wait_for_peer_close(self) -> None:
        """Wait for the peer's FIN before closing; the last step."""
        self.commands.append(ASTFCmdNoClose())

    # UDP

    def send_msg(self, buf: Union[bytes, str], size: int = 0, fill: Union[bytes, str, None] = None) -> None:
        """Send a datagram."""
        self.commands.append(ASTFCmdTxPkt(buf, size, fill))

    def recv_msg(self, pkts: int, clear: Union[bool, int] = False) -> None:
        """Wait for `pkts` more datagrams than all recv_msg() before it, since the last that cleared the counter, waited for."""
        self._to_receive += whole("recv_msg: pkts", pkts, 0, COUNT_MOST)
        self.commands.append(ASTFCmdRecvMsg(self._to_receive, clear))
        self._to_receive = 0 if clear else self._to_receive

    def set_keepalive_msg(self, msec: int, rx_mode: bool = False) -> None:
        """End the flow when nothing was sent or received (with `rx_mode`: received) for `msec` milliseconds."""
        self.commands.append(ASTFCmdKeepaliveMsg(msec, rx_mode))

    def close_msg(self) -> None:
        """End the flow on this side."""
        self.commands.append(ASTFCmdCloseMsg())

    # From a capture

    def _follow(self, flow: capture.Flow, client: bool, s_delay: Optional[Delay], udp_mtu: Optional[int]) -> None:
        """The steps of one side of a flow."""
        if flow.is_tcp and flow.messages and not flow.messages[0].from_client and not client:
            self.accept()
        server_delay = None if client else s_delay
        most = None if udp_mtu is None else max(0, udp_mtu - (62 if flow.is_ipv6 else 42))  # Ethernet, IP, UDP
        waiting = 0
        for message in flow.messages:
            if message.from_client is not client:
                waiting += len(message.payload) if flow.is_tcp else 1
                continue
            if waiting:
                self.recv(waiting) if flow.is_tcp else self.recv_msg(waiting)
                if server_delay is not None:
                    self.commands.append(server_delay)
            if message.think_ns >= SHORTEST_THINK_NS and not (waiting and server_delay is not None):
                self.delay(message.think_ns // 1000)
            waiting = 0
            self.send(message.payload) if flow.is_tcp else self.send_msg(message.payload[:most])
        if waiting:
            self.recv(waiting) if flow.is_tcp else self.recv_msg(waiting)

    def longest_delay_us(self) -> int:
        """The longest of its delays, in microseconds."""
        return max((command.fields.get("us", command.fields.get("max_us", 0)) for command in self.commands), default=0)

    @staticmethod
    def _at(place: Optional[Place]) -> str:
        return f"at line {place.line}" if place else "before"
