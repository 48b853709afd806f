"""Orders to a run of `overfly load astf --control PATH`: one JSON object a line over a Unix socket (docs/astf.md)."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Dict, Optional, Type


class ControlError(Exception):
    """The run refused an order, or has ended."""


class Control:
    """A connection to a run. Each method returns how the run stands after it: elapsed_s, multiplier, paused, stage ("runs", "drains" or
    "ends"), and of client and server side: active (flows that are there) and flows (begun)."""

    def __init__(self, path: str, timeout_s: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def standing(self) -> Dict[str, Any]:
        """How the run stands."""
        return self._order({})

    def multiplier(self, multiplier: float) -> Dict[str, Any]:
        """Change the rate: the profile's times `multiplier`."""
        return self._order({"multiplier": multiplier})

    def pause(self) -> Dict[str, Any]:
        """Begin no flows until resume(); those that are there go on."""
        return self._order({"pause": True})

    def resume(self) -> Dict[str, Any]:
        """Begin flows again."""
        return self._order({"pause": False})

    def drain(self) -> Dict[str, Any]:
        """Begin no more flows, and end the run when those that are there have ended."""
        return self._order({"drain": True})

    def end(self) -> Dict[str, Any]:
        """End the run: flows that are there are reset."""
        return self._order({"end": True})

    def counters(self) -> Dict[str, Any]:
        """How the run stands, with "counters" by side and "groups" by template group and side, as the report has them."""
        return self._order({"counters": True})

    def close(self) -> None:
        """Leave the run alone: it goes on."""
        self._lines.close()
        self._socket.close()

    def _order(self, order: Dict[str, Any]) -> Dict[str, Any]:
        try:
            self._socket.sendall(json.dumps(order).encode("utf-8") + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise ControlError(f"the run does not answer: {error}") from None
        if not line:
            raise ControlError("the run has ended")
        answer: Dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ControlError(answer["error"])
        return answer

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()
