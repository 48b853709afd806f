"""What a profile may tune: TCP, IP, IPv6 and the schedule, with each one's range and default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Union

from .addresses import address
from .arguments import whole
from .errors import ASTFError

Value = Union[int, str]


@dataclass(frozen=True)
class Tunable:
    """A whole number from `low` to `high`, or an IPv6 address. `default` is None where the default is not to touch it."""

    low: int
    high: int
    default: Optional[Value]
    per_template: bool
    is_address: bool = False


_BYTES_MOST = 2**30

TUNABLES: Dict[str, Dict[str, Tunable]] = {
    "tcp": {
        "mss": Tunable(10, 9216, 1460, True),
        "initwnd": Tunable(1, 20, 10, True),
        "rxbufsize": Tunable(1024, _BYTES_MOST, 32768, True),
        "txbufsize": Tunable(1024, _BYTES_MOST, 32768, True),
        "no_delay": Tunable(0, 3, 0, True),
        "no_delay_counter": Tunable(0, 65533, 0, True),
        "rexmtthresh": Tunable(1, 10, 3, False),
        "do_rfc1323": Tunable(0, 1, 1, False),
        "do_sack": Tunable(0, 1, 1, False),
        "cc_algo": Tunable(0, 1, 0, False),
        "do_ecn": Tunable(0, 2, 0, False),
        "reass_maxqlen": Tunable(0, 1000, 100, False),
        "keepinit": Tunable(2, 65533, 5, False),
        "keepidle": Tunable(2, 65533, 5, False),
        "keepintvl": Tunable(2, 65533, 7, False),
        "blackhole": Tunable(0, 2, 0, False),
        "delay_ack_msec": Tunable(20, 50000, 100, False),
    },
    "ip": {
        "tos": Tunable(0, 255, 0, True),
        "ttl": Tunable(1, 255, None, True),
        "dont_use_inbound_mac": Tunable(0, 1, 0, True),
    },
    "ipv6": {
        "enable": Tunable(0, 1, 0, True),
        "src_msb": Tunable(0, 0, None, True, is_address=True),
        "dst_msb": Tunable(0, 0, None, True, is_address=True),
    },
    # Not TRex's: what becomes of the packets that a side sends, on their way.
    "path": {
        "delay_usec": Tunable(0, 10_000_000, 0, True),
        "jitter_usec": Tunable(0, 10_000_000, 0, True),
        "loss_ppm": Tunable(0, 1_000_000, 0, True),
    },
    "scheduler": {
        "rampup_sec": Tunable(3, 60000, None, False),
        "accurate": Tunable(0, 1, 0, False),
    },
}


class _Class:
    """One class of tunables, whose attributes are the tunables."""

    _where: str
    _known: Mapping[str, Tunable]
    _values: Dict[str, Value]

    def __init__(self, owner: str, name: str, known: Mapping[str, Tunable]) -> None:
        object.__setattr__(self, "_where", f"{owner}.{name}")
        object.__setattr__(self, "_known", known)
        object.__setattr__(self, "_values", {})

    def __setattr__(self, name: str, value: object) -> None:
        tunable = self._find(name)
        where = f"{self._where}.{name}"
        if tunable.is_address:
            self._values[name] = str(address(where, value, 6))
        else:
            self._values[name] = whole(where, value, tunable.low, tunable.high)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        tunable = self._find(name)
        return self._values.get(name, tunable.default)

    def _find(self, name: str) -> Tunable:
        if name not in self._known:
            raise ASTFError(f"{self._where} has no tunable {name!r}; it has {', '.join(self._known)}")
        return self._known[name]


class _Info:
    """A set of classes."""

    _per_template = False
    _classes: Dict[str, _Class]

    def __init__(self) -> None:
        owner = type(self).__name__
        classes: Dict[str, _Class] = {}
        for name, tunables in TUNABLES.items():
            known = {each: tunable for each, tunable in tunables.items() if tunable.per_template or not self._per_template}
            if known:
                classes[name] = _Class(owner, name, known)
        object.__setattr__(self, "_classes", classes)

    def __getattr__(self, name: str) -> _Class:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._classes:
            raise ASTFError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self._classes)}")
        return self._classes[name]

    def __setattr__(self, name: str, value: object) -> None:
        within = ", ".join(f"{name}.{each}" for each in self.__getattr__(name)._known)
        raise ASTFError(f"{type(self).__name__}.{name} cannot be set itself; set one of {within}")

    def given(self) -> Dict[str, Dict[str, Value]]:
        """What was set, by class."""
        return {name: dict(each._values) for name, each in self._classes.items() if each._values}


class ASTFGlobalInfo(_Info):
    """Tunables of a side, for all its templates."""


class ASTFGlobalInfoPerTemplate(_Info):
    """Tunables of one side of one template, which go before those of all."""

    _per_template = True


def in_force(*infos: Optional[_Info]) -> Dict[str, Dict[str, Value]]:
    """Every tunable that has a value: the default, or what the last of `infos` that sets it says."""
    values = {
        name: {each: tunable.default for each, tunable in tunables.items() if tunable.default is not None}
        for name, tunables in TUNABLES.items()
    }
    for info in infos:
        for name, given in (info.given() if info else {}).items():
            values[name].update(given)
    return values
