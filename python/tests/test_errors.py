"""What people see of a profile with an error: one line that says where, status 2, nothing on standard output."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import unittest
from functools import partial

from tests.capture_writer import Recorder, http
from tests.running import HERE, PYTHON, InFolder, WithProfiles, command

HEAD = """\
from trex.astf.api import *
gen = ASTFIPGen(dist_client=ASTFIPGenDist(["16.0.0.0", "16.0.0.9"]), dist_server=ASTFIPGenDist(["48.0.0.0", "48.0.0.9"]))
def ends(c, s):
    return ASTFTemplate(ASTFTCPClientTemplate(gen, program=c), ASTFTCPServerTemplate(s))
class Prof1():
    def get_profile(self, **kwargs):
"""
"""Six lines, so that a body's first line is the profile's seventh."""


class Errors(InFolder):
    def profile(self, body: str, name: str = "p.py") -> str:
        indented = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
        self.write(name, f"{HEAD}{indented}\ndef register():\n    return Prof1()\n")
        return name

    def says(self, expected: str, body: str) -> None:
        self.assertIn(expected, self.fails("check", self.profile(body)))

    def test_python_errors(self) -> None:
        self.says("p.py:8: ZeroDivisionError: division by zero", "a = 1\nb = a / 0")
        self.write("s.py", "x = 1\ny = = 2\n")
        self.assertIn("s.py:2: is no Python", self.fails("check", "s.py"))
        self.assertIn("nowhere.py cannot be read: No such file", self.fails("check", "nowhere.py"))
        self.write("n.py", "x = 1\n")
        self.assertIn("n.py:1: the profile has no register()", self.fails("check", "n.py"))
        self.says("p.py:14: get_profile() must return an ASTFProfile, not None", "pass\n" * 7)
        self.says("p.py:7: the profile ends itself with exit status 3", "sys.exit(3)")

    def test_every_command_says_the_same(self) -> None:
        name = self.profile("ASTFProgram(side='x')")
        self.assertEqual({self.fails(what, name) for what in ("check", "show", "compile")}, {'p.py:7: ASTFProgram: side is "c" or "s", not \'x\''})

    def test_the_line_of_the_step(self) -> None:
        self.says(
            "p.py:9: there is no label 'b' in this program",
            """
            c, s = ASTFProgram(), ASTFProgram()
            c.send("x")
            c.jmp("b")
            s.recv(1)
            return ASTFProfile(gen, templates=ends(c, s))
            """,
        )
        self.says("p.py:8: ASTFGlobalInfo.tcp.mss must be from 10 to 9216, not 1", "i = ASTFGlobalInfo()\ni.tcp.mss = 1")

    def test_a_module_of_the_profiles_own(self) -> None:
        self.write("parts.py", "from trex.astf.api import *\n\ndef program():\n    return ASTFProgram(side='x')\n")
        self.says("parts.py:4: ASTFProgram: side is", "import parts\nparts.program()")

    def test_the_profiles_line_of_an_error_in_what_is_installed(self) -> None:
        os.mkdir(os.path.join(self.folder, "site-packages"))
        self.write("site-packages/faulty.py", "def fail():\n    raise ValueError('within')\n")
        self.says("p.py:9: ValueError: within", "sys.path.append(os.path.join(os.path.dirname(__file__), 'site-packages'))\nimport faulty\nfaulty.fail()")
        self.says("p.py:7: ModuleNotFoundError: No module named 'absent_module'", "import absent_module")

    def test_steps_of_another_file(self) -> None:
        self.write("steps.py", "from trex.astf.api import *\n\ndef waiter():\n    p = ASTFProgram()\n    p.recv(1)\n    return p\n")
        self.says(
            "steps.py:5: template 0: both sides wait for ever",
            "import steps\nreturn ASTFProfile(gen, templates=ends(steps.waiter(), steps.waiter()))",
        )

    def test_captures(self) -> None:
        body = "return ASTFProfile(gen, cap_list=[\n  ASTFCapInfo(file='{}')])"
        self.says(f"p.py:8: capture {self.folder}/no.pcap cannot be read: No such file", body.format("no.pcap"))
        self.write("bad.pcap", http().pcap()[:130])
        self.says(f"p.py:8: capture {self.folder}/bad.pcap is damaged: it ends within packet 2", body.format("bad.pcap"))
        two = http()
        other = Recorder(client_port=40001)
        other.open()
        two.frames += other.frames
        self.write("two.pcap", two.pcap())
        self.says(f"p.py:8: capture {self.folder}/two.pcap has several flows: packet ", body.format("two.pcap"))
        silent = Recorder()
        silent.open()
        silent.close()
        self.write("silent.pcap", silent.pcap())
        self.says("p.py:8: capture silent.pcap carries no payload", body.format("silent.pcap"))

    def test_shares_must_make_100(self) -> None:
        self.write("a.pcap", http().pcap())
        caps = "ASTFCapInfo(file='a.pcap', l7_percent=60), ASTFCapInfo(file='a.pcap', {}, port=81)"
        self.says("p.py:7: ASTFCapInfo: the captures' l7_percent make 90 together", f"return ASTFProfile(gen, cap_list=[{caps.format('l7_percent=30')}])")
        self.says("p.py:7: ASTFCapInfo: some captures have l7_percent, this one has not", f"return ASTFProfile(gen, cap_list=[{caps.format('cps=3')}])")

    def test_both_sides_wait(self) -> None:
        self.says(
            "p.py:9: template 0: both sides wait for ever: the client waits (line 9) for 11 bytes and has 10, "
            "the server waits (line 12) for 6 bytes and has 5",
            """
            c, s = ASTFProgram(), ASTFProgram()
            c.send("12345")
            c.recv(11)
            s.recv(5)
            s.send("1234567890")
            s.recv(1)
            return ASTFProfile(gen, templates=ends(c, s))
            """,
        )
        self.says(
            "p.py:8: template 0: both sides wait for ever: the client waits (line 8) for its peer to close",
            """
            c, s = ASTFProgram(), ASTFProgram()
            c.wait_for_peer_close()
            s.wait_for_peer_close()
            return ASTFProfile(gen, templates=ends(c, s))
            """,
        )
        self.says(
            "p.py:8: template 0: both sides wait for ever: the client waits (line 8) for 1 datagrams and has 0, the server has not begun",
            """
            c, s = ASTFProgram(stream=False), ASTFProgram(stream=False)
            c.recv_msg(1)
            s.send_msg("x")
            return ASTFProfile(gen, templates=ends(c, s))
            """,
        )

    def test_a_loop_that_does_nothing(self) -> None:
        self.says(
            "p.py:9: template 0: the client goes round for ever",
            """
            c, s = ASTFProgram(), ASTFProgram()
            c.set_label("a")
            c.jmp("a")
            return ASTFProfile(gen, templates=ends(c, s))
            """,
        )
        self.says(
            "p.py:8: template 0: the client exec_template has no template to run",
            "c = ASTFProgram()\nc.exec_template()\nreturn ASTFProfile(gen, templates=ends(c, ASTFProgram()))",
        )

    def test_what_ends_early_is_said_and_allowed(self) -> None:
        done = command(
            "check",
            self.profile(
                """
                c, s = ASTFProgram(), ASTFProgram()
                c.recv(100)
                s.send("1234567890")
                return ASTFProfile(gen, templates=ends(c, s))
                """
            ),
            folder=self.folder,
        )
        self.assertEqual(done.returncode, 0)
        self.assertIn("warning: p.py:8: template 0: the client waits for 100 bytes, but its peer ends after 10", done.stderr)

    def test_two_profiles_with_one_port(self) -> None:
        body = "c = ASTFProgram()\nc.send('x')\nreturn ASTFProfile(gen, templates=ends(c, c))"
        text = self.fails("check", self.profile(body, "a.py"), self.profile(body, "b.py"))
        self.assertTrue(text.startswith("b.py:4: a flow to TCP port 80 can be this server template's or the one's at"), text)
        self.assertIn("a.py:4", text)

    def test_nothing_arrives_before_it_was_sent(self) -> None:
        self.write(
            "p.py",
            "from trex.astf.api import *\nclass P():\n    def get_profile(self):\n"
            "        c = ASTFProgram(); c.send('a')\n        s = ASTFProgram(); s.recv(1)\n"
            "        ip = ASTFIPGen(dist_client=ASTFIPGenDist(['16.0.0.1', '16.0.0.9']), dist_server=ASTFIPGenDist(['48.0.0.1', '48.0.0.9']))\n"
            "        own = ASTFGlobalInfoPerTemplate(); own.path.delay_usec = 5; own.path.jitter_usec = 6\n"
            "        client = ASTFTCPClientTemplate(program=c, ip_gen=ip)\n"
            "        server = ASTFTCPServerTemplate(program=s, glob_info=own)\n"
            "        return ASTFProfile(default_ip_gen=ip, templates=ASTFTemplate(client, server))\n"
            "def register(): return P()\n",
        )
        self.assertEqual(
            self.fails("check", "p.py"), "p.py:9: path.jitter_usec 6 is more than path.delay_usec 5: nothing arrives before it was sent"
        )

    def test_limits(self) -> None:
        self.assertIn("p.py: took more than 1 s of processor time", self.fails("check", self.profile("while True: pass"), "--seconds", "1"))
        sleeper = self.profile("import time\ntime.sleep(60)")
        self.assertIn("p.py: not done after 2 s", self.fails("check", sleeper, "--wait", "2"))
        big = self.profile("a = b'x' * (1 << 30)")
        self.assertIn("p.py:7: the profile needs more memory than it may have", self.fails("check", big, "--memory", "256"))
        self.assertIn("p.py: ended by signal 9", self.fails("check", self.profile("os.kill(os.getpid(), 9)")))

    def test_a_profile_that_ends_itself_is_not_a_good_one(self) -> None:
        self.assertIn("p.py:7: the profile ends itself with exit status 0", self.fails("check", self.profile("raise SystemExit")))
        for status in (0, 3):
            self.assertIn(f"p.py: ended itself with exit status {status}", self.fails("check", self.profile(f"os._exit({status})")))

    def test_standard_output_that_cannot_be_written(self) -> None:
        for words in (["schema"], ["--help"], ["compile", os.path.join(HERE, "profiles", "http_by_program.py")]):
            shell = 'exec "$0" -m overfly.astf "$@"'
            run = partial(subprocess.run, env=dict(os.environ, PYTHONPATH=PYTHON), capture_output=True, text=True, timeout=300, check=False)
            done = run(["sh", "-c", shell + " > /dev/full", sys.executable, *words])
            self.assertEqual((done.returncode, done.stderr), (1, "overfly.astf: writing to standard output: No space left on device\n"))
            done = run(["sh", "-c", shell + " >&-", sys.executable, *words])
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            reader, writer = os.pipe()
            os.close(reader)
            gone = subprocess.run(
                [sys.executable, "-m", "overfly.astf", *words],
                env=dict(os.environ, PYTHONPATH=PYTHON), stdout=writer, stderr=subprocess.PIPE, timeout=300, check=False,
            )
            os.close(writer)
            self.assertEqual((gone.returncode, gone.stderr), (141, b""))

    def test_what_a_profile_prints_is_not_on_standard_output(self) -> None:
        body = "print('one')\nos.write(1, b'two\\n')\nos.system('echo three')\nc = ASTFProgram()\nc.send('x')\nreturn ASTFProfile(gen, templates=ends(c, c))"
        done = command("check", self.profile(body), folder=self.folder)
        self.assertEqual((done.returncode, done.stdout), (0, "p.py: 1 template, nothing wrong\n"), done.stderr)
        for word in ("one", "two", "three"):
            self.assertIn(word, done.stderr)

    def test_the_command_line(self) -> None:
        for words, expected in (
            ([], "say what to do"),
            (["dance"], "there is no command 'dance'"),
            (["check"], "check needs a profile"),
            (["check", "p.py", "-t"], "-t needs tunables"),
            (["check", "p.py", "--speed"], "there is no option '--speed'"),
            (["check", "p.py", "--seconds", "x"], "--seconds needs a whole number"),
            (["check", self.profile("pass"), "-t", "a"], "tunables are written a=1,b=2"),
        ):
            self.assertIn(expected, self.fails(*words))
        done = command("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("compile PROFILE.py", done.stdout)


class Tunables(WithProfiles):
    def test_errors(self) -> None:
        text = self.fails("check", "http_by_program.py", "-t", "sise=3")
        self.assertRegex(text, r"^http_by_program\.py:\d+: tunables: unrecognized arguments: --sise 3; there are --size$")
        text = self.fails("check", "http_by_program.py", "-t", "size=many")
        self.assertRegex(text, r"^http_by_program\.py:\d+: tunables: argument --size: invalid int value: 'many'; there are --size$")
        text = self.fails("check", "tunables.py", "-t", "mms=3")
        self.assertRegex(text, r"^tunables\.py:\d+: get_profile\(\) has no tunable 'mms'; it has mss, win$")

    def test_the_profiles_own_help(self) -> None:
        done = command("check", "http_by_program.py", "-t", "--help", folder=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("usage: http_by_program.py", done.stdout)
        self.assertIn("bytes of the response's body", done.stdout)

    def test_nothing_is_left_beside_the_profile(self) -> None:
        before = sorted(os.listdir(self.folder))
        command("check", "http_by_program.py", folder=self.folder)
        self.assertEqual(sorted(os.listdir(self.folder)), before)


if __name__ == "__main__":
    unittest.main()
