"""The command: python -m overfly.astf check|show|compile PROFILE.py ... [-t TUNABLES]

A profile is a program. It runs as whoever runs this, in a child process whose time and memory are limited; what it prints goes to
standard error, so that standard output has nothing but what was asked for.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import List, NoReturn, Optional

from .check import check
from .describe import describe
from .errors import ASTFError
from .form import Source, run_of
from .load import ProfileError, load, message_of

USAGE = """\
python -m overfly.astf check PROFILE.py ...     says what is wrong with profiles, and at which line
python -m overfly.astf show PROFILE.py ...      says what they would send
python -m overfly.astf compile PROFILE.py ...   writes the JSON form of a run of them to standard output
python -m overfly.astf schema                   writes the JSON Schema of that form

  -t TUNABLES     what the profiles' get_profile() is called with: -t a=1,b=2, or last of all -t --a 1 --b 2;
                  -t --help asks the profile which there are
  --topology FILE tunnels: a file with get_topo()
  --seconds N     the processor time that profiles may take, 60 if not given
  --wait N        how many seconds they may take by the clock, 600 if not given
  --memory MiB    the memory that it may have, 2048 if not given

Exit status: 0, 2 with one message if something is wrong, or 1 if standard output cannot be written.
"""

IN_CHILD = "--in-child"


@dataclass
class Arguments:
    """What was asked for."""

    command: str
    profiles: List[str] = field(default_factory=list)
    tunables: List[str] = field(default_factory=list)
    topology: Optional[str] = None
    seconds: int = 60
    wait_s: int = 600
    memory_mib: int = 2048


class Usage(Exception):
    """What is wrong with the command line."""


def parse(words: List[str]) -> Arguments:
    """The command line. After `-t --...` all the rest is the profile's."""
    if not words:
        raise Usage("say what to do: check, show, compile or schema")
    arguments = Arguments(words[0])
    if arguments.command not in ("check", "show", "compile", "schema"):
        raise Usage(f"there is no command {arguments.command!r}: check, show, compile and schema are there")
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        if word in ("-t", "--tunables"):
            if not rest:
                raise Usage("-t needs tunables: -t a=1,b=2")
            taken = len(rest) if rest[0].startswith("-") else 1
            arguments.tunables += rest[:taken]
            rest = rest[taken:]
        elif word in ("--seconds", "--wait", "--memory", "--topology"):
            value = rest.pop(0) if rest else ""
            if word == "--topology":
                arguments.topology = value or None
            elif not value.isdigit() or int(value) == 0:
                raise Usage(f"{word} needs a whole number, not {value!r}")
            elif word == "--seconds":
                arguments.seconds = int(value)
            elif word == "--wait":
                arguments.wait_s = int(value)
            else:
                arguments.memory_mib = int(value)
        elif word.startswith("-"):
            raise Usage(f"there is no option {word!r}")
        else:
            arguments.profiles.append(word)
    if arguments.command != "schema" and not arguments.profiles:
        raise Usage(f"{arguments.command} needs a profile: {arguments.command} PROFILE.py")
    return arguments


def schema() -> str:
    """The JSON Schema of the form."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "schema.json"), encoding="utf-8") as file:
        return file.read()


def answer(arguments: Arguments) -> str:
    """Runs the profiles, here, and says what was asked for. Raises ProfileError."""
    sources: List[Source] = []
    for profile in arguments.profiles:
        sources.append(load(profile, arguments.tunables))
    if arguments.topology is not None:
        sources[0].topology = load(arguments.topology, [], topology_only=True).topology
    try:
        form = run_of(sources)
        findings = check(form)
    except ASTFError as error:
        raise ProfileError(message_of(error, arguments.profiles)) from None
    for warning in findings.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if arguments.command == "compile":
        return json.dumps(form, separators=(",", ":")) + "\n"
    if arguments.command == "show":
        return describe(form, findings)
    templates = len(form["templates"])
    return f"{', '.join(arguments.profiles)}: {templates} template{'' if templates == 1 else 's'}, nothing wrong\n"


def in_child(arguments: Arguments) -> int:
    """Within limits, with standard output kept for the answer alone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_CPU, arguments.seconds)
    _limit(resource.RLIMIT_AS, arguments.memory_mib << 20)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    result = os.dup(1)
    os.dup2(2, 1)
    printed = io.StringIO()
    sys.stdout = printed
    try:
        output = answer(arguments)
    except SystemExit:
        output, printed = printed.getvalue(), io.StringIO()
    except ProfileError as error:
        sys.stderr.write(printed.getvalue() + f"{error}\n")
        return 2
    sys.stderr.write(printed.getvalue())
    with os.fdopen(result, "w", encoding="utf-8") as file:
        file.write(output)
    return 0


def _limit(which: int, most: int) -> None:
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def with_child(arguments: Arguments, words: List[str]) -> int:
    """Starts the child, and says what became of it if it could not."""
    # -I keeps the environment's and the working directory's modules from standing in for Python's own.
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    start = f"import sys; sys.path.insert(0, {package!r}); from overfly.astf.__main__ import main; main()"
    command = [sys.executable, "-I", "-c", start, IN_CHILD, *words]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    names = ", ".join(arguments.profiles)
    try:
        output, _ = child.communicate(timeout=arguments.wait_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return _complain(f"{names}: not done after {arguments.wait_s} s: what does it wait for? (--wait allows more)")
    except KeyboardInterrupt:
        child.kill()
        child.communicate()
        return 130
    if child.returncode == -signal.SIGXCPU:
        return _complain(f"{names}: took more than {arguments.seconds} s of processor time: --seconds allows more")
    if child.returncode < 0:
        return _complain(f"{names}: ended by signal {-child.returncode}")
    if child.returncode not in (0, 2) or (child.returncode == 0 and not output):
        return _complain(f"{names}: ended itself with exit status {child.returncode}")
    return 2 if child.returncode else _print(output)


def _print(answer: bytes) -> int:
    """Writes it to standard output. The exit status: who no longer reads wants to hear nothing, as of the command `overfly`."""
    if sys.stdout is None:
        return 0
    try:
        sys.stdout.buffer.write(answer)
        sys.stdout.flush()
    except OSError as error:
        # What is left in Python's buffer would be written at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        _complain(f"overfly.astf: writing to standard output: {error.strerror}")
        return 1
    return 0


def _complain(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


def main() -> NoReturn:
    """Runs the command."""
    words = sys.argv[1:]
    inside = words[:1] == [IN_CHILD]
    if words[:1] in (["-h"], ["--help"]):
        sys.exit(_print(USAGE.encode()))
    try:
        arguments = parse(words[1:] if inside else words)
    except Usage as error:
        sys.exit(_complain(f"overfly.astf: {error} (--help says more)"))
    if arguments.command == "schema":
        sys.exit(_print(schema().encode()))
    sys.exit(in_child(arguments) if inside else with_child(arguments, words))


if __name__ == "__main__":
    main()
