"""Runs a profile's code and takes the profile from it.

A profile is a program, so this runs as whoever asked for it, and nobody else: `__main__` does it in a child process with limits.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import os
import re
import shlex
import sys
import traceback
from types import ModuleType
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence

from . import program
from .errors import ASTFError, Place, is_profiles_own
from .form import Source
from .profile import ASTFProfile
from .tunnels_topo import TunnelsTopo

SHIM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shim")
"""Where the names are under which published profiles import the API."""


class ProfileError(Exception):
    """What is wrong with a profile, in one line: its file, the line, and the reason."""


def parse_tunables(given: Sequence[str]) -> List[str]:
    """The words for a profile's own argument parser, from `a=1,b=2` or from `--a 1 --b 2`."""
    found: List[str] = []
    for text in given:
        if text.startswith("-"):
            found += shlex.split(text)
        elif found and found[-1].startswith("--") and "=" not in text:
            found.append(text)
        else:
            for pair in re.split(r",(?=[A-Za-z_]\w*=)", text):
                name, equals, value = pair.partition("=")
                if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
                    raise ProfileError(f"-t {text}: tunables are written a=1,b=2 or --a 1 --b 2")
                found += [f"--{name}", value]
    return found


def _typed(words: Sequence[str]) -> Dict[str, Any]:
    """The tunables by name, with numbers as numbers, for profiles that take them so."""
    typed: Dict[str, Any] = {}
    index = 0
    while index < len(words):
        name, equals, value = words[index].lstrip("-").partition("=")
        index += 1
        if not equals and index < len(words) and not re.match(r"--?[A-Za-z_]", words[index]):
            value, index = words[index], index + 1
        try:
            typed[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            typed[name] = value
    return typed


def load(file: str, tunables: Sequence[str], topology_only: bool = False) -> Source:
    """Runs the profile in `file`. Raises ProfileError; SystemExit(0) if the profile was asked for its help.

    A file with get_topo() may have tunnels, and with `topology_only` has to have them and nothing else.
    """
    words = parse_tunables(tunables)
    path = os.path.abspath(file)
    program.profile_folder = os.path.dirname(path)
    parser_error = argparse.ArgumentParser.error
    argparse.ArgumentParser.error = _parser_error  # type: ignore[method-assign, assignment]
    sys.path[:0] = [SHIM, os.path.dirname(path)]
    # Its argument parser says in its help how the program is called.
    called, sys.argv[0] = sys.argv[0], file
    try:
        module = _run(path)
        if topology_only and not hasattr(module, "get_topo"):
            raise ASTFError("there is no get_topo() in it: it must return a TunnelsTopo", Place(path, 1))
        if not topology_only and not hasattr(module, "register"):
            raise ASTFError("the profile has no register(): it must return an object with get_profile()", Place(path, 1))
        profile = None if topology_only else _profile(module, words)
        topology = _topology(module, words) if hasattr(module, "get_topo") else None
        return Source(file, words, profile, topology)
    except SystemExit as stop:
        if stop.code in (None, 0) and any(word in ("-h", "--help") for word in words):
            raise
        raise ProfileError(message_of(stop, [file])) from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ProfileError(message_of(error, [file])) from None
    finally:
        argparse.ArgumentParser.error = parser_error  # type: ignore[method-assign]
        del sys.path[:2]
        sys.argv[0] = called
        program.profile_folder = None


def _parser_error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """In place of usage and exit: the profile's tunables are wrong, and which it has is in the message."""
    known = " ".join(action.option_strings[-1] for action in parser._actions if action.option_strings and action.dest != "help")
    raise ASTFError(f"tunables: {message}" + (f"; there are {known}" if known else "; it has none"))


def _run(path: str) -> ModuleType:
    name = "overfly_profile_" + re.sub(r"\W", "_", os.path.basename(path))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ASTFError("is no Python file: its name must end in .py", Place(path, 1))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


def _profile(module: ModuleType, words: List[str]) -> ASTFProfile:
    profile = _call(module.register().get_profile, "get_profile", words)
    if not isinstance(profile, ASTFProfile):
        raise ASTFError(f"get_profile() must return an ASTFProfile, not {profile!r:.60}", _definition(module))
    return profile


def _topology(module: ModuleType, words: List[str]) -> TunnelsTopo:
    topology = _call(module.get_topo, "get_topo", words, strict=False)
    if not isinstance(topology, TunnelsTopo):
        raise ASTFError(f"get_topo() must return a TunnelsTopo, not {topology!r:.60}", _definition(module, "get_topo"))
    topology.tunnels()
    return topology


def _call(function: Callable[..., Any], name: str, words: List[str], strict: bool = True) -> Any:
    """Calls with the tunables in the way that the function takes them: as words to parse, or by name."""
    parameters = inspect.signature(function).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    named = _typed(words)
    given: Dict[str, Any] = {}
    if "tunables" in parameters:
        given["tunables"] = words
    elif takes_any:
        given.update(named, tunables=words)
    else:
        unknown = [each for each in named if each not in parameters]
        if unknown and strict:
            has = ", ".join(parameters) or "none"
            raise ASTFError(f"{name}() has no tunable {unknown[0]!r}; it has {has}", Place(*_code(function)))
        given.update({each: value for each, value in named.items() if each in parameters})
    return function(**given)


def _code(function: Callable[..., Any]) -> "tuple[str, int]":
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__func__", None), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("", 0)


def _definition(module: ModuleType, name: str = "register") -> Place:
    return Place(*_code(getattr(module, name)))


def message_of(error: BaseException, files: Sequence[str]) -> str:
    """One line: where in which of the profiles, and what is wrong there."""
    place: Optional[Place] = None
    path = os.path.abspath(files[0])
    if isinstance(error, ASTFError):
        place, text = error.place, error.msg
    elif isinstance(error, SyntaxError):
        place, text = Place(error.filename or path, error.lineno or 1), f"is no Python: {error.msg}"
    elif isinstance(error, OSError) and error.filename is not None and os.path.abspath(str(error.filename)) == path:
        return f"{files[0]} cannot be read: {error.strerror}"
    elif isinstance(error, SystemExit):
        text = f"the profile ends itself with exit status {error.code or 0}"
    elif isinstance(error, MemoryError):
        text = "the profile needs more memory than it may have: --memory MiB allows more"
    else:
        text = f"{type(error).__name__}: {error}"
    place = place or _innermost(path, error)
    # A profile is called what it was called on the command line; other files are said relative to here.
    shown = {os.path.abspath(file): file for file in files}.get(os.path.abspath(place.file), os.path.relpath(place.file))
    return f"{shown}:{place.line}: " + " ".join(str(text).split())


def _innermost(path: str, error: BaseException) -> Place:
    """The last line of the profile's own that was being run; the profile's beginning if none was."""
    place = Place(path, 1)
    for frame in traceback.extract_tb(error.__traceback__):
        if is_profiles_own(frame.filename):
            place = Place(frame.filename, frame.lineno or 1)
    return place
