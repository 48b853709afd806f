"""The API's classes: what they take, what they refuse, and what their steps mean."""

from __future__ import annotations

import unittest
from typing import Any, Callable, Dict, List, Optional

from overfly import astf
from overfly.astf.form import Source, run_of
from overfly.astf.rehearsal import STEPS_MOST, Outcome, rehearse
from overfly.astf.tunables import TUNABLES
from tests.test_form import Form, validate

Program = astf.ASTFProgram


def gen(first: str = "16.0.0.1") -> astf.ASTFIPGen:
    return astf.ASTFIPGen(astf.ASTFIPGenDist([first, "16.0.0.99"]), astf.ASTFIPGenDist(["48.0.0.1", "48.0.0.9"]))


def template(client: Program, server: Program, **rest: Any) -> astf.ASTFTemplate:
    return astf.ASTFTemplate(astf.ASTFTCPClientTemplate(gen(), program=client, **rest), astf.ASTFTCPServerTemplate(server))


def form_of(*templates: astf.ASTFTemplate) -> Dict[str, Any]:
    form = run_of([Source("here.py", [], astf.ASTFProfile(gen(), templates=list(templates)))])
    validate(Form.schema, form, Form.schema)
    return form


def programs(stream: bool = True) -> List[Program]:
    return [Program(stream=stream), Program(stream=stream)]


def run(client: Program, server: Program) -> Outcome:
    return rehearse(form_of(template(client, server)), 0)


class Steps(unittest.TestCase):
    def commands(self, program: Program) -> List[Dict[str, Any]]:
        other = Program(stream=program.stream)
        commands: List[Dict[str, Any]] = form_of(template(program, other))["programs"][0]["commands"]
        return commands

    def test_receive_marks_add_up_until_cleared(self) -> None:
        program = Program()
        for size, clear in ((100, False), (50, True), (7, False), (8, 1), (9, 0)):
            program.recv(size, clear)
        self.assertEqual([each["bytes"] for each in self.commands(program)], [100, 150, 7, 15, 9])
        self.assertEqual([each["clear"] for each in self.commands(program)], [False, True, False, True, False])
        messages = Program(stream=False)
        messages.recv_msg(2)
        messages.recv_msg(3, clear=True)
        messages.recv_msg(1)
        self.assertEqual([each["messages"] for each in self.commands(messages)], [2, 5, 1])

    def test_size_and_fill(self) -> None:
        client, server = programs()
        client.send("abc", size=2)
        client.send("abc", size=8, fill="xy")
        client.send(b"", 5)
        server.recv(16)
        form = form_of(template(client, server))
        self.assertEqual(
            form["buffers"],
            [
                {"base64": "YWJj", "bytes": 3},
                {"base64": "YWJj", "bytes": 8, "fill_base64": "eHk="},
                {"base64": "", "bytes": 5, "fill_base64": "AA=="},
            ],
        )
        self.assertEqual(rehearse(form, 0).client.bytes_sent, 16)

    def test_jumps_compare(self) -> None:
        for name, counts in (("lt", 1), ("gt", 0), ("eq", 0), ("ge", 0), ("le", 1), ("ne", 1)):
            client, server = programs()
            client.set_var("v", -3)
            getattr(client, f"jmp_{name}")("v", "yes:", 4)
            client.jmp("end:")
            client.set_label("yes:")
            client.add_stats("C", 1)
            client.set_label("end:")
            self.assertEqual(run(client, server).client.counters.get("C", 0), counts, name)

    def test_the_timers_start_moves(self) -> None:
        client, server = programs()
        client.set_tick_var("t")
        client.delay(3000)
        client.add_tick_var("t", 0.002)
        client.add_tick_stats("A", "t")
        self.assertEqual(run(client, server).client.counters, {"A": 1000})

    def test_jump_nonzero_goes_round_so_often(self) -> None:
        client, server = programs()
        client.set_var("n", 4)
        client.set_label("a")
        client.send("12345")
        client.jmp_nz("n", "a")
        server.recv(20)
        self.assertEqual(run(client, server).client.sends, [5, 5, 5, 5])

    def test_a_send_waits_for_its_acknowledgement_unless_told(self) -> None:
        ends = []
        for blocking in (True, False):
            client, server = programs()
            client.set_send_blocking(blocking)
            for _ in range(10):
                client.send("x")
            server.recv(10)
            ends.append(run(client, server).ended_ns)
        self.assertEqual(ends[0] - ends[1], 950_000, "nine round trips, and the way of the last acknowledgement")

    def test_a_reset_ends_the_peer(self) -> None:
        client, server = programs()
        client.send("x")
        client.reset()
        server.recv(5)
        outcome = run(client, server)
        self.assertFalse(outcome.deadlock)
        assert outcome.server.ended is not None
        self.assertEqual(outcome.server.ended.reason, "reset by the peer")

    def test_what_the_peer_sends_ahead_is_kept_when_the_counter_is_cleared(self) -> None:
        client, server = programs()
        server.send("a" * 30)
        for _ in range(3):
            client.recv(10, clear=True)
        outcome = run(client, server)
        self.assertIsNone(outcome.client.short)

    def test_very_long_loops_are_not_followed(self) -> None:
        client, server = programs()
        client.set_var("n", 10**9)
        client.set_label("a")
        client.send("x")
        client.jmp_nz("n", "a")
        server.recv(10**9)
        outcome = run(client, server)
        self.assertFalse(outcome.followed)
        self.assertFalse(outcome.deadlock)
        self.assertLess(outcome.client.bytes_sent, STEPS_MOST)

    def test_variables_hold_64_bits(self) -> None:
        client, server = programs()
        client.set_var("v", 2**63 - 1)
        client.add_var("v", 1)
        client.jmp_lt("v", "less", 0)
        client.reset()
        client.set_label("less")
        self.assertEqual(run(client, server).client.variables, [-(2**63)])

    def test_add_timer_is_an_operation(self) -> None:
        program = Program()
        program.set_tick_var("a")
        program.set_tick_var("b")
        program.add_tick_var("b", -1.5)
        self.assertEqual(self.commands(program)[2], {"op": "add_timer", "timer": 1, "ns": -1_500_000_000})


