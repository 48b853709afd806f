"""The JSON form of a run: what the engine's side reads. `schema.json` says what may be in it, docs/astf.md what it means.

Payload, programs and address pools are in it once, however many templates use them.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from .addresses import pools_of
from .commands import Payload
from .errors import ASTFError, Place
from .profile import ASTFProfile, check_together
from .program import VARIABLES_MOST, ASTFProgram
from .templates import ASTFAssociationRule, ASTFTemplate
from .tunables import ASTFGlobalInfo, in_force
from .tunnels_topo import TunnelsTopo

FORMAT = "overfly-astf"
VERSION = 1


@dataclass
class Source:
    """A profile that was run, and how."""

    file: str
    tunables: List[str]
    profile: Optional[ASTFProfile]
    """None for a file that has only tunnels."""
    topology: Optional[TunnelsTopo] = None


class _Once:
    """A list in which each thing is once, found by what it is."""

    def __init__(self) -> None:
        self.entries: List[Any] = []
        self._index: Dict[Any, int] = {}

    def add(self, entry: Any, key: Any = None) -> int:
        found = json.dumps(entry, sort_keys=True) if key is None else key
        if found not in self._index:
            self._index[found] = len(self.entries)
            self.entries.append(entry)
        return self._index[found]


@dataclass
class _Run:
    buffers: _Once = field(default_factory=_Once)
    programs: _Once = field(default_factory=_Once)
    pools: _Once = field(default_factory=_Once)
    groups: List[str] = field(default_factory=list)
    first_of_group: Dict[str, int] = field(default_factory=dict)


def run_of(sources: Sequence[Source]) -> Dict[str, Any]:
    """The form of a run of several profiles, or of one. Raises ASTFError where they cannot be run."""
    profiles = [source.profile for source in sources if source.profile is not None]
    listed = [(index, template) for index, profile in enumerate(profiles) for template in profile.templates]
    if len(profiles) > 1:
        check_together([template for _, template in listed])
    run = _Run()
    for index, (_, template) in enumerate(listed):
        if template.tg_name is not None:
            if template.tg_name not in run.groups:
                run.groups.append(template.tg_name)
            run.first_of_group.setdefault(template.tg_name, index)
    templates = [_template(run, profiles[source], source, template) for source, template in listed]
    _check_rules(templates, [template for _, template in listed])
    return {
        "format": FORMAT,
        "version": VERSION,
        "profiles": [_profile(source, source.profile) for source in sources if source.profile is not None],
        "groups": run.groups,
        "buffers": run.buffers.entries,
        "programs": run.programs.entries,
        "pools": run.pools.entries,
        "templates": templates,
        "tunnels": [tunnel for source in sources if source.topology for tunnel in source.topology.tunnels()],
        "probes": [probe.fields for source in sources if source.topology for probe in source.topology.tunnel_latency],
    }


def _profile(source: Source, profile: ASTFProfile) -> Dict[str, Any]:
    scheduler = in_force(profile.default_s_glob_info, profile.default_c_glob_info)["scheduler"]
    return {"file": source.file, "tunables": source.tunables, **scheduler}


def _template(run: _Run, profile: ASTFProfile, source: int, template: ASTFTemplate) -> Dict[str, Any]:
    client, server = template.client, template.server
    pools = [run.pools.add(pool) for pool in pools_of(client.ip_gen)]
    form: Dict[str, Any] = {
        "profile": source,
        "transport": "tcp" if client.program.stream else "udp",
        "client": {
            "program": _program(run, client.program),
            "clients": pools[0],
            "servers": pools[1],
            "port": client.port,
            "cps": client.cps,
            **_tuned(profile.default_c_glob_info, client.glob_info),
        },
        "server": {
            "program": _program(run, server.program),
            "rules": [_rule(rule, client.program) for rule in server.assoc.rules],
            **_tuned(profile.default_s_glob_info, server.glob_info),
        },
    }
    for side in (client, server):
        path = form["client" if side is client else "server"]["path"]
        if path["jitter_usec"] > path["delay_usec"]:
            raise ASTFError(
                f"path.jitter_usec {path['jitter_usec']} is more than path.delay_usec {path['delay_usec']}: nothing arrives before it was sent",
                side.place,
            )
    if template.tg_name is not None:
        form["group"] = run.groups.index(template.tg_name)
    if template.capture is not None:
        form["capture"] = template.capture
    if template.place is not None:
        form["file"], form["line"] = template.place.file, template.place.line
    if client.limit is not None:
        form["client"]["limit"] = client.limit
        form["client"]["keep_open"] = client.cont
    if client.core_base is not None:
        form["client"]["first_core"] = client.core_base
    return form


def _check_rules(forms: List[Dict[str, Any]], templates: List[ASTFTemplate]) -> None:
    """Refuses two rules that one flow can be for. One with addresses goes before one without, one with payload likewise."""
    seen: Dict[Any, List[Any]] = {}
    for index, (form, template) in enumerate(zip(forms, templates)):
        for rule in form["server"]["rules"]:
            others = seen.setdefault((form["transport"], rule["port"]), [])
            for other_index, other in others:
                if other_index != index and _rivals(rule, other):
                    place = templates[other_index].server.place
                    raise ASTFError(
                        f"a flow to {form['transport'].upper()} port {rule['port']} can be this server template's or the one's at {place}: "
                        "give them other ports, addresses that do not overlap, or an l7_map that tells them apart",
                        template.server.place,
                    )
            others.append((index, rule))


def _rivals(one: Dict[str, Any], two: Dict[str, Any]) -> bool:
    """Whether nothing says which of two rules of one port a flow is for."""
    if ("first" in one) != ("first" in two) or ("payload" in one) != ("payload" in two):
        return False
    if "first" in one:
        ends = [ipaddress.ip_address(rule[end]) for rule in (one, two) for end in ("first", "last")]
        if ends[0].version != ends[2].version or int(ends[0]) > int(ends[3]) or int(ends[2]) > int(ends[1]):
            return False
    return "payload" not in one or not _differ(one["payload"], two["payload"])


def _differ(one: Dict[str, List[int]], two: Dict[str, List[int]]) -> bool:
    """Whether no payload has both."""
    seen = {offset: (mask, value) for offset, mask, value in zip(one["offsets"], one["masks"], one["values"])}
    for offset, mask, value in zip(two["offsets"], two["masks"], two["values"]):
        other_mask, other_value = seen.get(offset, (0, 0))
        if (value ^ other_value) & mask & other_mask:
            return True
    return False


def _tuned(default: Optional[ASTFGlobalInfo], own: Any) -> Dict[str, Any]:
    return {name: values for name, values in in_force(default, own).items() if name != "scheduler"}


def _rule(rule: ASTFAssociationRule, client: ASTFProgram) -> Dict[str, Any]:
    form: Dict[str, Any] = {"port": rule.port}
    if rule.first is not None:
        form["first"], form["last"] = str(rule.first), str(rule.last)
    if rule.l7_map is not None:
        form["payload"] = {
            "offsets": rule.l7_map["offset"],
            "masks": rule.l7_map.get("mask", [255] * len(rule.l7_map["offset"])),
            "values": rule.l7_map["value"] if "value" in rule.l7_map else _first_bytes(rule, client),
        }
    if rule.assoc_id is not None:
        form["id"] = rule.assoc_id
    return form


def _first_bytes(rule: ASTFAssociationRule, client: ASTFProgram) -> List[int]:
    """The bytes at the rule's offsets of the first payload that the template's own client sends."""
    assert rule.l7_map is not None
    payload = next((command.payload for command in client.commands if command.payload), None)
    if payload is None:
        raise ASTFError("l7_map without values takes those that the client sends, and this template's client sends nothing", rule.place)
    if payload.size <= max(rule.l7_map["offset"]):
        raise ASTFError(
            f"l7_map looks at offset {max(rule.l7_map['offset'])}, and the first payload of this template's client has {payload.size} bytes",
            rule.place,
        )
    return [payload.at(offset) for offset in rule.l7_map["offset"]]


def _program(run: _Run, program: ASTFProgram) -> int:
    steps = _Steps(run, program)
    commands = [steps.command(index) for index in range(len(program.commands))]
    form: Dict[str, Any] = {
        "stream": program.stream,
        "variables": len(steps.variables),
        "timers": len(steps.timers),
        "commands": commands,
    }
    if program.addon is not None:
        form["addon"] = program.addon
    key = json.dumps(form, sort_keys=True)
    file = program.place.file if program.place else ""
    form["file"] = file
    form["line"] = program.place.line if program.place else 0
    # Steps of another file than the program's have no line of their own here.
    form["lines"] = [command.place.line if command.place and command.place.file == file else 0 for command in program.commands]
    return run.programs.add(form, key)


class _Steps:
    """Turns commands into their form: names into numbers, labels into places."""

    def __init__(self, run: _Run, program: ASTFProgram) -> None:
        self.run = run
        self.program = program
        self.variables: List[str] = []
        self.timers: List[str] = []
        for command in program.commands:
            if command.op == "set_var" and command.variable is not None:
                self._name(self.variables, command.variable, "variables", command.place)
            if command.op == "set_timer" and command.timer is not None:
                self._name(self.timers, command.timer, "timers (set_tick_var)", command.place)

    @staticmethod
    def _name(names: List[str], name: str, kind: str, place: Optional[Place]) -> None:
        if name not in names:
            names.append(name)
        if len(names) > VARIABLES_MOST:
            raise ASTFError(f"a flow has at most {VARIABLES_MOST} {kind}; {name!r} is one too many", place)

    def command(self, index: int) -> Dict[str, Any]:
        command = self.program.commands[index]
        if command.stream not in (None, self.program.stream):
            kinds = {True: "TCP (stream=True)", False: "UDP (stream=False)"}
            raise ASTFError(
                f"{command.op} is for {kinds[command.stream is True]} and the program for {kinds[self.program.stream]}", command.place
            )
        form: Dict[str, Any] = {"op": command.op, **command.fields}
        if command.payload is not None:
            form["buffer"] = self.run.buffers.add(_buffer(command.payload), command.payload)
        if command.variable is not None:
            form["var"] = self._known(self.variables, command.variable, "variable", "set_var", command.place)
        if command.timer is not None:
            form["timer"] = self._known(self.timers, command.timer, "timer", "set_tick_var", command.place)
        if command.label is not None:
            if command.label not in self.program.labels:
                raise ASTFError(f"there is no label {command.label!r} in this program: set it with set_label", command.place)
            form["to"] = self.program.labels[command.label][0]
        if command.template is not None:
            if command.template not in self.run.first_of_group:
                raise ASTFError(f"set_next_template: no template has the tg_name {command.template!r}", command.place)
            form["template"] = self.run.first_of_group[command.template]
        if command.op in ("reset", "wait_for_peer_close", "close_msg") and index + 1 < len(self.program.commands):
            self._last(index)
        return form

    def _last(self, index: int) -> None:
        """Refuses steps that nothing can reach, since the flow has ended before them."""
        targets = {at for at, _ in self.program.labels.values()}
        if index + 1 not in targets:
            after = self.program.commands[index + 1]
            raise ASTFError(f"{self.program.commands[index].op} ends the flow: nothing can come after it", after.place)

    @staticmethod
    def _known(names: List[str], name: str, kind: str, setter: str, place: Optional[Place]) -> int:
        if name not in names:
            raise ASTFError(f"there is no {kind} {name!r} in this program: set it with {setter}", place)
        return names.index(name)


def _buffer(payload: Payload) -> Dict[str, Any]:
    form: Dict[str, Any] = {"base64": base64.b64encode(payload.data).decode("ascii"), "bytes": payload.size}
    if payload.fill:
        form["fill_base64"] = base64.b64encode(payload.fill).decode("ascii")
    return form
