#!/usr/bin/env python3
"""Runs every test of the workspace and closes with one line that counts them.

Many tests wait for real programs and the real kernel, so as many targets run side by side as there are processors
(OVERFLY_TEST_LANES), each with cargo's own number of threads; where the last tests of some leave threads idle, a
further one begins. What a target printed appears when it has ended. Those that wait for nothing outside of themselves
run beside them, in the time that they leave. A binary that is made of many files of tests (tests/main.rs) runs once for
each file, as if each were a binary. A test that fails is run once more, alone: if it passes then, it is counted as
passed and named as disturbed, so that somebody looks at it. One that fails alone, more than a few that fail at first,
or a target that ends without its counts, fail the run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

DISTURBED_MAX = 8
#: Seconds after which a target is stuck: several times what the longest one takes. One that has only the time that others
#: leave has twice as many.
TARGET_MAX = 900
#: The name of a binary that is made of many files of tests.
MANY = "all"
#: The tests of python/.
PYTHON = "python"
#: Crates whose tests need the processor alone, and have virtual time.
PATIENT = ("crates/engine", "crates/wire")
ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = os.environ.get("CARGO_TARGET_DIR", "target")
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
#: A test has ended.
ENDED = re.compile(rb"^test .* \.\.\. (?:ok|FAILED|ignored)")
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
    #: The tests of the binary that are run; if empty, all.
    tests: list[str] = field(default_factory=list)
    #: How many that are.
    count: int = 1
    #: It waits for nothing outside of itself, and no figure of it depends on the time: it may run when it likes.
    is_patient: bool = False
    seconds: float = 0.0
    output: str = ""
    status: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    #: Why tests failed, by name: the last time that each did.
    why: dict[str, str] = field(default_factory=dict)

    def run(
        self, words: list[str] | None = None, idle: bool = False, left: Callable[[int], None] = lambda _: None
    ) -> None:
        """Runs it, with its output kept. A session of its own, so that all that it started can be ended with it. With
        `idle`, in the time that others leave. `left` hears how many tests have yet to end whenever one has."""
        begin = time.monotonic()
        words = words or (["--exact", *self.tests] if self.tests else [])
        process = subprocess.Popen(
            [*(["chrt", "--idle", "0"] if idle else []), *self.command, *words],
            cwd=self.folder,
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        RUNNING.add(process.pid)
        stuck = threading.Event()

        def end() -> None:
            stuck.set()
            os.killpg(process.pid, signal.SIGKILL)

        patience = threading.Timer(TARGET_MAX * (2 if idle else 1), end)
        patience.daemon = True
        patience.start()
        output, ended = bytearray(), 0
        for line in process.stdout or ():
            output += line
            if ENDED.match(line):
                ended += 1
                left(max(self.count - ended, 0))
        patience.cancel()
        process.wait()
        RUNNING.discard(process.pid)
        self.output = output.decode(errors="replace")
        self.output += f"\nended after {TARGET_MAX} s: it was stuck\n" if stuck.is_set() else ""
        self.status = process.returncode
        self.seconds = time.monotonic() - begin
        self.failures = FAILED.findall(self.output)
        self.why |= {name: text[max(text.find("\nthread '"), 0):].strip()[:WHY_MAX] for name, text in WHY.findall(self.output)}
        counts = [[int(number) for number in found] for found in RESULT.findall(self.output)]
        self.passed, self.failed, self.skipped = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0)
        if self.name == PYTHON:
            self.count_python()

    def count_python(self) -> None:
        """What unittest says, which does not end in lines of libtest's."""
        bad = dict(part.split("=") for text in PYTHON_BAD.findall(self.output) for part in text.split(", "))
        self.failed = int(bad.get("failures", 0)) + int(bad.get("errors", 0))
        self.skipped = int(bad.get("skipped", 0))
        self.passed = sum(map(int, PYTHON_RAN.findall(self.output))) - self.failed - self.skipped

    def has_crashed(self) -> bool:
        """It ended badly, but did not say which tests failed."""
        return self.status != 0 and (self.failed == 0 or self.failed != len(self.failures))