class Refused(unittest.TestCase):
    def refuses(self, words: str, make: Callable[[], Any], kind: type = astf.ASTFError) -> None:
        with self.assertRaises(kind) as caught:
            make()
        self.assertIn(words, str(caught.exception))
        assert isinstance(caught.exception, astf.ASTFError)
        place = caught.exception.place
        assert place is not None
        self.assertTrue(place.file.endswith("test_api.py"), place)

    def test_every_tunables_range(self) -> None:
        for per_template, info in ((False, astf.ASTFGlobalInfo), (True, astf.ASTFGlobalInfoPerTemplate)):
            for name, tunables in TUNABLES.items():
                for each, tunable in tunables.items():
                    if per_template and not tunable.per_template:
                        self.refuses("has no", lambda: setattr(getattr(info(), name), each, tunable.high))
                        continue
                    made = getattr(info(), name)
                    if tunable.is_address:
                        setattr(made, each, "2001:db8::")
                        self.assertEqual(getattr(made, each), "2001:db8::")
                        self.refuses("is no IPv6 address", lambda: setattr(made, each, "10.0.0.1"))
                        continue
                    self.assertEqual(getattr(made, each), tunable.default)
                    for value in (tunable.low, tunable.high):
                        setattr(made, each, value)
                        self.assertEqual(getattr(made, each), value)
                    for value in (tunable.low - 1, tunable.high + 1):
                        self.refuses(f"must be from {tunable.low} to {tunable.high}", lambda: setattr(made, each, value))
                    self.refuses("must be a whole number", lambda: setattr(made, each, "1"))
                    self.refuses("must be a whole number", lambda: setattr(made, each, True))

    def test_unknown_tunables(self) -> None:
        info = astf.ASTFGlobalInfo()
        self.refuses("has no tunable 'mms'; it has mss, initwnd", lambda: setattr(info.tcp, "mms", 1))
        self.refuses("has no 'udp'; it has tcp, ip, ipv6, path, scheduler", lambda: info.udp)
        self.refuses("set one of ip.tos, ip.ttl", lambda: setattr(info, "ip", 1))

    def test_arguments(self) -> None:
        dist = astf.ASTFIPGenDist
        self.refuses("'16.0.0.256' is no IPv4 or IPv6 address", lambda: dist(["16.0.0.256", "16.0.0.9"]))
        self.refuses("comes after the last", lambda: dist(["16.0.0.9", "16.0.0.1"]))
        self.refuses("two addresses", lambda: dist(["16.0.0.9"]))
        self.refuses('is "seq" or "rand"', lambda: dist(["16.0.0.1", "16.0.0.9"], distribution="normal"))
        self.refuses("per_core_distribution", lambda: dist(["16.0.0.1", "16.0.0.9"], per_core_distribution="x"))
        self.refuses("ip_offset", lambda: astf.ASTFIPGenGlobal(ip_offset="1.0.0"))
        program = Program()
        program.send("x")
        client = astf.ASTFTCPClientTemplate
        self.refuses("give program", lambda: client(gen()))
        self.refuses("give ip_gen", lambda: client(program=program))
        self.refuses("port must be from 1 to 65535", lambda: client(gen(), program=program, port=0))
        self.refuses("cps must be from 0", lambda: client(gen(), program=program, cps=-1))
        self.refuses("cps must be from 0", lambda: client(gen(), program=program, cps=float("nan")))
        self.refuses("give a limit too", lambda: client(gen(), program=program, cont=True))
        self.refuses("must be ASTFProgram", lambda: client(gen(), program="p"))
        self.refuses("1 to 20 characters", lambda: template_named(program, "x" * 21))
        self.refuses("1 to 20 characters", lambda: template_named(program, ""))
        cap = astf.ASTFCapInfo
        self.refuses("give file", lambda: cap())
        self.refuses("cps or l7_percent, not both", lambda: cap(file="a", cps=1, l7_percent=1))
        self.refuses("port or assoc, not both", lambda: cap(file="a", port=1, assoc=astf.ASTFAssociationRule()))
        self.refuses("give templates or cap_list", lambda: astf.ASTFProfile(gen()))
        self.refuses("give default_ip_gen", lambda: astf.ASTFProfile(templates=[]))
        rule = astf.ASTFAssociationRule
        self.refuses("give ip_start and ip_end, or neither", lambda: rule(ip_start="1.1.1.1"))
        self.refuses("is no range", lambda: rule(ip_start="1.1.1.2", ip_end="1.1.1.1"))
        self.refuses("must be as many", lambda: rule(l7_map={"offset": [0, 1], "value": [1]}))
        self.refuses('["mask"] must be from 0 to 255', lambda: rule(l7_map={"offset": [0], "mask": [256]}))

    def test_steps(self) -> None:
        program = Program()
        self.refuses("'é' is neither", lambda: program.send("caf\u00e9"))
        self.refuses("nothing to send", lambda: program.send(""))
        self.refuses("recv: bytes must be from 0", lambda: program.recv(-1))
        self.refuses("min_usec 9 is more than max_usec 3", lambda: program.delay_rand(9, 3))
        self.refuses("counters A, B, C and D", lambda: program.add_stats("E", 1))
        self.refuses("at most 65507 bytes", lambda: Program(stream=False).send_msg("", 65508))
        program.set_label("a")
        self.refuses("there is a label 'a' already", lambda: program.set_label("a"))
        self.refuses('side is "c" or "s"', lambda: Program(side="x"))

    def made(self, *steps: Callable[[Program], Any], stream: bool = True) -> Callable[[], Any]:
        client, server = programs(stream)
        for step in steps:
            step(client)
        return lambda: form_of(template(client, server))

    def test_programs_that_cannot_be(self) -> None:
        self.refuses("there is no label 'b'", self.made(lambda p: p.jmp("b")))
        self.refuses("there is no variable 'v'", self.made(lambda p: p.set_label("a"), lambda p: p.jmp_nz("v", "a")))
        self.refuses("there is no timer 't'", self.made(lambda p: p.add_tick_stats("A", "t")))
        self.refuses("at most 5 variables", self.made(*[lambda p, n=n: p.set_var(f"v{n}", 1) for n in range(6)]))
        self.refuses("at most 5 timers", self.made(*[lambda p, n=n: p.set_tick_var(f"t{n}") for n in range(6)]))
        self.refuses("send_msg is for UDP", self.made(lambda p: p.send_msg("x")))
        self.refuses("recv is for TCP", self.made(lambda p: p.recv(1), stream=False))
        self.refuses("reset ends the flow", self.made(lambda p: p.reset(), lambda p: p.send("x")))
        self.refuses("no template has the tg_name 'x'", self.made(lambda p: p.set_next_template("x")))

    def test_templates_that_cannot_be_together(self) -> None:
        program = Program()
        program.send("x")
        udp = Program(stream=False)
        udp.send_msg("x")
        self.refuses("the client's program is for TCP", lambda: template(program, udp))
        self.refuses("a flow to TCP port 80 can be", lambda: form_of(template(program, program), template(program, program)))
        self.assertEqual(len(form_of(template(program, program), template(udp, udp))["templates"]), 2, "TCP and UDP may share a port")

        def overlapping() -> None:
            one = template(program, program)
            two = astf.ASTFTemplate(
                astf.ASTFTCPClientTemplate(gen("16.0.0.50"), program=program, port=81),
                astf.ASTFTCPServerTemplate(program, astf.ASTFAssociationRule(port=81)),
            )
            form_of(one, two)

        self.refuses("overlap those at", overlapping, astf.ASTFErrorOverlapIP)

    def test_rules_that_cannot_tell_flows_apart(self) -> None:
        program = Program()
        program.send("GET /", size=9, fill="xy")
        other = Program()
        other.send("PUT /")

        def pair(one: Dict[str, Any], two: Dict[str, Any], second: Program = other) -> Callable[[], Any]:
            rules = [astf.ASTFAssociationRule(**each) for each in (one, two)]
            templates = [
                astf.ASTFTemplate(astf.ASTFTCPClientTemplate(gen(), program=client), astf.ASTFTCPServerTemplate(client, rule))
                for client, rule in zip((program, second), rules)
            ]
            return lambda: form_of(*templates)

        low, high = dict(ip_start="48.0.0.1", ip_end="48.0.0.9"), dict(ip_start="48.0.0.9", ip_end="48.0.0.20")
        six = dict(ip_start="2001:db8::1", ip_end="2001:db8::9")
        # What tells them apart: addresses or not, addresses that lie apart, payload or not, other payload.
        for apart in (
            (low, {}),
            (low, six),
            (low, dict(ip_start="48.0.0.10", ip_end="48.0.0.20")),
            ({}, dict(l7_map=[0])),
            (dict(l7_map=[0]), dict(l7_map=[0])),
            (dict(l7_map=[4, 0]), dict(l7_map=[0, 1])),
            (dict(l7_map=dict(offset=[0], value=[1], mask=[3])), dict(l7_map=dict(offset=[0], value=[2], mask=[3]))),
        ):
            self.assertEqual(len(pair(*apart)()["templates"]), 2, apart)
        for alike in (
            (low, high),
            (dict(l7_map=[3]), dict(l7_map=[3])),  # a space in both
            (dict(l7_map=[0]), dict(l7_map=[1])),
            (dict(l7_map=dict(offset=[0], value=[1], mask=[1])), dict(l7_map=dict(offset=[0], value=[2], mask=[2]))),
        ):
            self.refuses("a flow to TCP port 80 can be", pair(*alike))
        form = pair(dict(l7_map=[0, 5, 8]), dict(l7_map=[0]))
        self.assertEqual(form()["templates"][0]["server"]["rules"][0]["payload"]["values"], [ord("G"), ord("x"), ord("y")])
        self.refuses("l7_map looks at offset 5, and the first payload of this template's client has 5 bytes", pair({}, dict(l7_map=[5])))
        self.refuses("this template's client sends nothing", pair({}, dict(l7_map=[5]), Program()))

    def test_arguments_of_other_versions(self) -> None:
        old = astf.ASTFTCPInfo(window=32768)
        client, server = programs()
        client.send("x")
        server.recv(1)
        one = astf.ASTFTemplate(
            astf.ASTFTCPClientTemplate(gen(), program=client, tcp_info=old), astf.ASTFTCPServerTemplate(server, tcp_info=old)
        )
        self.assertEqual(rehearse(form_of(one), 0).server.bytes_received, 1)
        probe = Program(stream=False, addon="latency")
        probe.send_msg("x")
        self.assertEqual(form_of(template(probe, probe))["programs"][0]["addon"], "latency")
        self.refuses("'jitter' cannot be done", lambda: Program(addon="jitter"))

    def test_tunnels(self) -> None:
        good: Dict[str, Any] = dict(
            src_start="16.0.0.0", src_end="16.0.0.9", initial_teid=1, teid_jump=1, sport=2, version=4, src_ip="1.1.1.1", dst_ip="2.2.2.2", activate=True
        )

        def topology(**changed: Any) -> astf.TunnelsTopo:
            made = astf.TunnelsTopo()
            made.add_tunnel_ctx(**{**good, **changed})
            return made

        self.assertEqual(topology().tunnels()[0]["kind"], "gtpu")
        self.assertEqual(topology(tunnel_type="vxlan").tunnels()[0]["kind"], "vxlan")
        self.assertEqual(topology(tunnel_type=2, vid=7).tunnels()[0]["vlan"], 7)
        self.refuses("vid must be a whole number", lambda: topology(tunnel_type=2))
        self.refuses("4 with label cannot be done", lambda: topology(tunnel_type=4, label=10))
        self.refuses("comes after src_end", lambda: topology(src_end="15.0.0.1"))
        self.refuses("is no IPv6 address", lambda: topology(version=6))
        self.refuses("16777215 is the highest", lambda: topology(tunnel_type="vxlan", initial_teid=2**24 - 5))
        twice = topology()
        twice.add_tunnel_ctx(**good)
        self.refuses("have a tunnel already", twice.tunnels)


def template_named(program: Program, name: Optional[str]) -> astf.ASTFTemplate:
    return astf.ASTFTemplate(astf.ASTFTCPClientTemplate(gen(), program=program), astf.ASTFTCPServerTemplate(program), tg_name=name)


if __name__ == "__main__":
    unittest.main()
