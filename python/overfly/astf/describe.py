"""`show`: what a run would send, in words."""

from __future__ import annotations

from typing import Any, Dict, List

from .check import Findings
from .rehearsal import STEPS_MOST, Outcome, Side

LONGEST_PROGRAM = 40
"""Steps that are shown of a program."""


def describe(form: Dict[str, Any], findings: Findings) -> str:
    """The whole run."""
    lines: List[str] = []
    flows, rates = 0.0, [0.0, 0.0]
    for index, template in enumerate(form["templates"]):
        outcome = findings.outcomes[index]
        lines += _template(form, index, template, outcome)
        flows += template["client"]["cps"]
        rates[0] += template["client"]["cps"] * outcome.client.bytes_sent
        rates[1] += template["client"]["cps"] * outcome.server.bytes_sent
    payload = sum(buffer["bytes"] for buffer in form["buffers"])
    lines.append(
        f"{_count(len(form['templates']), 'template')}, {flows:g} flows/s at -m 1: "
        f"{_rate(rates[0])} from clients, {_rate(rates[1])} from servers; {_count(len(form['buffers']), 'payload')} of {payload:,} bytes in all"
    )
    lines += [_tunnel(tunnel) for tunnel in form["tunnels"]]
    return "\n".join(lines) + "\n"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _rate(bytes_per_second: float) -> str:
    bits = bytes_per_second * 8
    for unit, size in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.3g} b/s"


def _template(form: Dict[str, Any], index: int, template: Dict[str, Any], outcome: Outcome) -> List[str]:
    client, server = template["client"], template["server"]
    group = f', group "{form["groups"][template["group"]]}"' if "group" in template else ""
    capture = f", from {template['capture']}" if "capture" in template else ""
    limit = ""
    if "limit" in client:
        limit = f", {client['limit']} kept open" if client["keep_open"] else f", {_count(client['limit'], 'flow')} in all"
    lines = [
        f"template {index}: {template['transport'].upper()} to port {client['port']}, {client['cps']:g} flows/s{limit}{group}{capture}",
        f"  clients {_pool(form, client['clients'], client, 'src_msb')}",
        f"  servers {_pool(form, client['servers'], client, 'dst_msb')}, answering to {' or '.join(_rule(rule) for rule in server['rules'])}",
    ]
    for name, entry in (("client", client), ("server", server)):
        lines.append(f"  {name}:")
        lines += _steps(form, form["programs"][entry["program"]])
        if any(entry["path"].values()):
            lines.append("    packets take {delay_usec:,} µs, {jitter_usec:,} more or less; of a million {loss_ppm:,} are lost".format(**entry["path"]))
    return lines + _traffic(template, outcome) + [""]


def _pool(form: Dict[str, Any], pool: int, client: Dict[str, Any], msb: str) -> str:
    entry = form["pools"][pool]
    how = {"seq": "in turn", "rand": "at random"}[entry["distribution"]]
    ipv6 = f" as the last 32 bits of {client['ipv6'].get(msb, '::')}" if client["ipv6"]["enable"] and ":" not in entry["first"] else ""
    return f"{entry['first']} to {entry['last']}, {how}{ipv6}"


def _rule(rule: Dict[str, Any]) -> str:
    words = f"port {rule['port']}"
    if "first" in rule:
        words += f" of {rule['first']} to {rule['last']}"
    if "payload" in rule:
        words += f", told apart by {_count(len(rule['payload']['offsets']), 'byte')} of payload"
    return words


def _steps(form: Dict[str, Any], program: Dict[str, Any]) -> List[str]:
    commands = program["commands"]
    lines = [f"    {number:>3}  {words(form, command)}" for number, command in enumerate(commands[:LONGEST_PROGRAM])]
    if len(commands) > LONGEST_PROGRAM:
        lines.append(f"    ...  {_count(len(commands) - LONGEST_PROGRAM, 'more step')}")
    return lines or ["         nothing: opens and closes" if program["stream"] else "         nothing"]


