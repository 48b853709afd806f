"""Profiles in the published style: what one flow of each template sends, to the byte."""

from __future__ import annotations

import base64
import os
import unittest
from typing import Any, Dict, List, Tuple

from overfly.astf.describe import describe
from overfly.astf.check import check
from overfly.astf.rehearsal import rehearse
from tests.running import HERE, WithProfiles, command

Bytes = List[Tuple[int, int]]

EXPECTED: Dict[str, Bytes] = {
    "http_simple": [(100, 20_000)],
    "http_by_program": [(57, 42 + 32_768)],
    "weighted": [(100, 32_000), (517, 5_000), (64, 64)],
    "groups": [(10, 1_000), (10, 2_000), (10, 50_000), (10, 1)],
    "udp": [(50, 1_300)],
    "keep_alive": [(270, 10_240)],
    "delays": [(5, 4_500)],
    "loops": [(1_200, 1_200)],
    "tunables": [(2_500, 10_000)],
    "ipv6": [(300, 3_000), (40, 41)],
    "captures": [(300, 5_700), (600, 5_400), (40, 100)],
    "server_push": [(6, 8_020)],
    "second_service": [(5, 6)],
    "nat": [(3, 11), (4, 22), (5, 33), (7, 44)],
    "tunnel": [(123, 4_567)],
    "path": [(500, 20_000)],
    "video": [(0, 0), (3, 500_000), (3, 50_000)],
}
"""Of a flow of each template: bytes to the server, and to the client."""


