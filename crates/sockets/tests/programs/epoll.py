"""What epoll, poll and select say of sockets, of each other and of what else has a descriptor: a transcript, which must be
the same over the kernel and over Overfly.

usage: epoll.py OWN-ADDRESS PEER-ADDRESS
"""
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

import ends

OWN, PEER = sys.argv[1:3]
LIBC = ctypes.CDLL(None, use_errno=True)
next_port = [7300]
socket.socket = ends.Connection
names = {}
EVENTS = {
    "IN": 1, "PRI": 2, "OUT": 4, "ERR": 8, "HUP": 16, "RDNORM": 64, "WRNORM": 256, "RDHUP": 0x2000,
    "EXCLUSIVE": 1 << 28, "ONESHOT": 1 << 30, "ET": 1 << 31,
}
IN, OUT, HUP, RDHUP = (EVENTS[name] for name in ("IN", "OUT", "HUP", "RDHUP"))
ET, ONESHOT, EXCLUSIVE = (EVENTS[name] for name in ("ET", "ONESHOT", "EXCLUSIVE"))


def words(events):
    return "|".join(name for name, bit in EVENTS.items() if events & bit) or "nothing"


def say(what, *values):
    print(f"{what}: {', '.join(str(value) for value in values)}", flush=True)


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]


def order(verb, port, program):
    return ends.order(PEER, verb, port, program)


def listener():
    next_port[0] += 1
    return ends.look(ends.bound(OWN, next_port[0]))


def connection(program, name="c"):
    server = listener()
    control = order("connect", server.getsockname()[1], program)
    accepted, _ = server.accept()
    server.close()
    accepted.control = control
    names[accepted.fileno()] = name
    return accepted


def turn(c):
    """The peer does its next step: it waits for a byte on its control connection's sibling."""
    c.send(b"!")


def show(epoll, timeout=1.0, most=16):
    """What a set says, by names and in order of the names."""
    found = epoll.poll(timeout, most)
    return " ".join(sorted(f"{names.get(number, '?')}={words(events)}" for number, events in found)) or "nothing"


def settle():
    """What is on its way has come."""
    time.sleep(0.15)


def levels_and_edges():
    program = "take(1); s.send(b'abc'); take(1); s.send(b'def'); take(1); s.shutdown(1); take(1)"
    for mode, extra in ("level", 0), ("edge", ET), ("once", ONESHOT), ("exclusive", EXCLUSIVE):
        c = connection(program)
        epoll = select.epoll()
        names[epoll.fileno()] = "set"
        say(mode, "add", outcome(epoll.register, c, IN | extra), "again", outcome(epoll.register, c, IN))
        say(mode, "idle", show(epoll, 0.05))
        turn(c)
        say(mode, "data", show(epoll), show(epoll, 0.05))
        say(mode, "read one", c.recv(1), show(epoll, 0.05))
        turn(c)
        settle()
        say(mode, "more data", show(epoll, 0.2), show(epoll, 0.05))
        say(mode, "modify", outcome(epoll.modify, c, IN | OUT | extra & ~EXCLUSIVE), show(epoll, 0.2))
        say(mode, "read all", c.recv(9), show(epoll, 0.2))
        outcome(epoll.modify, c, IN | (0 if mode == "exclusive" else RDHUP) | extra & ~EXCLUSIVE)
        turn(c)
        settle()
        say(mode, "end", show(epoll, 0.2), c.recv(9))
        say(mode, "delete", outcome(epoll.unregister, c), outcome(epoll.unregister, c), outcome(epoll.modify, c, IN))
        turn(c)
        c.close()
        epoll.close()


def misuse():
    c = connection("take(1)")
    epoll = select.epoll()
    say("exclusive with one-shot", outcome(epoll.register, c, IN | EXCLUSIVE | ONESHOT))
    say("exclusive with RDHUP", outcome(epoll.register, c, IN | EXCLUSIVE | RDHUP))
    say("modify to exclusive", outcome(epoll.register, c, IN), outcome(epoll.modify, c, IN | EXCLUSIVE))
    say("modify", outcome(epoll.modify, c, OUT))
    say("itself", outcome(epoll.register, epoll, IN))
    say("no set", LIBC.epoll_ctl(c.fileno(), 1, epoll.fileno(), struct.pack("=Iq", 1, 0)), errno.errorcode[ctypes.get_errno()])
    say("no room", LIBC.epoll_wait(epoll.fileno(), ctypes.create_string_buffer(12), 0, 0), errno.errorcode[ctypes.get_errno()])
    say("no event", LIBC.epoll_ctl(epoll.fileno(), 1, c.fileno(), None), errno.errorcode[ctypes.get_errno()])
    turn(c)
    c.close()


