#!/usr/bin/env python3
"""Runs every test of the workspace and closes with one line that counts them.

Many tests wait for real programs and the real kernel, so as many targets run side by side as there are processors
(OVERFLY_TEST_LANES), each with cargo's own number of threads; what a target printed appears when it has ended. A test
that fails is run once more, alone: if it passes then, it is counted as passed and named as disturbed, so that somebody
looks at it. One that fails alone, more than a few that fail at first, or a target that ends without its counts, fail
the run.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

DISTURBED_MAX = 8
#: Seconds after which a target is stuck: several times what the longest one takes.
TARGET_MAX = 900
ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = os.environ.get("CARGO_TARGET_DIR", "target")
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
FAILED = re.compile(r"^test (.*) \.\.\. FAILED$", re.MULTILINE)
#: What libtest says of a test that failed, up to the next one's or the list of them all.
WHY = re.compile(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:$)", re.MULTILINE | re.DOTALL)
#: Characters of it, from its panic on, that stand beside the test's name at the end, where a log that was cut still has
#: them. What it printed before may be longer.
WHY_MAX = 1500
PYTHON_RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
PYTHON_BAD = re.compile(r"^(?:OK|FAILED) \((.*)\)$", re.MULTILINE)


@dataclass
class Target:
    """A test binary, and what became of it."""

    name: str
    command: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    output: str = ""
    status: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    #: Why tests failed, by name: the last time that each did.
    why: dict[str, str] = field(default_factory=dict)

    def run(self, words: list[str] | None = None) -> None:
        """Runs it, with its output kept. A session of its own, so that all that it started can be ended with it."""
        begin = time.monotonic()
        process = subprocess.Popen(
            self.command + (words or []),
            cwd=self.folder,
            env=os.environ | {"CARGO_MANIFEST_DIR": str(self.folder)} | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        RUNNING.add(process.pid)
        stuck = ""
        try:
            output = process.communicate(timeout=TARGET_MAX)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0]
            stuck = f"\nended after {TARGET_MAX} s: it was stuck\n"
        RUNNING.discard(process.pid)
        self.output = output.decode(errors="replace") + stuck
        self.status = process.returncode
        self.seconds = time.monotonic() - begin
        self.failures = FAILED.findall(self.output)
        self.why |= {name: text[max(text.find("\nthread '"), 0):].strip()[:WHY_MAX] for name, text in WHY.findall(self.output)}
        counts = [[int(number) for number in found] for found in RESULT.findall(self.output)]
        self.passed, self.failed, self.skipped = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0)

    def has_crashed(self) -> bool:
        """It ended badly, but did not say which tests failed."""
        return self.status != 0 and (self.failed == 0 or self.failed != len(self.failures))


RUNNING: set[int] = set()


def built() -> list[Target]:
    """Builds all test binaries. Those of whole programs first, which take longest."""
    arguments = ["test", "--workspace", "--locked", "--no-run", "--message-format", "json-render-diagnostics"]
    build = subprocess.run([CARGO, *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if build.returncode != 0:
        sys.exit(build.returncode)
    targets = []
    for line in build.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        folder = Path(message["manifest_path"]).parent
        kind = "tests" if "test" in message["target"]["kind"] else "unittests"
        name = f"{folder.relative_to(ROOT)} {kind} {message['target']['name']}"
        targets.append((kind != "tests", Target(name, [message["executable"]], folder)))
        if message["target"]["name"] == "interrupts":
            # What ends a thread in the middle of a call depends on how the library was built.
            name += " (release library)"
            environment = {"OVERFLY_TEST_LIBRARY": str(ROOT / TARGET / "release/liboverfly.so")}
            targets.append((False, Target(name, [message["executable"]], folder, environment)))
    return [target for _, target in sorted(targets, key=lambda pair: pair[0])]


def run_all(targets: list[Target]) -> None:
    """Runs them side by side."""
    waiting: queue.SimpleQueue[Target] = queue.SimpleQueue()
    for target in targets:
        waiting.put(target)
    printing = threading.Lock()

    def lane() -> None:
        while True:
            try:
                target = waiting.get_nowait()
            except queue.Empty:
                return
            target.run()
            with printing:
                print(f"     Running {target.name}\n{target.output}", flush=True)

    count = int(os.environ.get("OVERFLY_TEST_LANES") or os.cpu_count() or 1)
    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(count)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()


def once_more(targets: list[Target]) -> list[tuple[str, str]]:
    """Runs what failed again, alone. Returns what passed then, each with why it had failed."""
    bad = [target for target in targets if target.status != 0]
    names = [name for target in bad for name in target.failures]
    if not names or len(names) > DISTURBED_MAX or any(target.has_crashed() for target in bad):
        return []
    print(f"{len(names)} failed; once more, alone: {' '.join(names)}")
    disturbed = []
    for target in bad:
        again = Target(target.name, target.command, target.folder, target.environment)
        again.run(["--exact", "--test-threads", "1", *target.failures])
        target.why |= again.why if again.status != 0 else {}
        print(f"     Alone {target.name}\n{again.output}", flush=True)
        if again.status == 0 and again.passed == len(target.failures):
            disturbed += [(name, target.why.get(name, "")) for name in target.failures]
            target.status, target.passed, target.failed = 0, target.passed + target.failed, 0
    return disturbed


def documents() -> Target:
    """Doc tests are compiled by rustdoc as they run: cargo's matter."""
    target = Target("doc tests", [CARGO, "test", "--workspace", "--locked", "--doc"], ROOT)
    target.run()
    print(f"     Running doc tests\n{target.output}", flush=True)
    return target


def python() -> Target:
    """The tests of python/."""
    words = ["-W", "error::SyntaxWarning", "-m", "unittest", "discover", "-s", "python/tests", "-t", "python"]
    target = Target("python", [sys.executable, *words], ROOT)
    target.run()
    print(f"     Running python\n{target.output}", flush=True)
    ran = sum(int(count) for count in PYTHON_RAN.findall(target.output))
    bad = dict(part.split("=") for text in PYTHON_BAD.findall(target.output) for part in text.split(", "))
    target.failed = int(bad.get("failures", 0)) + int(bad.get("errors", 0))
    target.skipped = int(bad.get("skipped", 0))
    target.passed = ran - target.failed - target.skipped
    return target


def main() -> int:
    # Servers that give up root read what the tests write.
    os.umask(0o022)
    begin = time.monotonic()
    targets = built()
    compiled = time.monotonic()
    run_all(targets)
    disturbed = once_more(targets)
    targets += [documents(), python()]

    print("What to make faster first:")
    for target in sorted(targets, key=lambda target: -target.seconds)[:12]:
        print(f"{target.seconds:7.1f} s  {target.name}")
    now = time.monotonic()
    print(f"{now - compiled:7.1f} s  all, after {compiled - begin:.1f} s of building")
    for target in targets:
        if target.status != 0:
            print(f"failed: {target.name}: {', '.join(target.failures) or f'status {target.status}'}")
            print(*(target.why.get(name, "") for name in target.failures), sep="\n")
    for name, why in disturbed:
        print(f"disturbed: {name} failed among the others and passed alone\n{why}")
    passed, failed, skipped = (
        sum(getattr(target, kind) for target in targets) for kind in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(any(target.status != 0 for target in targets))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        for group in RUNNING.copy():
            os.killpg(group, signal.SIGINT)
        sys.exit(130)