RUNNING: set[int] = set()


def tests_of(executable: str) -> list[str]:
    """The tests of a binary."""
    listed = subprocess.run([executable, "--list", "--format", "terse"], stdout=subprocess.PIPE, check=True, text=True)
    return re.findall(r"^(\S+): test$", listed.stdout, re.MULTILINE)


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
        place, binary, executable = folder.relative_to(ROOT), message["target"]["name"], message["executable"]
        is_patient = str(place) in PATIENT or binary == "fuzz_drivers"
        environment = {"CARGO_MANIFEST_DIR": str(folder)}

        tests = tests_of(executable)
        if "test" not in message["target"]["kind"]:
            name = f"{place} unittests {binary}"
            targets.append((True, Target(name, [executable], folder, environment, [], len(tests), is_patient)))
            continue
        files: dict[str, list[str]] = {}
        for test in tests:
            files.setdefault(test.split("::")[0] if binary == MANY else binary, []).append(test)
        for file, tests in files.items():
            name, only = f"{place} tests {file}", tests if binary == MANY else []
            targets.append((False, Target(name, [executable], folder, environment, only, len(tests), is_patient)))
            if file == "interrupts":
                # What ends a thread in the middle of a call depends on how the library was built.
                name += " (release library)"
                library = environment | {"OVERFLY_TEST_LIBRARY": str(ROOT / TARGET / "release/liboverfly.so")}
                targets.append((False, Target(name, [executable], folder, library, only, len(tests))))
    return [target for _, target in sorted(targets, key=lambda pair: pair[0])]


def run_all(targets: list[Target]) -> None:
    """Runs them side by side, each where there is room for as many tests as it runs at once. Those that are patient run
    one by one in the time that the others leave, and after them."""
    threads = int(os.environ.get("RUST_TEST_THREADS") or os.cpu_count() or 1)
    room = threads * int(os.environ.get("OVERFLY_TEST_LANES") or os.cpu_count() or 1)
    waiting = [target for target in targets if not target.is_patient]
    patient = [target for target in targets if target.is_patient]
    changed = threading.Condition()

    def needs(target: Target) -> int:
        return max(min(threads, target.count), 1)

    def run(target: Target) -> None:
        taken = needs(target)

        def left(count: int) -> None:
            nonlocal room, taken
            with changed:
                room += max(taken - count, 0)
                taken = min(taken, count)
                changed.notify()

        target.run(left=left)
        left(0)
        say(target)

    def say(target: Target) -> None:
        with changed:
            print(f"     Running {target.name}\n{target.output}", flush=True)

    def run_patient() -> None:
        while True:
            with changed:
                if not patient:
                    return
                target = patient.pop(0)
            target.run(idle=True)
            say(target)

    running = [threading.Thread(target=run_patient, daemon=True)]
    running[0].start()
    with changed:
        while queue := waiting or patient:
            fitting = next((target for target in queue if needs(target) <= room), None)
            if fitting is None:
                changed.wait()
                continue
            queue.remove(fitting)
            room -= needs(fitting)
            running.append(threading.Thread(target=run, args=[fitting], daemon=True))
            running[-1].start()
    for thread in running:
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
    return Target("doc tests", [CARGO, "test", "--workspace", "--locked", "--doc"], ROOT, is_patient=True)


def python() -> Target:
    """The tests of python/."""
    words = ["-W", "error::SyntaxWarning", "-m", "unittest", "discover", "-s", "python/tests", "-t", "python"]
    return Target(PYTHON, [sys.executable, *words], ROOT)


def main() -> int:
    # Servers that give up root read what the tests write.
    os.umask(0o022)
    begin = time.monotonic()
    targets = built()
    compiled = time.monotonic()
    others = [python(), documents()]
    run_all(targets + others)
    disturbed = once_more(targets)
    targets += others

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
