"""Runs the two programs of a template against each other, on a clock of its own, with no network: what each side sends, how it
ends, and whether both wait for what never comes.

The wire between them takes 50 µs each way, loses nothing, and has no bandwidth to run out of; random delays are their mean. What
depends on a timer (jump_before) depends on the real wire too, so then the figures are of this wire only.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

WIRE_NS = 50_000
STEPS_MOST = 200_000
"""A rehearsal of more steps, of both sides together, is not followed to its end."""
SPIN_STEPS = 20_000
"""A side that does so many steps one after another, none of which sends or waits, does so for ever."""
NESTED_MOST = 64
"""How many flows a flow may start from flows that it started."""

COMPARE: Dict[str, Callable[[int, int], bool]] = {
    "lt": lambda one, two: one < two,
    "gt": lambda one, two: one > two,
    "eq": lambda one, two: one == two,
    "ge": lambda one, two: one >= two,
    "le": lambda one, two: one <= two,
    "ne": lambda one, two: one != two,
}


@dataclass
class Stop:
    """Why a side does not go on: it has ended, or the step at which it waits."""

    reason: str
    step: int = -1
    needed: int = 0
    had: int = 0


@dataclass
class Side:
    """One end of the flow, and what became of it."""

    client: bool
    program: int
    commands: List[Dict[str, Any]]
    stream: bool
    variables: List[int]
    timers: List[int]
    step: int = 0
    blocking: bool = True
    waiting: Optional[Stop] = None
    ended: Optional[Stop] = None
    received: int = 0
    """Bytes (TCP) or datagrams (UDP) since the counter was last cleared."""
    sends: List[int] = field(default_factory=list)
    """How many bytes each send was."""
    bytes_received: int = 0
    bytes_after_close: int = 0
    peer_closed: bool = False
    short: Optional[Stop] = None
    """A wait that the peer's end cut short."""
    next_template: Optional[int] = None
    counters: Dict[str, int] = field(default_factory=dict)

    @property
    def bytes_sent(self) -> int:
        """Payload of all sends."""
        return sum(self.sends)


@dataclass
class Outcome:
    """How a rehearsal ended."""

    client: Side
    server: Side
    ended_ns: int = 0
    followed: bool = True
    """Whether it came to its end within STEPS_MOST."""
    timed: bool = False
    """Whether a timer decided anything."""
    deadlock: bool = False
    fault: Optional[Tuple[Side, str]] = None
    """A side that cannot go on at its step, and why."""
    nested: List[int] = field(default_factory=list)
    """The templates that exec_template ran."""
    server_started: bool = True


