"""The control client against a run that a thread plays."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import unittest
from typing import Any, Dict, List

from overfly.astf.control import Control, ControlError


class Controls(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "control")
        self.orders: List[Dict[str, Any]] = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.run_of = threading.Thread(target=self.play)
        self.run_of.start()

    def tearDown(self) -> None:
        self.run_of.join()
        self.listener.close()
        self.folder.cleanup()

    def play(self) -> None:
        """Answers orders as a run does, and ends after `end`."""
        stream, _ = self.listener.accept()
        with stream, stream.makefile("rw", encoding="utf-8") as lines:
            for line in lines:
                order = json.loads(line)
                self.orders.append(order)
                refused = order.get("multiplier") == -1
                lines.write(json.dumps({"error": "a multiplier of -1"} if refused else {"stage": "runs", "active": [1, 2]}) + "\n")
                lines.flush()
                if order.get("end"):
                    return

    def test_orders_and_answers(self) -> None:
        with Control(self.path) as control:
            self.assertEqual(control.standing()["active"], [1, 2])
            control.multiplier(2.5)
            with self.assertRaisesRegex(ControlError, "a multiplier of -1"):
                control.multiplier(-1)
            control.pause()
            control.resume()
            control.drain()
            control.counters()
            control.end()
            with self.assertRaises(ControlError):
                control.standing()
        self.assertEqual(
            self.orders,
            [{}, {"multiplier": 2.5}, {"multiplier": -1}, {"pause": True}, {"pause": False}, {"drain": True}, {"counters": True}, {"end": True}],
        )


if __name__ == "__main__":
    unittest.main()
