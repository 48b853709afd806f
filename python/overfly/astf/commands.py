"""The steps of a program, as objects. `ASTFProgram` makes them; published profiles also make some themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from .arguments import number, of_type, payload, whole
from .errors import ASTFError, here

COUNT_MOST = 2**63 - 1
"""Counters and variables are signed numbers of 64 bits."""
DELAY_US_MOST = 2**32 - 1
PAYLOAD_BYTES_MOST = 2**32 - 1
SECONDS_MOST = 10_000_000.0


@dataclass(frozen=True)
class Payload:
    """What one send carries: `data`, and `fill` over and over after it until there are `size` bytes."""

    data: bytes
    size: int
    fill: bytes

    @staticmethod
    def of(where: str, buf: object, size: object = 0, fill: object = None) -> "Payload":
        """As send() takes it: `size` counts only where it is more than `buf` has."""
        data = payload(f"{where}: buf", buf)
        wanted = whole(f"{where}: size", 0 if size is None else size, 0, PAYLOAD_BYTES_MOST)
        pattern = b"" if fill is None else payload(f"{where}: fill", fill)
        if wanted <= len(data):
            return Payload(data, len(data), b"")
        return Payload(data, wanted, pattern or b"\0")

    def at(self, offset: int) -> int:
        """The byte at an offset."""
        beyond = offset - len(self.data)
        return self.data[offset] if beyond < 0 else self.fill[beyond % len(self.fill)]


class ASTFCmd:
    """One step. `stream` is True for TCP's own, False for UDP's own, None for both."""

    op = ""
    stream: Optional[bool] = None

    def __init__(self, **fields: Any) -> None:
        self.fields: Dict[str, Any] = fields
        self.payload: Optional[Payload] = None
        self.variable: Optional[str] = None
        self.timer: Optional[str] = None
        self.label: Optional[str] = None
        self.template: Optional[str] = None
        self.place = here()


class ASTFCmdConnect(ASTFCmd):
    """connect(), accept(): wait until the connection is established."""

    op, stream = "connect", True


class ASTFCmdSend(ASTFCmd):
    """send()."""

    op, stream = "send", True

    def __init__(self, buf: object, size: int = 0, fill: object = None) -> None:
        super().__init__()
        self.payload = Payload.of("send", buf, size, fill)
        if self.payload.size == 0:
            raise ASTFError("send: there is nothing to send; give a buffer, or a size")


class ASTFCmdRecv(ASTFCmd):
    """recv(): wait until so many bytes have come since the counter was last cleared."""

    op, stream = "recv", True

    def __init__(self, min_bytes: int, clear: object = False) -> None:
        super().__init__(bytes=whole("recv: bytes", min_bytes, 0, COUNT_MOST), clear=bool(of_type("recv: clear", clear, (bool, int))))


class ASTFCmdTxPkt(ASTFCmd):
    """send_msg()."""

    op, stream = "send_msg", False

    def __init__(self, buf: object, size: int = 0, fill: object = None) -> None:
        super().__init__()
        self.payload = Payload.of("send_msg", buf, size, fill)
        # RFC 768: the length has 16 bits and counts the header; IPv4's total length counts 20 more.
        if self.payload.size > 65_507:
            raise ASTFError(f"send_msg: a datagram holds at most 65507 bytes, not {self.payload.size}")


class ASTFCmdRecvMsg(ASTFCmd):
    """recv_msg(): wait until so many datagrams have come since the counter was last cleared."""

    op, stream = "recv_msg", False

    def __init__(self, min_pkts: int, clear: object = False) -> None:
        super().__init__(
            messages=whole("recv_msg: pkts", min_pkts, 0, COUNT_MOST), clear=bool(of_type("recv_msg: clear", clear, (bool, int)))
        )


class ASTFCmdKeepaliveMsg(ASTFCmd):
    """set_keepalive_msg(): the flow ends when it was idle for so long."""

    op, stream = "keepalive", False

    def __init__(self, msec: int, rx_mode: bool = False) -> None:
        super().__init__(
            idle_ms=whole("set_keepalive_msg: msec", msec, 1, 2**32 - 1),
            received_only=of_type("set_keepalive_msg: rx_mode", rx_mode, bool),
        )


class ASTFCmdCloseMsg(ASTFCmd):
    """close_msg(): the flow is over on this side."""

    op, stream = "close_msg", False


class ASTFCmdDelay(ASTFCmd):
    """delay(): do nothing for so many microseconds."""

    op = "delay"

    def __init__(self, usec: float) -> None:
        super().__init__(us=int(number("delay: usec", usec, 0, DELAY_US_MOST)))


class ASTFCmdDelayRnd(ASTFCmd):
    """delay_rand(): do nothing for a time between two, each as likely as the other."""

    op = "delay_random"

    def __init__(self, min_usec: float, max_usec: float) -> None:
        low = int(number("delay_rand: min_usec", min_usec, 0, DELAY_US_MOST))
        high = int(number("delay_rand: max_usec", max_usec, 0, DELAY_US_MOST))
        if low > high:
            raise ASTFError(f"delay_rand: min_usec {low} is more than max_usec {high}")
        super().__init__(min_us=low, max_us=high)


class ASTFCmdReset(ASTFCmd):
    """reset(): RST to the peer, and the end."""

    op, stream = "reset", True


class ASTFCmdNoClose(ASTFCmd):
    """wait_for_peer_close()."""

    op, stream = "wait_for_peer_close", True


class ASTFCmdTxMode(ASTFCmd):
    """set_send_blocking(): bit 0 says that a send does not wait for its acknowledgement."""

    op, stream = "send_mode", True

    def __init__(self, flags: int) -> None:
        super().__init__(blocking=not whole("tx_mode: flags", flags, 0, 1) & 1)


class _OnVariable(ASTFCmd):
    def __init__(self, id_val: object, **fields: Any) -> None:
        super().__init__(**fields)
        self.variable = of_type(f"{self.op}: var_id", id_val, str)


class _OnTimer(ASTFCmd):
    def __init__(self, id_val: object, **fields: Any) -> None:
        super().__init__(**fields)
        self.timer = of_type(f"{self.op}: var_id", id_val, str)


class ASTFCmdSetVal(_OnVariable):
    """set_var()."""

    op = "set_var"

    def __init__(self, id_val: object, val: int) -> None:
        super().__init__(id_val, value=whole("set_var: val", val, -COUNT_MOST, COUNT_MOST))


class ASTFCmdAddVal(_OnVariable):
    """add_var()."""

    op = "add_var"

    def __init__(self, id_val: object, val: int) -> None:
        super().__init__(id_val, value=whole("add_var: val", val, -COUNT_MOST, COUNT_MOST))


class ASTFCmdSetTickVar(_OnTimer):
    """set_tick_var(): the timer starts now."""

    op = "set_timer"


class ASTFCmdAddTickVar(_OnTimer):
    """add_tick_var(): the timer started so many seconds later than it did."""

    op = "add_timer"

    def __init__(self, id_val: object, duration: float) -> None:
        super().__init__(id_val, ns=int(number("add_tick_var: duration", duration, -SECONDS_MOST, SECONDS_MOST) * 1e9))


class ASTFCmdJMPNZ(_OnVariable):
    """jmp_nz(): take one from the variable, and go to the label unless it is zero then."""

    op = "jump_nonzero"

    def __init__(self, id_val: object, offset: int, label: object) -> None:
        super().__init__(id_val)
        self.label = of_type("jmp_nz: label", label, str)


class ASTFCmdJMPDP(_OnTimer):
    """jmp_dp(): go to the label if fewer seconds than `duration` have passed since the timer started."""

    op = "jump_before"

    def __init__(self, id_val: object, offset: int, label: object, duration: float) -> None:
        super().__init__(id_val, ns=int(number("jmp_dp: duration", duration, 0, SECONDS_MOST) * 1e9))
        self.label = of_type("jmp_dp: label", label, str)


class ASTFCmdJump(ASTFCmd):
    """jmp()."""

    op = "jump"

    def __init__(self, label: object) -> None:
        super().__init__()
        self.label = of_type("jmp: label", label, str)


COMPARISONS: Tuple[str, ...] = ("lt", "gt", "eq", "ge", "le", "ne")


class ASTFCmdJumpIf(_OnVariable):
    """jmp_lt() and its five sisters: go to the label if the variable compares so with the value."""

    op = "jump_if"

    def __init__(self, comparison: str, id_val: object, label: object, value: int) -> None:
        if comparison not in COMPARISONS:
            raise ASTFError(f"jmp_cmp: the comparison is one of {', '.join(COMPARISONS)}, not {comparison!r:.60}")
        super().__init__(id_val, **{"is": comparison, "value": whole(f"jmp_{comparison}: value", value, -COUNT_MOST, COUNT_MOST)})
        self.label = of_type(f"jmp_{comparison}: label", label, str)


def _counter(where: str, name: object) -> str:
    if name not in ("A", "B", "C", "D"):
        raise ASTFError(f"{where}: there are the counters A, B, C and D, not {name!r:.60}")
    return str(name)


class ASTFCmdAddStats(ASTFCmd):
    """add_stats(): add to a counter of the template's."""

    op = "count"

    def __init__(self, stats_id: object, val: int) -> None:
        super().__init__(counter=_counter("add_stats", stats_id), value=whole("add_stats: val", val, -COUNT_MOST, COUNT_MOST))


class ASTFCmdAddTickStats(_OnTimer):
    """add_tick_stats(): add to a counter the microseconds since the timer started."""

    op = "count_time"

    def __init__(self, stats_id: object, id_val: object) -> None:
        super().__init__(id_val, counter=_counter("add_tick_stats", stats_id))


class ASTFCmdSetNextTemplate(ASTFCmd):
    """set_next_template(): which group's template exec_template() runs."""

    op = "set_next_template"

    def __init__(self, tg_name: object) -> None:
        super().__init__()
        self.template = of_type("set_next_template: tg_name", tg_name, str)


class ASTFCmdExecTemplate(ASTFCmd):
    """exec_template(): open a flow of the next template from the same client, and wait for its end."""

    op = "exec_template"