def closed_descriptors_leave():
    c = connection("take(1); s.send(b'abc'); take(1)")
    epoll = select.epoll()
    epoll.register(c, IN)
    second = os.dup(c.fileno())
    names[second] = "second"
    say("other number", outcome(epoll.unregister, second))
    say("added twice", outcome(epoll.register, second, IN))
    turn(c)
    settle()
    say("both", show(epoll))
    c_number = c.fileno()
    c.close()
    # The open file lives on, and with it both registrations (epoll(7), question 6).
    say("one closed", show(epoll, 0.2))
    os.write(second, b"!")
    os.close(second)
    settle()
    say("all closed", show(epoll, 0.05), c_number in names)


def nested_sets():
    c = connection("take(1); s.send(b'abc'); take(1); s.send(b'def'); take(1)")
    inner, outer, outermost = select.epoll(), select.epoll(), select.epoll()
    names.update({inner.fileno(): "inner", outer.fileno(): "outer"})
    inner.register(c, IN)
    outer.register(inner, IN)
    outermost.register(outer, IN)
    say("a circle", outcome(inner.register, outermost, IN))
    say("idle", show(outermost, 0.05), show(outer, 0.05), show(inner, 0.05))
    poll = select.poll()
    poll.register(outermost, IN)
    turn(c)
    say("data", show(outermost), show(outer), show(inner))
    say("poll", [words(events) for _, events in poll.poll(200)])
    say("select", len(select.select([outer, inner], [], [], 0.2)[0]))
    say("read", c.recv(3), show(outermost, 0.05), show(outer, 0.05), show(inner, 0.05))
    say("poll", poll.poll(0), "select", len(select.select([outer, inner], [], [], 0)[0]))
    # Added while it is ready.
    turn(c)
    settle()
    late = select.epoll()
    late.register(inner, IN | ET)
    say("late", show(late), show(late, 0.05))
    say("read", c.recv(3))
    waited = []
    waiter = threading.Thread(target=lambda: waited.append(show(outermost, 3)))
    pipe = os.pipe()
    names[pipe[0]] = "pipe"
    inner.register(pipe[0], IN)
    waiter.start()
    time.sleep(0.1)
    os.write(pipe[1], b"x")
    waiter.join()
    say("pipe inside", waited, show(outer, 0.2), show(inner, 0.2))
    os.read(pipe[0], 1)
    turn(c)
    c.close()
    inner.close()
    say("inner closed", show(outer, 0.05))


def a_waiter_on_the_outer_set():
    c = connection("take(1); time.sleep(0.2); s.send(b'abc'); take(1)")
    inner, outer = select.epoll(), select.epoll()
    names[inner.fileno()] = "inner"
    outer.register(inner, IN)
    inner.register(c, IN)
    turn(c)
    say("outer waits", show(outer, 3))
    turn(c)
    c.close()


def frames_without_news():
    # Acknowledgements arrive, and nothing is ready for them.
    c = connection("take(5); s.send(b'abc'); take(1)")
    inner, outer = select.epoll(), select.epoll()
    names[inner.fileno()] = "inner"
    inner.register(c, IN)
    say("first", show(inner, 0.05))
    outer.register(inner, IN)
    poll = select.poll()
    poll.register(inner, IN)
    c.send(b"1")
    say("outer", show(outer, 0.2))
    c.send(b"2")
    say("poll", poll.poll(200))
    c.send(b"3")
    say("select", len(select.select([inner], [], [], 0.2)[0]))
    told = []
    waiter = threading.Thread(target=lambda: told.append(show(inner, 3)))
    waiter.start()
    time.sleep(0.05)
    c.send(b"4")
    say("beside one who waits", show(outer, 0.2), told)
    c.send(b"5")
    waiter.join()
    say("news", told, show(outer, 0.2))
    turn(c)
    c.close()


def edges_of_sets():
    c = connection("take(1); s.send(b'abc'); take(1); s.send(b'def'); take(1); s.send(b'ghi'); take(1)")
    inner, outer = select.epoll(), select.epoll()
    names[inner.fileno()] = "inner"
    inner.register(c, IN)
    outer.register(inner, IN | ET)
    say("idle", show(outer, 0.05))
    for what in "first", "more", "still more":
        turn(c)
        say(what, show(outer), show(outer, 0.05))
    say("read", c.recv(9), show(inner, 0.05), show(outer, 0.05))
    turn(c)
    c.close()