class Profiles(WithProfiles):
    def rehearsed(self, form: Dict[str, Any]) -> Bytes:
        outcomes = [rehearse(form, index) for index in range(len(form["templates"]))]
        for outcome in outcomes:
            self.assertTrue(outcome.followed)
            self.assertFalse(outcome.deadlock)
            self.assertEqual(outcome.client.bytes_received, outcome.server.bytes_sent)
            self.assertEqual(outcome.server.bytes_received, outcome.client.bytes_sent)
        return [(outcome.client.bytes_sent, outcome.server.bytes_sent) for outcome in outcomes]

    def test_every_profile_is_expected(self) -> None:
        names = {name[:-3] for name in os.listdir(os.path.join(HERE, "profiles")) if name.endswith(".py")}
        self.assertEqual(names, set(EXPECTED))

    def test_bytes_each_way(self) -> None:
        for name, expected in EXPECTED.items():
            with self.subTest(profile=name):
                self.assertEqual(self.rehearsed(self.compiled(f"{name}.py")), expected)

    def test_check_finds_nothing_wrong(self) -> None:
        for name, expected in EXPECTED.items():
            with self.subTest(profile=name):
                done = command("check", f"{name}.py", folder=self.folder)
                plural = "" if len(expected) == 1 else "s"
                self.assertEqual((done.returncode, done.stdout), (0, f"{name}.py: {len(expected)} template{plural}, nothing wrong\n"))
                self.assertEqual(done.stderr.count("warning"), 1 if name == "nat" else 0, done.stderr)

    def test_several_profiles_in_one_run(self) -> None:
        form = self.compiled("http_by_program.py", "second_service.py", "-t", "size=8")
        self.assertEqual(self.rehearsed(form), [(57, 38 + 8), (5, 6)])
        self.assertEqual([profile["file"] for profile in form["profiles"]], ["http_by_program.py", "second_service.py"])
        self.assertEqual([template["profile"] for template in form["templates"]], [0, 1])
        self.assertEqual(form["templates"][1]["client"]["limit"], 3)

    def test_tunables_reach_the_profile(self) -> None:
        for words in (["-t", "size=1000"], ["-t", "--size", "1000"], ["-t", "--size 1000"], ["-t", "--size=1000"]):
            with self.subTest(words=words):
                form = self.compiled("http_by_program.py", *words)
                self.assertEqual(self.rehearsed(form), [(57, 41 + 1_000)])
                self.assertEqual(form["profiles"][0]["tunables"][0][:6], "--size")
        self.assertEqual(self.rehearsed(self.compiled("keep_alive.py", "-t", "loop=3,size=5")), [(81, 15)])
        tuned = self.compiled("tunables.py", "-t", "mss=536")
        self.assertEqual(tuned["templates"][0]["client"]["tcp"]["mss"], 536)

    def test_tunables_in_force(self) -> None:
        template = self.compiled("tunables.py")["templates"][0]
        client, server = template["client"], template["server"]
        self.assertEqual(
            client["tcp"],
            dict(
                mss=1100, initwnd=20, rxbufsize=524288, txbufsize=524288, no_delay=1, no_delay_counter=2200, rexmtthresh=2, do_rfc1323=0,
                do_sack=0, cc_algo=1, do_ecn=2, reass_maxqlen=1000, keepinit=253, keepidle=253, keepintvl=253, blackhole=2, delay_ack_msec=20,
            ),
        )  # fmt: skip
        self.assertEqual(client["ip"], dict(tos=7, ttl=34, dont_use_inbound_mac=0))
        self.assertEqual((server["tcp"]["mss"], server["tcp"]["initwnd"], server["tcp"]["delay_ack_msec"]), (9000, 1, 200))
        self.assertEqual(server["tcp"]["rxbufsize"], 32768)
        self.assertEqual(server["ip"]["ttl"], 12)
        self.assertEqual(self.compiled("tunables.py")["profiles"][0]["rampup_sec"], 5)

    def test_payload_programs_and_pools_are_there_once(self) -> None:
        form = self.compiled("weighted.py")
        self.assertEqual(len(form["pools"]), 2)
        self.assertEqual(len(form["buffers"]), 6)
        self.assertEqual(sum(buffer["bytes"] for buffer in form["buffers"]), 100 + 32000 + 517 + 5000 + 64 + 64)
        groups = self.compiled("groups.py")
        self.assertEqual(len(groups["buffers"]), 5, "the request is one buffer for all four")

    def test_groups_and_rates(self) -> None:
        form = self.compiled("groups.py")
        self.assertEqual(form["groups"], ["pages", "downloads"])
        self.assertEqual([template.get("group") for template in form["templates"]], [0, 0, 1, None])
        self.assertEqual([template["client"]["cps"] for template in self.compiled("weighted.py")["templates"]], [70, 25.5, 0.5])
        kept = self.compiled("keep_alive.py")["templates"][0]["client"]
        self.assertEqual((kept["limit"], kept["keep_open"]), (500, True))

    def test_shares_of_bytes(self) -> None:
        form = self.compiled("captures.py")
        rates = [template["client"]["cps"] for template in form["templates"]]
        self.assertAlmostEqual(sum(rates), 100)
        # Of the datagrams' 340 bytes the capture has 100 are cut off; shares are of what the capture has.
        in_bytes = [rate * size for rate, size in zip(rates, (6000, 6000, 340))]
        for share, percent in zip(in_bytes, (60, 30, 10)):
            self.assertAlmostEqual(share / sum(in_bytes) * 100, percent)

    def test_captures_programs(self) -> None:
        form = self.compiled("captures.py")
        operations = [[command["op"] for command in program["commands"]] for program in form["programs"]]
        self.assertEqual(operations[0], ["send", "recv"])
        self.assertEqual(operations[1], ["recv", "delay", "send"])
        self.assertEqual(operations[2], ["send", "recv", "delay", "send", "recv"])
        self.assertEqual(operations[3], ["recv", "delay_random", "send", "recv", "delay_random", "send"])
        self.assertEqual(form["programs"][1]["commands"][1], {"op": "delay", "us": 700})
        self.assertEqual([template["client"]["port"] for template in form["templates"]], [80, 8080, 53])
        self.assertEqual([template["capture"] for template in form["templates"]], ["vlan.pcap", "ipv6.pcapng", "dns.pcap"])
        first = form["buffers"][form["programs"][0]["commands"][0]["buffer"]]
        self.assertEqual(base64.b64decode(first["base64"]), b"v" * 300)

    def test_addresses(self) -> None:
        form = self.compiled("ipv6.py")
        self.assertEqual([pool["first"] for pool in form["pools"]], ["16.0.0.0", "48.0.0.0", "2001:db8:1::1", "2001:db8:2::1"])
        self.assertEqual(form["pools"][2]["distribution"], "rand")
        self.assertEqual(form["templates"][0]["client"]["ipv6"], {"enable": 1, "src_msb": "ff02::", "dst_msb": "ff03::"})
        self.assertEqual(form["templates"][0]["server"]["ipv6"], {"enable": 0})
        rules = [template["server"]["rules"][0] for template in self.compiled("nat.py")["templates"]]
        self.assertEqual(rules[0], {"port": 80, "first": "10.0.0.1", "last": "10.0.0.9"})
        self.assertEqual(rules[2]["payload"], {"offsets": [0, 1], "masks": [255, 223], "values": [71, 69]})
        self.assertEqual(rules[3]["payload"], {"offsets": [0, 1], "masks": [255, 255], "values": [80, 85]}, "PU: what its client sends")

    def test_tunnels(self) -> None:
        form = self.compiled("tunnel.py")
        tunnel = {
            "kind": "gtpu", "first": "16.0.0.0", "last": "16.0.0.255", "active": True, "identity": 100, "identity_step": 2,
            "source_port": 5000, "outer_source": "1.1.1.11", "outer_destination": "12.2.2.2",
        }  # fmt: skip
        self.assertEqual(form["tunnels"], [tunnel])
        self.assertEqual(form["probes"], [{"link_pair": 0, "client": "16.0.0.1", "server": "48.0.0.1"}])
        beside = self.compiled("http_by_program.py", "--topology", "tunnel.py")
        self.assertEqual(beside["tunnels"], [tunnel])
        self.assertEqual(len(beside["templates"]), 1)

    def test_flows_of_other_templates(self) -> None:
        form = self.compiled("video.py")
        outcome = rehearse(form, 0)
        self.assertEqual(outcome.nested, [1, 2, 2])
        # Three waits of a second, and three flows of less than a millisecond.
        self.assertTrue(3_000_000_000 < outcome.ended_ns < 3_010_000_000, outcome.ended_ns)

    def test_delays_take_their_time(self) -> None:
        outcome = rehearse(self.compiled("delays.py"), 0)
        # 2 ms in the middle of 1 to 3, 10 ms, five pieces with 20 µs and a round trip each, 250 ms.
        self.assertTrue(262_000_000 < outcome.ended_ns < 264_000_000, outcome.ended_ns)
        self.assertEqual(outcome.server.sends, [1100, 1100, 1100, 1100, 100])

    def test_counters_and_timers(self) -> None:
        outcome = rehearse(self.compiled("loops.py"), 0)
        self.assertTrue(outcome.timed)
        self.assertEqual(outcome.client.counters, {"A": 7, "B": 10_000})

    def test_show(self) -> None:
        done = command("show", "http_by_program.py", folder=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in (
            "template 0: TCP to port 80, 10 flows/s",
            "clients 16.0.0.0 to 16.0.0.255, in turn",
            "send 57 bytes",
            "wait for 32,810 bytes in all",
            "wait until the peer closes",
            # 32,810 bytes are 22.5 times 1,460.
            "57 bytes to the server, 32,810 to the client; 1 + 23 packets of data at MSS 1460",
            "10 flows/s at -m 1: 4.56 kb/s from clients, 2.62 Mb/s from servers",
        ):
            self.assertIn(words, done.stdout)

    def test_show_has_words_for_every_profile(self) -> None:
        for name in EXPECTED:
            with self.subTest(profile=name):
                form = self.compiled(f"{name}.py")
                text = describe(form, check(form))
                self.assertEqual(text.count("a flow: "), len(form["templates"]))
        self.assertIn("in GTPU from 1.1.1.11 to 12.2.2.2", command("show", "tunnel.py", folder=self.folder).stdout)


if __name__ == "__main__":
    unittest.main()