class _Flow:
    def __init__(self, form: Dict[str, Any], template: int, depth: int, steps_left: int) -> None:
        self.form = form
        self.depth = depth
        self.steps_left = steps_left
        entry = form["templates"][template]
        self.stream = entry["transport"] == "tcp"
        self.sides = [self._side(True, entry["client"]["program"]), self._side(False, entry["server"]["program"])]
        self.outcome = Outcome(self.sides[0], self.sides[1])
        self.events: List[Tuple[int, int, Callable[[int], None]]] = []
        self.asked = 0
        self.now_ns = 0
        self.server_started = self.stream

    def _side(self, client: bool, program: int) -> Side:
        form = self.form["programs"][program]
        return Side(client, program, form["commands"], form["stream"], [0] * form["variables"], [0] * form["timers"])

    def at(self, time_ns: int, action: Callable[[int], None]) -> None:
        # Of events at one time the first that was asked for comes first.
        self.asked += 1
        heapq.heappush(self.events, (time_ns, self.asked, action))

    def run(self) -> Outcome:
        client, server = self.sides
        # A TCP client is established after one round trip, its server half a one later. A UDP server begins with the first datagram.
        self.at(2 * WIRE_NS if self.stream else 0, lambda now: self.go_on(client, now))
        if self.stream:
            self.at(3 * WIRE_NS, lambda now: self.go_on(server, now))
        while self.events and self.steps_left > 0:
            self.now_ns, _, action = heapq.heappop(self.events)
            action(self.now_ns)
        outcome = self.outcome
        outcome.ended_ns = self.now_ns
        outcome.followed = self.steps_left > 0
        outcome.server_started = self.server_started
        if outcome.followed and self.stream:
            outcome.deadlock = any(side.ended is None for side in self.sides)
        elif outcome.followed:
            # Who waits on UDP when the other has ended is ended by its keep-alive; when both wait, nobody has a reason to.
            outcome.deadlock = client.ended is None and (server.ended is None or not self.server_started)
        return outcome

    def peer(self, side: Side) -> Side:
        return self.sides[1 if side.client else 0]

    def go_on(self, side: Side, now: int) -> None:
        """Runs a side until it waits, sleeps or ends."""
        sends, steps = len(side.sends), 0
        while side.ended is None and self.steps_left > 0:
            if side.step >= len(side.commands):
                self.end(side, now, "closed")
                return
            self.steps_left -= 1
            if len(side.sends) != sends:
                sends, steps = len(side.sends), 0
            steps += 1
            if steps > SPIN_STEPS:
                self.fail(side, now, "goes round for ever: nothing in this loop sends or waits")
                return
            command = side.commands[side.step]
            wake_ns = getattr(self, "do_" + command["op"])(side, command, now)
            if side.waiting is not None or side.ended is not None:
                return
            if wake_ns is not None:
                self.at(wake_ns, lambda then: self.go_on(side, then))
                return

    def fail(self, side: Side, now: int, why: str) -> None:
        self.outcome.fault = self.outcome.fault or (side, why)
        self.end(side, now, "failed")

    def end(self, side: Side, now: int, reason: str) -> None:
        side.waiting = None
        side.ended = Stop(reason, side.step)
        if self.stream:
            self.at(now + WIRE_NS, lambda then: self.peer_ended(self.peer(side), then, reason))

    def peer_ended(self, side: Side, now: int, reason: str) -> None:
        side.peer_closed = True
        if side.ended is not None:
            return
        if reason == "reset":
            side.short = side.waiting
            side.waiting, side.ended = None, Stop("reset by the peer", side.step)
        elif side.waiting is not None:
            waited = side.waiting
            if waited.reason == "receive" and side.received < waited.needed:
                waited.had = side.received
                side.short = waited
            self.end(side, now, "closed")

    def arrive(self, side: Side, now: int, size: int) -> None:
        """`size` bytes, or a datagram of so many, reach a side."""
        side.bytes_received += size
        if not self.server_started:
            self.server_started = True
            self.at(now, lambda then: self.go_on(side, then))
        if side.ended is not None:
            side.bytes_after_close += size
            return
        side.received += size if self.stream else 1
        waited = side.waiting
        if waited is not None and waited.reason == "receive" and side.received >= waited.needed:
            self.take(side, side.commands[side.step], waited.needed)
            self.at(now, lambda then: self.go_on(side, then))

    def take(self, side: Side, command: Dict[str, Any], needed: int) -> None:
        side.waiting = None
        side.step += 1
        if command["clear"]:
            side.received -= needed

    # The steps. Each moves on by itself, and returns when its side goes on, or None for at once.

    def do_connect(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.step += 1

    def do_send(self, side: Side, command: Dict[str, Any], now: int) -> Optional[int]:
        size = self.form["buffers"][command["buffer"]]["bytes"]
        side.sends.append(size)
        side.step += 1
        peer = self.peer(side)
        self.at(now + WIRE_NS, lambda then: self.arrive(peer, then, size))
        return now + 2 * WIRE_NS if self.stream and side.blocking else None

    do_send_msg = do_send

    def do_recv(self, side: Side, command: Dict[str, Any], now: int) -> None:
        needed = command["bytes"] if self.stream else command["messages"]
        if side.received >= needed:
            self.take(side, command, needed)
        elif side.peer_closed:
            side.short = Stop("receive", side.step, needed, side.received)
            self.end(side, now, "closed")
        else:
            side.waiting = Stop("receive", side.step, needed, side.received)

    do_recv_msg = do_recv

    def do_keepalive(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.step += 1

    def do_close_msg(self, side: Side, command: Dict[str, Any], now: int) -> None:
        self.end(side, now, "closed")

    def do_reset(self, side: Side, command: Dict[str, Any], now: int) -> None:
        self.end(side, now, "reset")

    def do_wait_for_peer_close(self, side: Side, command: Dict[str, Any], now: int) -> None:
        if side.peer_closed:
            self.end(side, now, "closed")
        else:
            side.waiting = Stop("close", side.step)

    def do_send_mode(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.blocking = command["blocking"]
        side.step += 1

    def do_delay(self, side: Side, command: Dict[str, Any], now: int) -> int:
        side.step += 1
        return now + int(command["us"]) * 1000

    def do_delay_random(self, side: Side, command: Dict[str, Any], now: int) -> int:
        side.step += 1
        return now + int(command["min_us"] + command["max_us"]) * 500

    def do_set_var(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.variables[command["var"]] = command["value"]
        side.step += 1

    def do_add_var(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.variables[command["var"]] = _signed(side.variables[command["var"]] + command["value"])
        side.step += 1

    def do_set_timer(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.timers[command["timer"]] = now
        side.step += 1

    def do_add_timer(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.timers[command["timer"]] += command["ns"]
        side.step += 1

    def do_jump(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.step = command["to"]

    def do_jump_nonzero(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.variables[command["var"]] = _signed(side.variables[command["var"]] - 1)
        side.step = command["to"] if side.variables[command["var"]] else side.step + 1

    def do_jump_before(self, side: Side, command: Dict[str, Any], now: int) -> None:
        self.outcome.timed = True
        side.step = command["to"] if now - side.timers[command["timer"]] < command["ns"] else side.step + 1

    def do_jump_if(self, side: Side, command: Dict[str, Any], now: int) -> None:
        jumps = COMPARE[command["is"]](side.variables[command["var"]], command["value"])
        side.step = command["to"] if jumps else side.step + 1

    def do_count(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.counters[command["counter"]] = side.counters.get(command["counter"], 0) + command["value"]
        side.step += 1

    def do_count_time(self, side: Side, command: Dict[str, Any], now: int) -> None:
        passed_us = (now - side.timers[command["timer"]]) // 1000
        side.counters[command["counter"]] = side.counters.get(command["counter"], 0) + passed_us
        side.step += 1

    def do_set_next_template(self, side: Side, command: Dict[str, Any], now: int) -> None:
        side.next_template = command["template"]
        side.step += 1

    def do_exec_template(self, side: Side, command: Dict[str, Any], now: int) -> Optional[int]:
        if side.next_template is None:
            self.fail(side, now, "exec_template has no template to run: call set_next_template before it")
            return None
        side.step += 1
        self.outcome.nested.append(side.next_template)
        if self.depth >= NESTED_MOST:
            self.fail(side, now, "exec_template runs templates that run templates, without end")
            return None
        flow = _Flow(self.form, side.next_template, self.depth + 1, self.steps_left)
        inner = flow.run()
        self.steps_left = flow.steps_left
        self.outcome.timed |= inner.timed
        if inner.fault is not None or inner.deadlock:
            # What is wrong with that template is said of it by its own rehearsal.
            self.steps_left = 0
            return None
        if inner.client.next_template is not None:
            side.next_template = inner.client.next_template
        return now + inner.ended_ns


def _signed(value: int) -> int:
    """What a signed number of 64 bits holds of it."""
    return (value + 2**63) % 2**64 - 2**63


def rehearse(form: Dict[str, Any], template: int) -> Outcome:
    """Rehearses one flow of a template of the JSON form."""
    return _Flow(form, template, 0, STEPS_MOST).run()
