"""Asks the pre-forking server prefork.py, over connections of its own. `asks.py ADDRESS PROCESSES FOLDER idle`: all processes but one are
busy, and the one that is left answers what comes. `… busy`: all are busy, and the first that has time answers what waits. Prints how many
answers there were, from how many processes, how many others were busy, and whether those answered nothing."""

import os
import socket
import sys
import time

address, processes, folder, scene = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


def ask(request):
    connection = socket.create_connection((address, 8080), timeout=20)
    connection.sendall(request.encode() + b"\n")
    return connection.makefile("rb")


class Busy:
    """A process that has no time until it is told."""

    def __init__(self, number):
        self.fifo = os.path.join(folder, f"{os.getpid()}-{number}")
        os.mkfifo(self.fifo)
        self.told = ask(f"busy {self.fifo}")

    def end(self):
        with open(self.fifo, "w"):
            pass
        return int(self.told.readline())


if scene == "idle":
    busy = [Busy(number) for number in range(processes - 1)]
    # Whoever is elsewhere for less is as good as there.
    time.sleep(0.1)
    answers = [int(ask("who").readline()) for _ in range(20)]
else:
    busy = [Busy(number) for number in range(processes)]
    waiting = [ask("who") for _ in range(6)]
    first = busy.pop().end()
    answers = [int(told.readline()) for told in waiting] + [first]
others = {one.end() for one in busy}
print(len(answers), "answers of", len(set(answers)), "process,", len(others), "busy, who answered nothing:", others.isdisjoint(answers))