_SIGNS = {"lt": "<", "gt": ">", "eq": "=", "ge": "≥", "le": "≤", "ne": "≠"}


def words(form: Dict[str, Any], command: Dict[str, Any]) -> str:
    """One step."""
    op = command["op"]
    clear = ", and count anew" if command.get("clear") else ""
    if op in ("send", "send_msg"):
        kind = " in a datagram" if op == "send_msg" else ""
        return f"send {_count(form['buffers'][command['buffer']]['bytes'], 'byte')}{kind}"
    if op == "jump_if":
        return f"if variable {command['var']} {_SIGNS[command['is']]} {command['value']}, go to {command['to']}"
    plain = {
        "connect": "wait until connected",
        "recv": "wait for {bytes:,} bytes in all",
        "recv_msg": "wait for {messages:,} datagrams in all",
        "keepalive": "end when idle for {idle_ms} ms",
        "close_msg": "end the flow",
        "delay": "wait {us:,} µs",
        "delay_random": "wait {min_us:,} to {max_us:,} µs",
        "reset": "reset the connection",
        "wait_for_peer_close": "wait until the peer closes",
        "set_var": "variable {var} = {value}",
        "add_var": "variable {var} + {value}",
        "set_timer": "start timer {timer}",
        "add_timer": "start of timer {timer} + {ns} ns",
        "jump": "go to {to}",
        "jump_nonzero": "variable {var} - 1; if it is not 0, go to {to}",
        "jump_before": "until {ns} ns after timer {timer} started, go to {to}",
        "count": "counter {counter} + {value}",
        "count_time": "counter {counter} + the µs since timer {timer} started",
        "set_next_template": "the next template is {template}",
        "exec_template": "run a flow of the next template",
    }
    if op == "send_mode":
        return "sends wait for their acknowledgement" if command["blocking"] else "sends wait for room only"
    return plain[op].format(**command) + clear


def packets(side: Side, mss: int) -> int:
    """How many packets carry what a side sends, each send by itself."""
    return sum(max(1, -(-size // mss)) for size in side.sends) if side.stream else len(side.sends)


def _traffic(template: Dict[str, Any], outcome: Outcome) -> List[str]:
    tcp = template["transport"] == "tcp"
    mss = [template[side]["tcp"]["mss"] for side in ("client", "server")]
    data = [packets(side, min(mss)) for side in (outcome.client, outcome.server)]
    about = "about " if outcome.timed else ""
    if not outcome.followed:
        about = f"after {STEPS_MOST:,} steps, and not at its end yet, "
    line = f"  a flow: {about}{outcome.client.bytes_sent:,} bytes to the server, {outcome.server.bytes_sent:,} to the client"
    if tcp:
        # Handshake and closing take 3 and 4; of data every second packet is acknowledged, and the last of a message with the answer.
        acknowledgements = sum(count // 2 for count in data)
        line += f"; {data[0]} + {data[1]} packets of data at MSS {min(mss)}, about {7 + sum(data) + acknowledgements} in all"
    else:
        line += f"; {data[0]} + {data[1]} datagrams"
    if outcome.nested:
        line += f"; and {_count(len(outcome.nested), 'flow')} of other templates"
    return [line]


def _tunnel(tunnel: Dict[str, Any]) -> str:
    state = "" if tunnel["active"] else " (not active)"
    if tunnel["kind"] == "vlan":
        return f"tunnel: clients {tunnel['first']} to {tunnel['last']} in VLAN {tunnel['vlan']}{state}"
    return (
        f"tunnel: clients {tunnel['first']} to {tunnel['last']} in {tunnel['kind'].upper()} from {tunnel['outer_source']} to "
        f"{tunnel['outer_destination']}, identities from {tunnel['identity']} by {tunnel['identity_step']}{state}"
    )
