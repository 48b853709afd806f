"""What is wrong with a run before anything is sent: what its rehearsal shows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from .errors import ASTFError, Place
from .rehearsal import Outcome, Side, Stop, rehearse


@dataclass
class Findings:
    """The rehearsals of a run's templates, and what is odd but may be meant."""

    outcomes: List[Outcome] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)


def check(form: Dict[str, Any]) -> Findings:
    """Rehearses every template. Raises ASTFError if one cannot come to its end."""
    findings = Findings()
    for index, template in enumerate(form["templates"]):
        if template["client"]["port"] not in [rule["port"] for rule in template["server"]["rules"]]:
            ports = ", ".join(str(rule["port"]) for rule in template["server"]["rules"])
            findings.warnings.append(
                f"{_at(form, template, None, None)}: template {index}: its client connects to port {template['client']['port']} and its "
                f"server answers at {ports}: only a device between them that changes the port makes that one flow"
            )
        outcome = rehearse(form, index)
        findings.outcomes.append(outcome)
        _refuse(form, template, index, outcome)
        for side in (outcome.client, outcome.server):
            findings.warnings += _odd(form, template, index, outcome, side)
    return findings


def _name(side: Side) -> str:
    return "client" if side.client else "server"


def _place(form: Dict[str, Any], template: Dict[str, Any], program: Optional[int], step: Optional[int]) -> Optional[Place]:
    if program is not None:
        entry = form["programs"][program]
        own = entry["lines"][step] if step is not None and step < len(entry["lines"]) else 0
        if own or entry["line"]:
            return Place(entry["file"], own or entry["line"])
    return Place(template["file"], template["line"]) if "line" in template else None


def _at(form: Dict[str, Any], template: Dict[str, Any], program: Optional[int], step: Optional[int]) -> str:
    place = _place(form, template, program, step)
    return f"{os.path.relpath(place.file)}:{place.line}" if place else form["profiles"][template["profile"]]["file"]


def _waits(form: Dict[str, Any], side: Side) -> str:
    stop = side.waiting
    if side.ended is not None or stop is None:
        return "has ended"
    line = form["programs"][side.program]["lines"][stop.step]
    at = f" (line {line})" if line else ""
    if stop.reason == "close":
        return f"waits{at} for its peer to close"
    unit = "bytes" if side.stream else "datagrams"
    return f"waits{at} for {stop.needed} {unit} and has {side.received}"


def _refuse(form: Dict[str, Any], template: Dict[str, Any], index: int, outcome: Outcome) -> None:
    if outcome.fault is not None:
        side, why = outcome.fault
        raise ASTFError(f"template {index}: the {_name(side)} {why}", _place(form, template, side.program, side.step))
    if not outcome.deadlock:
        return
    client, server = outcome.client, outcome.server
    waiting = client if client.waiting is not None else server
    words = "has not begun, since no datagram came" if not outcome.server_started else _waits(form, server)
    raise ASTFError(
        f"template {index}: both sides wait for ever: the client {_waits(form, client)}, the server {words}",
        _place(form, template, waiting.program, waiting.waiting.step if waiting.waiting else None),
    )


def _odd(form: Dict[str, Any], template: Dict[str, Any], index: int, outcome: Outcome, side: Side) -> List[str]:
    """What ends before it should."""
    odd: List[Tuple[Optional[int], str]] = []
    cut: Optional[Stop] = side.short
    if cut is None and not side.stream and side.waiting is not None and outcome.followed:
        cut = Stop("receive", side.waiting.step, side.waiting.needed, side.received)
    if cut is not None and cut.reason == "receive":
        unit = "bytes" if side.stream else "datagrams"
        odd.append((cut.step, f"waits for {cut.needed} {unit}, but its peer ends after {side.received}"))
    if side.bytes_after_close and side.ended is not None and side.ended.reason == "closed":
        odd.append((side.ended.step - 1, f"closes before it has read the last {side.bytes_after_close} bytes that its peer sends"))
    return [f"{_at(form, template, side.program, max(0, step or 0))}: template {index}: the {_name(side)} {text}" for step, text in odd]
