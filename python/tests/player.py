"""Plays a template's two programs over the kernel's sockets on the loopback: the JSON form, read by nobody who wrote it."""

from __future__ import annotations

import base64
import random
import socket
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

PATIENCE_S = 60.0


def payload(buffer: Dict[str, Any]) -> bytes:
    """A buffer's bytes."""
    data = base64.b64decode(buffer["base64"])
    fill = base64.b64decode(buffer.get("fill_base64", ""))
    missing = buffer["bytes"] - len(data)
    return data + (fill * (missing // len(fill) + 1))[:missing] if missing else data


class Player:
    """One side. Delays take a hundredth of their time; timers go as fast."""

    SPEED = 100.0

    def __init__(self, form: Dict[str, Any], template: int, client: bool) -> None:
        self.form = form
        entry = form["templates"][template]["client" if client else "server"]
        self.program = form["programs"][entry["program"]]
        self.variables = [0] * self.program["variables"]
        self.began = time.monotonic()
        self.timers = [0.0] * self.program["timers"]
        self.sent = bytearray()
        self.received = bytearray()
        self.counter = 0
        self.next_template: Optional[int] = None
        self.nested: List[int] = []
        self.error: Optional[BaseException] = None

    def clock(self) -> float:
        return (time.monotonic() - self.began) * self.SPEED

    def play(self, connection: socket.socket, first: bytes = b"") -> None:
        """Goes through the program to its end; `first` is a datagram that has come already."""
        self.socket = connection
        connection.settimeout(PATIENCE_S)
        if first:
            self.received += first
            self.counter += 1
        try:
            step = 0
            while step is not None and step < len(self.program["commands"]):
                step = self.step(step, self.program["commands"][step])
            if self.program["stream"]:
                connection.shutdown(socket.SHUT_WR)
                while self.take():
                    pass
        except ConnectionResetError:
            pass
        except BaseException as error:
            self.error = error

    def take(self) -> int:
        data = self.socket.recv(65536)
        self.received += data
        self.counter += len(data) if self.program["stream"] else 1
        return len(data)

    def step(self, step: int, command: Dict[str, Any]) -> Any:
        """Does a step; returns the next one's index, or None at the end."""
        op = command["op"]
        if op in ("send", "send_msg"):
            data = payload(self.form["buffers"][command["buffer"]])
            self.sent += data
            self.socket.sendall(data)
        elif op in ("recv", "recv_msg"):
            needed = command.get("bytes", command.get("messages"))
            while self.counter < needed:
                if not self.take():
                    return None
            if command["clear"]:
                self.counter -= needed
        elif op in ("delay", "delay_random"):
            us = command["us"] if op == "delay" else random.uniform(command["min_us"], command["max_us"])
            time.sleep(us / 1e6 / self.SPEED)
        elif op == "wait_for_peer_close":
            while self.take():
                pass
            return None
        elif op in ("close_msg", "reset"):
            return None
        elif op == "set_var":
            self.variables[command["var"]] = command["value"]
        elif op == "add_var":
            self.variables[command["var"]] += command["value"]
        elif op == "set_timer":
            self.timers[command["timer"]] = self.clock()
        elif op == "jump":
            return command["to"]
        elif op == "jump_nonzero":
            self.variables[command["var"]] -= 1
            return command["to"] if self.variables[command["var"]] else step + 1
        elif op == "jump_before":
            passed = self.clock() - self.timers[command["timer"]]
            return command["to"] if passed < command["ns"] / 1e9 else step + 1
        elif op == "jump_if":
            one, two = self.variables[command["var"]], command["value"]
            holds = {"lt": one < two, "gt": one > two, "eq": one == two, "ge": one >= two, "le": one <= two, "ne": one != two}
            return command["to"] if holds[command["is"]] else step + 1
        elif op == "set_next_template":
            self.next_template = command["template"]
        elif op == "exec_template":
            assert self.next_template is not None
            self.nested.append(self.next_template)
            inner, _ = play(self.form, self.next_template)
            self.next_template = inner.next_template if inner.next_template is not None else self.next_template
        else:
            assert op in ("connect", "send_mode", "keepalive", "count", "count_time"), op
        return step + 1


def play(form: Dict[str, Any], template: int) -> Tuple[Player, Player]:
    """One flow of a template, both sides, to their ends."""
    client, server = Player(form, template, True), Player(form, template, False)
    stream = form["templates"][template]["transport"] == "tcp"
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)
    with listener:
        listener.bind(("127.0.0.1", 0))
        # A client that sends no datagram has no server.
        listener.settimeout(PATIENCE_S if stream else 1.0)

        def serve() -> None:
            try:
                if stream:
                    listener.listen(1)
                    ready.set()
                    with listener.accept()[0] as accepted:
                        server.play(accepted)
                else:
                    ready.set()
                    first, peer = listener.recvfrom(65536)
                    listener.connect(peer)
                    server.play(listener, first)
            except socket.timeout:
                pass
            except BaseException as error:
                server.error = error

        ready = threading.Event()
        serving = threading.Thread(target=serve)
        serving.start()
        ready.wait(PATIENCE_S)
        with socket.socket(socket.AF_INET, listener.type) as connection:
            connection.connect(listener.getsockname())
            client.play(connection)
        serving.join(PATIENCE_S)
    return client, server
