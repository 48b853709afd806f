"""Runs the command and the profiles as the tests need them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Tuple

from overfly.astf.__main__ import answer, parse
from tests.capture_writer import Recorder, http

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.dirname(HERE)


def command(*words: str, folder: str = HERE) -> "subprocess.CompletedProcess[str]":
    """python -m overfly.astf, in `folder`."""
    environment = dict(os.environ, PYTHONPATH=PYTHON)
    return subprocess.run(
        [sys.executable, "-m", "overfly.astf", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


class InFolder(unittest.TestCase):
    """A test with a folder of its own, which is gone after it."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="overfly-astf-")
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name: str, content: "str | bytes") -> str:
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def fails(self, *words: str) -> str:
        """Runs what must fail as it should: status 2, one line on standard error, nothing on standard output."""
        done = command(*words, folder=self.folder)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr.rstrip("\n")

    def compiled(self, *words: str) -> Dict[str, Any]:
        """The JSON form of profiles, made in this process; as it is after it was written and read."""
        here = os.getcwd()
        os.chdir(self.folder)
        try:
            arguments = parse(["compile", *words])
            with contextlib.redirect_stderr(io.StringIO()):
                form: Dict[str, Any] = json.loads(answer(arguments))
        finally:
            os.chdir(here)
        return form


def captures() -> List[Tuple[str, bytes]]:
    """The captures that the profiles name."""
    vlan = Recorder(vlans=(100, 7), client_port=50000)
    vlan.open()
    vlan.say(True, b"v" * 300)
    vlan.wait(5_000_000)
    vlan.say(False, b"w" * 5700)
    vlan.close()
    six = Recorder(client="2001:db8::1", server="2001:db8::2", server_port=443)
    six.open()
    six.say(True, b"x" * 517)
    six.say(False, b"y" * 4000)
    six.wait(20_000_000)
    six.say(True, b"z" * 83)
    six.say(False, b"!" * 1400)
    six.close()
    dns = Recorder(server_port=53)
    dns.datagram(True, b"q" * 40)
    dns.wait(1_000_000)
    dns.datagram(False, b"a" * 300)
    return [
        ("http.pcap", http().pcap()),
        ("vlan.pcap", vlan.pcap(">", nanoseconds=True)),
        ("ipv6.pcapng", six.pcapng()),
        ("dns.pcap", dns.pcap()),
    ]


class WithProfiles(InFolder):
    """A test among copies of the profiles, and the captures that they name."""

    def setUp(self) -> None:
        super().setUp()
        shutil.copytree(os.path.join(HERE, "profiles"), self.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        for name, content in captures():
            self.write(name, content)
