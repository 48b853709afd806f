"""Waits with EF_POLL_USEC=20000 and nothing to wait for: whether those that spin first end (argument 2: EF_POLL_ADAPT), in one thread
that waits one way (argument 3), and whether new threads that wait in the others begin without. With EF_POLL_ADAPT=2: whether threads
do not spin on a processor that another process wants."""

import os
import select
import socket
import subprocess
import sys
import threading
import time

ADDRESS, ADAPTS, SHARES, FIRST = sys.argv[1], sys.argv[2] == "1", sys.argv[2] == "2", sys.argv[3]
TURNS = 500 if SHARES else 16
WAIT_MS = 1 if SHARES else 60

listener = socket.create_server((ADDRESS, 7000))
sets = select.epoll()
sets.register(listener, select.EPOLLIN)
polled = select.poll()
polled.register(listener, select.POLLIN)


def spent(turns, wait):
    """Processor time of this thread in so many waits, ms each."""
    before = time.thread_time()
    for _ in range(turns):
        wait()
    return (time.thread_time() - before) * 1000 / turns


def accept():
    try:
        listener.accept()
    except socket.timeout:
        pass


listener.settimeout(WAIT_MS / 1000)
ways = {
    "epoll_wait": lambda: sets.poll(WAIT_MS / 1000),
    "poll": lambda: polled.poll(WAIT_MS),
    "select": lambda: select.select([listener], [], [], WAIT_MS / 1000),
    "accept": accept,
}


def check(name, wait):
    first = spent(TURNS, wait)
    # On a busy machine a wait may be over before its spin is, which then counts for nothing.
    for _ in range(3 * TURNS if ADAPTS else 0):
        wait()
    later = spent(TURNS, wait)
    print(f"{name}: {first:.1f} ms, later {later:.1f} ms of the processor for {WAIT_MS} ms")
    # What a busy machine leaves of 20 ms.
    assert first > 2 and (later < first / 4 if ADAPTS else later > 2), name


def begins(name, wait):
    young = spent(TURNS // 2, wait)
    print(f"{name}: {young:.1f} ms of the processor for {WAIT_MS} ms in a new thread")
    assert young < 2, name


def shares(name, wait):
    wanted = spent(TURNS, wait)
    print(f"{name}: {wanted:.2f} ms of a processor that is wanted for {WAIT_MS} ms")
    # Half of it is there to be had.
    assert wanted < 0.25, name


burner = None
if SHARES:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    burner = subprocess.Popen([sys.executable, "-c", f"import os\nwhile os.getppid() == {os.getpid()}: pass"])
# A thread learns for itself, and for those that come after it.
failed = []
threading.excepthook = lambda failure: failed.append(failure.exc_value)
for name in sorted(ways, key=lambda name: name != FIRST):
    way = shares if SHARES else begins if ADAPTS and name != FIRST else check
    thread = threading.Thread(target=way, args=(name, ways[name]))
    thread.start()
    thread.join()
if burner:
    burner.kill()
    burner.wait()
assert not failed, failed
