"""What arguments may be. Each check returns the argument, or raises an error that names it."""

from __future__ import annotations

from typing import List, Optional, Tuple, Type, TypeVar, Union

from .errors import ASTFError, ASTFErrorWrongType, Place

T = TypeVar("T")
Number = Union[int, float]


def _name(kind: type) -> str:
    return {"str": "a string", "bytes": "bytes", "bool": "True or False", "int": "a whole number"}.get(kind.__name__, kind.__name__)


def of_type(where: str, value: object, kinds: Union[Type[T], Tuple[Type[T], ...]]) -> T:
    """An instance of one of `kinds`."""
    if not isinstance(value, kinds):
        wanted = " or ".join(_name(kind) for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise ASTFErrorWrongType(f"{where} must be {wanted}, not {value!r:.60}")
    return value


def optional(where: str, value: object, kinds: Union[Type[T], Tuple[Type[T], ...]]) -> Optional[T]:
    """An instance of one of `kinds`, or None."""
    return None if value is None else of_type(where, value, kinds)


def list_of(where: str, value: object, kind: Type[T]) -> List[T]:
    """One instance of `kind`, or a list of them; always a list."""
    return [of_type(where, each, kind) for each in (value if isinstance(value, (list, tuple)) else [value])]


def whole(where: str, value: object, low: int, high: int, place: Optional[Place] = None) -> int:
    """A whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ASTFErrorWrongType(f"{where} must be a whole number, not {value!r:.60}", place)
    if not low <= value <= high:
        raise ASTFError(f"{where} must be from {low} to {high}, not {value}", place)
    return value


def number(where: str, value: object, low: Number, high: Number) -> Number:
    """A number from `low` to `high`, whole or not. What is no number (NaN) lies in no range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ASTFErrorWrongType(f"{where} must be a number, not {value!r:.60}")
    if not low <= value <= high:
        raise ASTFError(f"{where} must be from {low} to {high}, not {value}")
    return value


def payload(where: str, value: object) -> bytes:
    """Bytes, or a string of ASCII characters."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    text = of_type(where, value, str)
    try:
        return text.encode("ascii")
    except UnicodeEncodeError as error:
        raise ASTFError(f"{where} must be bytes or ASCII: {text[error.start]!r} is neither; encode the string") from None


def group_name(where: str, value: object) -> Optional[str]:
    """The name of a template group: 1 to 20 characters, or None."""
    name = optional(where, value, str)
    if name is not None and not 1 <= len(name) <= 20:
        raise ASTFError(f"{where}: the name of a template group has 1 to 20 characters, {name!r:.60} has {len(name)}")
    return name
