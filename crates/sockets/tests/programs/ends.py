"""What the test programs of this end share: orders for the peer, listeners, connections, children, a run of tests."""
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback

TESTS = []


class Connection(socket.socket):
    """A socket that can hold the connection on which the peer was told what to do with it."""

    __slots__ = ("control",)


def test(function):
    TESTS.append(function)
    return function


def order(peer, verb, port, program):
    """Tells the peer what to do."""
    control = socket.create_connection((peer, 7000))
    control.sendall(f"{verb} {port}\n{program}\n\n".encode())
    if verb == "listen":
        assert control.recv(3) == b"ok\n"
    return control


def bound(address, port, backlog=16):
    """A listener."""
    server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, port))
    server.listen(backlog)
    return server


def look(server):
    """The listener must be ours before the peer connects: a first look makes it so."""
    server.setblocking(False)
    try:
        server.accept()
    except BlockingIOError:
        pass
    server.setblocking(True)
    return server


def hand_over(connection):
    """Passing a descriptor to another process, if only to ourselves, moves its connection into the kernel."""
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(here, [b"x"], [connection.fileno()])
        os.close(socket.recv_fds(there, 1, 1)[1][0])


def timers():
    """Each stack of a process has one for when nobody looks after it."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += "timerfd" in os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass
    return count


def meet(library):
    """Threads without connections meet at the lock of this process's stack, whatever else it does, until it has divided: then a thread that
    has waited in a set has a stack of its own as soon as it makes a socket."""
    grew = []

    def makes_a_socket():
        with select.epoll() as events:
            events.poll(0)
        before = timers()
        with socket.socket():
            grew.append(timers() - before)

    # On a busy machine they seldom run at once.
    for _ in range(30):
        ctypes.CDLL(library).meet(500)
        maker = threading.Thread(target=makes_a_socket)
        maker.start()
        maker.join()
        if grew[-1] > 0:
            return
    print("it does not divide", file=sys.stderr, flush=True)


def divide(own, library):
    """Threads of this process meet at its stack's lock, so that it has a stack for each from now on (EF_STACK_PER_THREAD=3), and those that
    begin later have an event loop."""
    server = look(bound(own, 7999))
    meet(library)
    server.close()
    begin = threading.Thread._bootstrap_inner

    def waits_first(thread):
        with select.epoll() as events:
            events.poll(0)
        begin(thread)

    threading.Thread._bootstrap_inner = waits_first


def child(work):
    """A process that does the work and nothing else."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def reap(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def run(chosen):
    """Runs the tests that are chosen, or all, and ends."""
    failed = 0
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for function in TESTS:
        if chosen and function.__name__ not in chosen:
            continue
        began = time.monotonic()
        try:
            function()
            print(f"ok {function.__name__} {time.monotonic() - began:.2f} s", flush=True)
        except BaseException:
            failed += 1
            print(f"FAILED {function.__name__}", flush=True)
            traceback.print_exc()
    print(f"{failed} failed", flush=True)
    sys.exit(failed != 0)


if "MEETS" in os.environ and "MEETS_LATER" not in os.environ:
    divide(sys.argv[1], os.environ.pop("MEETS"))
