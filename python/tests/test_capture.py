"""Captures: what is read of them, and what is refused."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import unittest
from typing import List, Tuple

from overfly.astf import capture
from overfly.astf.capture_file import frames, packet
from tests.capture_writer import ACK, SYN, Recorder, http
from tests.running import InFolder


class Captures(InFolder):
    def flow(self, content: bytes, name: str = "a.pcap") -> capture.Flow:
        return capture.read(self.write(name, content))

    def messages(self, content: bytes, name: str = "a.pcap") -> List[Tuple[bool, int, int]]:
        """Who, how many bytes, and the think time in µs."""
        return [(each.from_client, len(each.payload), each.think_ns // 1000) for each in self.flow(content, name).messages]

    def refused(self, content: bytes) -> str:
        with self.assertRaises(capture.CaptureError) as caught:
            self.flow(content)
        return str(caught.exception)

    def test_formats_say_the_same(self) -> None:
        recorder = http()
        expected = self.messages(recorder.pcap(), "0")
        self.assertEqual([(side, size) for side, size, _ in expected], [(True, 100), (False, 20_000)])
        contents = [recorder.pcap(">"), recorder.pcap("<", True), recorder.pcap(">", True), recorder.pcapng(), recorder.pcapng(">", 6)]
        for number, content in enumerate(contents):
            with self.subTest(number=number):
                self.assertEqual(self.messages(content, str(number + 1)), expected)

    def test_ports_and_family(self) -> None:
        flow = self.flow(http().pcap())
        self.assertEqual((flow.is_tcp, flow.is_ipv6, flow.client_port, flow.server_port), (True, False, 40000, 80))
        six = Recorder(client="2001:db8::1", server="2001:db8::2", server_port=53)
        six.datagram(True, b"q")
        flow = self.flow(six.pcap(), "six")
        self.assertEqual((flow.is_tcp, flow.is_ipv6, flow.server_port), (False, True, 53))

    def test_think_times_are_without_the_wire(self) -> None:
        recorder = Recorder(rtt_ns=30_000_000)
        recorder.open()
        recorder.say(True, b"a" * 10)  # its acknowledgement takes a round trip
        recorder.wait(4_000_000)
        recorder.say(False, b"b" * 10)
        recorder.wait(90_000_000)
        recorder.say(True, b"c" * 10)
        recorder.close()
        thinks = [think for _, _, think in self.messages(recorder.pcap())]
        # The capture is the client's: of the server's 34 ms 30 are the wire, the client's 90 are its own.
        self.assertEqual(thinks, [0, 4_001, 90_001])

    def test_a_pause_parts_messages_and_a_window_does_not(self) -> None:
        recorder = Recorder()
        recorder.open()
        recorder.say(True, b"a" * 10)
        recorder.say(False, b"b" * 1000)
        recorder.wait(500_000_000)
        recorder.say(False, b"c" * 1000)
        # A sender that waits for the acknowledgement of what is under way has no choice.
        recorder.segment(False, ACK, b"d" * 1000)
        recorder.wait(50_000_000)
        recorder.segment(False, ACK, b"e" * 1000)
        recorder.segment(True, ACK)
        recorder.close()
        messages = self.messages(recorder.pcap())
        self.assertEqual([(side, size) for side, size, _ in messages], [(True, 10), (False, 1000), (False, 3000)])
        self.assertTrue(499_000 < messages[2][2] <= 500_000, messages)

    def test_retransmitted_and_out_of_order(self) -> None:
        recorder = Recorder()
        recorder.open()
        start = recorder.sequences[0]
        recorder.segment(True, ACK, b"B" * 100, sequence=start + 100)
        recorder.segment(True, ACK, b"A" * 100, sequence=start)
        recorder.segment(True, ACK, b"A" * 100 + b"B" * 20, sequence=start)
        recorder.segment(True, ACK, b"C" * 100, sequence=start + 200)
        recorder.sequences[0] = start + 300
        recorder.segment(True, ACK, b"\0", sequence=start + 299)  # a keep-alive probe
        recorder.segment(False, ACK)
        recorder.close()
        flow = self.flow(recorder.pcap())
        self.assertEqual(flow.messages[0].payload, b"A" * 100 + b"B" * 100 + b"C" * 100)
        self.assertGreater(start + 300, 2**32, "the sequence numbers wrap within the data")

    def test_a_clock_that_goes_backwards(self) -> None:
        recorder = http()
        recorder.frames = [(2 * 10**18 - time_ns, frame) for time_ns, frame in recorder.frames]
        self.assertEqual([(side, size) for side, size, _ in self.messages(recorder.pcap())], [(True, 100), (False, 20_000)])

    def test_other_frames_are_passed_over(self) -> None:
        recorder = http()
        recorder.frame(b"\0" * 28, kind=0x0806)  # ARP
        recorder.frame(recorder.ip(True, 1, b"\x08\0" + b"\0" * 20))  # ICMP
        self.assertEqual(len(self.flow(recorder.pcap()).messages), 2)

    def test_udp_keeps_each_datagram(self) -> None:
        recorder = Recorder(server_port=53)
        for from_client, size in ((True, 40), (True, 0), (False, 300), (False, 9)):
            recorder.datagram(from_client, b"d" * size)
            recorder.wait(60_000)
        self.assertEqual(self.messages(recorder.pcap()), [(True, 40, 0), (True, 0, 60), (False, 300, 60), (False, 9, 60)])

    def test_refuses_several_flows(self) -> None:
        recorder = http()
        other = Recorder(client_port=40001)
        other.open()
        number = len(recorder.frames) + 1
        recorder.frames += other.frames
        text = self.refused(recorder.pcap())
        self.assertIn("has several flows", text)
        self.assertIn(f"packet {number} is TCP 10.1.0.1:40001 to 10.2.0.1:80", text)
        both = http()
        both.datagram(True, b"u")
        self.assertIn("is UDP", self.refused(both.pcap()))

    def test_refuses_what_is_damaged(self) -> None:
        whole = http().pcap()
        self.assertIn("is empty", self.refused(b""))
        self.assertIn("is no capture", self.refused(b"GIF89a" + b"\0" * 50))
        self.assertIn("within the file's header", self.refused(whole[:20]))
        self.assertIn("within the header of packet 1", self.refused(whole[:30]))
        self.assertIn("within packet 1", self.refused(whole[:50]))
        next_generation = http().pcapng()
        self.assertIn("after packet", self.refused(next_generation[:-9]))
        self.assertIn("claims 4294967295 bytes", self.refused(next_generation[:32] + b"\xff" * 4 + next_generation[36:]))

    def test_refuses_every_truncation_or_reads_it(self) -> None:
        """No prefix of a capture ends in anything but a flow or a CaptureError."""
        for content in (http(3000).pcap(), http(3000).pcapng()):
            for length in range(0, len(content), 7):
                try:
                    list(capture_frames(content[:length]))
                except capture.CaptureError:
                    pass

    def test_random_damage_is_read_or_refused(self) -> None:
        """Bytes of a capture become others, some go, some come: it is read, or refused with a CaptureError, and soon."""
        seed = int(os.environ.get("OVERFLY_SEED", random.randrange(1 << 32)))
        chance = random.Random(seed)
        dns = Recorder(server_port=53, client="2001:db8::1", server="2001:db8::2", vlans=(3,))
        dns.datagram(True, b"q" * 40)
        dns.datagram(False, b"a" * 90)
        contents = [http(3000).pcap(), http(3000).pcapng(), dns.pcap(">"), dns.pcapng(">")]
        for number in range(1500):
            damaged = bytearray(contents[number % len(contents)])
            for _ in range(chance.randrange(1, 6)):
                at = chance.randrange(len(damaged))
                what = chance.randrange(4)
                if what < 2:
                    damaged[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
                elif what == 2:
                    del damaged[at : at + chance.randrange(1, 40)]
                else:
                    damaged[at:at] = chance.randbytes(chance.randrange(1, 40))
                if not damaged:
                    break
            try:
                self.flow(bytes(damaged), str(number))
            except capture.CaptureError:
                pass
            except Exception as error:
                raise AssertionError(f"OVERFLY_SEED={seed}, damage {number}: {error!r}") from error

    def test_refuses_what_misses_bytes(self) -> None:
        recorder = http(10_000)
        missing = [index for index, (_, frame) in enumerate(recorder.frames) if len(frame) > 1400][2]
        del recorder.frames[missing]
        text = self.refused(recorder.pcap())
        self.assertIn("misses packets", text)
        self.assertIn("server's bytes from 2920", text)
        last = http(1000)
        del last.frames[[index for index, (_, frame) in enumerate(last.frames) if len(frame) > 900][0]]
        self.assertIn("misses packets", self.refused(last.pcap()))
        self.assertIn("was cut: 96 of", self.refused(http().pcap(snap=96)))

    def test_refuses_no_beginning_and_fragments(self) -> None:
        late = http()
        late.frames = late.frames[3:]
        self.assertIn("is no SYN", self.refused(late.pcap()))
        alone = Recorder()
        alone.segment(True, SYN)
        self.assertIn("nobody answers", self.refused(alone.pcap()))
        fragment = Recorder()
        fragment.frame(fragment.ip(True, 17, b"\0" * 64, fragment=0x2000))
        self.assertIn("is an IP fragment", self.refused(fragment.pcap()))
        nothing = Recorder()
        nothing.frame(b"\0" * 28, kind=0x0806)
        self.assertIn("has no packet of TCP or UDP", self.refused(nothing.pcap()))

    @unittest.skipUnless(shutil.which("tshark"), "tshark is not there")
    def test_tshark_reads_the_same_payload(self) -> None:
        recorder = http(5000)
        for name, content in (("a.pcap", recorder.pcap()), ("a.pcapng", recorder.pcapng())):
            path = self.write(name, content)
            fields = ["-T", "fields", "-e", "tcp.srcport", "-e", "tcp.payload", "-e", "tcp.checksum.status"]
            done = subprocess.run(
                ["tshark", "-n", "-o", "tcp.check_checksum:TRUE", "-r", path, *fields], capture_output=True, text=True, timeout=120, check=True
            )
            sent = {"40000": b"", "80": b""}
            for line in done.stdout.splitlines():
                port, payload, checksum = line.split("\t")
                self.assertEqual(checksum, "1", "tshark finds the checksums good")
                sent[port] += bytes.fromhex(payload)
            flow = capture.read(path)
            for port, client in (("40000", True), ("80", False)):
                ours = b"".join(message.payload for message in flow.messages if message.from_client is client)
                self.assertEqual(ours, sent[port])


def capture_frames(content: bytes) -> "list[object]":


    return [packet(frame) for frame in frames(content)]


if __name__ == "__main__":
    unittest.main()