def many_kinds():
    c = connection("take(1); s.send(b'abc'); take(1)")
    epoll = select.epoll()
    pipe, pair = os.pipe(), socket.socketpair(socket.AF_UNIX)
    event = os.eventfd(0) if hasattr(os, "eventfd") else LIBC.eventfd(0, 0)
    timer = LIBC.timerfd_create(time.CLOCK_MONOTONIC, 0)
    mask = ctypes.create_string_buffer(128)
    LIBC.sigemptyset(mask)
    LIBC.sigaddset(mask, signal.SIGUSR1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signals = LIBC.signalfd(-1, mask, 0)
    kinds = {"pipe": pipe[0], "pair": pair[0].fileno(), "event": event, "timer": timer, "signal": signals}
    names.update({number: name for name, number in kinds.items()})
    for number in (*kinds.values(), c.fileno()):
        epoll.register(number, IN)
    say("idle", show(epoll, 0.05))
    os.write(pipe[1], b"x")
    pair[1].send(b"x")
    os.write(event, struct.pack("Q", 1))
    LIBC.timerfd_settime(timer, 0, struct.pack("4q", 0, 0, 0, 1000), None)
    os.kill(os.getpid(), signal.SIGUSR1)
    turn(c)
    settle()
    say("all", show(epoll))
    seen = {number for _ in range(50) for number, _ in epoll.poll(0.2, 1)}
    say("one at a time", len(seen))
    ready, _, _ = select.select([*kinds.values(), c], [], [], 0.2)
    say("select", len(ready))
    poll = select.poll()
    for number in (*kinds.values(), c):
        poll.register(number, IN)
    say("poll", len(poll.poll(200)))
    os.read(signals, 128)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    for number in (pipe[0], pipe[1], event, timer, signals):
        os.close(number)
    say("some closed", show(epoll, 0.2))
    turn(c)
    c.close()


def several_threads():
    for mode, extra in ("level", 0), ("edge", ET), ("once", ONESHOT):
        c = connection("take(1); s.send(b'abc'); take(1)")
        epoll = select.epoll()
        epoll.register(c, IN | extra)
        found = []
        threads = [threading.Thread(target=lambda: found.append(show(epoll, 0.5))) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        turn(c)
        for thread in threads:
            thread.join()
        told = sum(each != "nothing" for each in found)
        say(mode, "woken", "some" if mode == "level" and told else told)
        turn(c)
        c.close()
    # One changes the set while another waits.
    c = connection("take(1); s.send(b'abc'); take(1)")
    epoll = select.epoll()
    found = []
    waiter = threading.Thread(target=lambda: found.append(show(epoll, 3)))
    waiter.start()
    turn(c)
    time.sleep(0.2)
    epoll.register(c, IN)
    waiter.join()
    say("added while waiting", found)
    turn(c)
    c.close()


def masks_and_signals():
    c = connection("take(1); s.send(b'abc'); take(1)")
    epoll = select.epoll()
    epoll.register(c, IN)
    counted = []
    signal.signal(signal.SIGUSR2, lambda *_: counted.append(1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
    events = ctypes.create_string_buffer(12 * 4)
    nobody = ctypes.create_string_buffer(128)
    LIBC.sigemptyset(nobody)
    result = LIBC.epoll_pwait(epoll.fileno(), events, 4, 1000, nobody)
    say("pending and let in", result, errno.errorcode[ctypes.get_errno()], len(counted))
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
    result = LIBC.epoll_pwait(epoll.fileno(), events, 4, 50, None)
    say("pending and held", result, len(counted))
    result = LIBC.ppoll(struct.pack("ihh", c.fileno(), IN, 0), 1, struct.pack("qq", 1, 0), nobody)
    say("ppoll", result, errno.errorcode[ctypes.get_errno()], len(counted))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    turn(c)
    result = LIBC.epoll_pwait(epoll.fileno(), events, 4, 1000, None)
    say("data", result)
    turn(c)
    c.close()


def states():
    epoll = select.epoll()
    fresh = socket.socket()
    names[fresh.fileno()] = "fresh"
    epoll.register(fresh, IN | OUT | RDHUP)
    say("fresh", show(epoll, 0.05))
    server = listener()
    names[server.fileno()] = "server"
    epoll.register(server, IN | OUT)
    epoll.unregister(fresh)
    say("listener", show(epoll, 0.05))
    control = order("connect", server.getsockname()[1], "take(1); time.sleep(1)")
    say("connection waits", show(epoll))
    c, _ = server.accept()
    names[c.fileno()] = "c"
    say("accepted", show(epoll, 0.05))
    epoll.register(c, IN | OUT | RDHUP)
    say("fresh connection", show(epoll))
    c.shutdown(socket.SHUT_WR)
    say("write end shut", show(epoll))
    c.close()
    say("gone", show(epoll, 0.05))
    c = connection("take(1); reset()")
    epoll.register(c, IN | OUT | RDHUP)
    turn(c)
    settle()
    say("reset", show(epoll), outcome(c.recv, 1), c.recv(1), show(epoll))
    c.close()
    control.close()


for function in (levels_and_edges, misuse, closed_descriptors_leave, nested_sets, a_waiter_on_the_outer_set,
                 frames_without_news, edges_of_sets, many_kinds, several_threads, masks_and_signals, states):
    print(f"--- {function.__name__}", flush=True)
    function()
print("done", flush=True)
