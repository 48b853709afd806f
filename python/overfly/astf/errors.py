"""What can be wrong with a profile, and at which of its lines.

Whoever reads a message wants the line to change, so an error knows the place in the profile that led to it: the innermost
frame that is not this package's when the object at fault was made.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from types import FrameType
from typing import Optional

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.abspath(sysconfig.get_paths()["stdlib"]) + os.sep


@dataclass(frozen=True)
class Place:
    """A line of a profile."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def is_profiles_own(file: str) -> bool:
    """Whether the code of this file is a profile's, or a module's of its own, rather than this package's, Python's, or installed."""
    path = os.path.abspath(file)
    if file.startswith("<") or path.startswith(_PACKAGE) or path.startswith(_LIBRARY):
        return False
    return not {"site-packages", "dist-packages"} & set(path.split(os.sep))


def here() -> Optional[Place]:
    """The line of the profile that is being run, if one is."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if is_profiles_own(frame.f_code.co_filename):
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


class ASTFError(Exception):
    """Something that a profile asks for and that cannot be."""

    def __init__(self, msg: object, place: Optional[Place] = None) -> None:
        self.msg = str(msg)
        self.place = place or here()
        super().__init__(self.msg)

    def brief(self) -> str:
        """The message without the place."""
        return self.msg


class ASTFErrorBadParamCombination(ASTFError):
    """Two arguments that exclude each other."""

    def __init__(self, func: str, name1: str, name2: str) -> None:
        super().__init__(f"{func}: give {name1} or {name2}, not both")


class ASTFErrorMissingParam(ASTFError):
    """An argument that has to be given."""

    def __init__(self, func: str, name1: str, name2: Optional[str] = None) -> None:
        super().__init__(f"{func}: give {name1}" + (f" or {name2}" if name2 else ""))


class ASTFErrorWrongType(ASTFError):
    """An argument of another type than it should be."""


class ASTFErrorBadIp(ASTFError):
    """What should be an address is none."""


class ASTFErrorBadIpRange(ASTFError):
    """What should be a range of addresses is none."""


class ASTFErrorOverlapIP(ASTFError):
    """Two ranges of client addresses of one run overlap without being the same."""


class ASTFErrorBadMac(ASTFError):
    """What should be a hardware address is none. Nothing here raises it; published code may catch it."""


class TRexError(Exception):
    """The base that published code catches; nothing here raises it."""
