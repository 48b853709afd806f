"""Processes that share connections, listeners and sets, by fork, exec and otherwise: the same over the kernel and over
Overfly.

usage: forks.py OWN-ADDRESS PEER-ADDRESS [TEST...]
"""
import ctypes
import os
import select
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time

import ends
from ends import child, reap, test

if sys.argv[1] == "image":
    # What `another_image_goes_on` execs: the connection and the listener that it was left.
    connection, server = (socket.socket(fileno=int(number)) for number in sys.argv[2:4])
    connection.sendall(b"image")
    second, _ = server.accept()
    second.sendall(second.recv(9).upper())
    second.close()
    assert connection.recv(9) == b"seen"
    sys.exit(0)

OWN, PEER = sys.argv[1:3]
next_port = [7500]
socket.socket = ends.Connection


def order(verb, port, program):
    return ends.order(PEER, verb, port, program)


def listener():
    next_port[0] += 1
    return ends.look(ends.bound(OWN, next_port[0]))


def accepted(program, server=None):
    own = server or listener()
    control = order("connect", own.getsockname()[1], program)
    connection, _ = own.accept()
    if not server:
        own.close()
    connection.control = control
    return connection


def connected(program):
    next_port[0] += 1
    control = order("listen", next_port[0], program)
    connection = socket.create_connection((PEER, next_port[0]))
    connection.control = control
    return connection


def finished(connection):
    """The peer has done what it was told."""
    assert connection.control.recv(1) == b""
    connection.control.close()


ECHO = "s.sendall(b'question'); assert take(6) == b'answer'; assert s.recv(1) == b''"


def answer(connection):
    assert connection.recv(100) == b"question"
    connection.sendall(b"answer")
    connection.close()


@test
def a_child_serves_and_the_parent_closes():
    for make in accepted, connected:
        for late in False, True:
            connection = make(ECHO)
            if late:
                time.sleep(0.1)
            pid = child(lambda: (time.sleep(0.2 * late), answer(connection)))
            connection.close()
            reap(pid)
            finished(connection)


@test
def a_child_serves_while_the_parent_sleeps():
    for make in accepted, connected:
        connection = make(ECHO)
        pid = child(lambda: answer(connection))
        # Nothing that the library sees.
        time.sleep(0.3)
        reap(pid)
        connection.close()
        finished(connection)


@test
def both_use_it():
    for make in accepted, connected:
        connection = make("assert take(30) == b'0123456789' * 3; s.sendall(b'x' * 3); assert s.recv(1) == b''")
        connection.send(b"0123456789")
        done = os.pipe()
        pid = child(lambda: (connection.send(b"0123456789"), os.write(done[1], b"x"), connection.recv(1)))
        assert os.read(done[0], 1) == b"x"
        connection.send(b"0123456789")
        reap(pid)
        assert connection.recv(1) == b"x"
        assert connection.recv(1) == b"x"
        connection.close()
        finished(connection)


@test
def a_child_that_never_uses_them_costs_nothing():
    connections = [accepted(ECHO) for _ in range(10)]
    pid = child(lambda: time.sleep(0.3))
    for connection in connections[:5]:
        assert connection.recv(100) == b"question"
        connection.sendall(b"answer")
    reap(pid)
    for connection in connections[5:]:
        assert connection.recv(100) == b"question"
        connection.sendall(b"answer")
    time.sleep(0.1)
    for connection in connections:
        connection.close()
        finished(connection)


@test
def a_daemon_goes_on():
    server = listener()
    connection = accepted(ECHO, server)

    def daemon():
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.umask(0)
            for number in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            time.sleep(0.2)
            answer(connection)
            second, _ = server.accept()
            answer(second)
            os._exit(0)
        connection.close()

    reap(child(daemon))
    connection.close()
    finished(connection)
    control = order("connect", server.getsockname()[1], ECHO)
    server.close()
    assert control.recv(1) == b""


@test
def a_grandchild_asks():
    connection = accepted(ECHO)

    def parent_of_another():
        reap(child(lambda: answer(connection)))

    reap(child(parent_of_another))
    connection.close()
    finished(connection)


@test
def standard_streams_of_other_programs():
    for make in accepted, connected:
        for extra in {}, {"preexec_fn": lambda: None}, {"close_fds": False}:
            connection = make("s.sendall(b'through cat'); s.shutdown(1); assert take(11) == b'through cat'; assert s.recv(1) == b''")
            subprocess.run(["cat"], stdin=connection, stdout=connection, check=True, **extra)
            connection.close()
            finished(connection)


@test
def as_inetd_does():
    server = listener()
    order("connect", server.getsockname()[1], "s.sendall(b'as inetd'); s.shutdown(1); assert take(8) == b'AS INETD'")
    connection, _ = server.accept()

    def become_tr():
        for number in range(2):
            os.dup2(connection.fileno(), number)
        os.closerange(3, 500)
        os.execvp("tr", ["tr", "a-z", "A-Z"])

    pid = child(become_tr)
    connection.close()
    reap(pid)
    server.close()


@test
def another_image_goes_on():
    server = listener()
    connection = accepted("assert take(5) == b'image'; s.sendall(b'seen'); s.recv(1)", server)

    def become():
        for inherited in connection, server:
            inherited.set_inheritable(True)
        numbers = [str(inherited.fileno()) for inherited in (connection, server)]
        os.execv(sys.executable, [sys.executable, __file__, "image", *numbers])

    pid = child(become)
    port = server.getsockname()[1]
    # Each process that has accepted from a listener gets its share of new connections.
    server.close()
    control = order("connect", port, "s.sendall(b'second'); assert take(6) == b'SECOND'")
    reap(pid)
    connection.close()
    finished(connection)
    assert control.recv(1) == b""


@test
def spawned_programs():
    connection = accepted("s.sendall(b'spawn'); s.shutdown(1); assert take(5) == b'spawn'; assert s.recv(1) == b''")
    actions = [(os.POSIX_SPAWN_DUP2, connection.fileno(), number) for number in range(2)]
    pid = os.posix_spawnp("cat", ["cat"], os.environ, file_actions=actions)
    connection.close()
    reap(pid)
    finished(connection)


@test
def descriptors_are_passed():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def receiver():
        numbers = socket.recv_fds(there, 10, 4)[1]
        connection, server = (socket.socket(fileno=number) for number in numbers)
        answer(connection)
        second, _ = server.accept()
        answer(second)

    pid = child(receiver)
    server = listener()
    connection = accepted(ECHO, server)
    socket.send_fds(here, [b"x"], [connection.fileno(), server.fileno()])
    connection.close()
    server_port = server.getsockname()[1]
    server.close()
    finished(connection)
    control = order("connect", server_port, ECHO)
    assert control.recv(1) == b""
    reap(pid)


@test
def stdio_on_a_connection():
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    for make in accepted, connected:
        connection = make("s.sendall(b'a line\\nand more\\n'); assert take(12) == b'an answer 42'; s.recv(1)")
        reader = ctypes.c_void_p(libc.fdopen(connection.fileno(), b"r"))
        writer = ctypes.c_void_p(libc.fdopen(os.dup(connection.fileno()), b"w"))
        line = ctypes.create_string_buffer(100)
        assert libc.fgets(line, 100, reader) and line.value == b"a line\n"
        libc.fprintf(writer, b"an answer %d", 42)
        libc.fflush(writer)
        assert libc.fgets(line, 100, reader) and line.value == b"and more\n"
        libc.fclose(writer)
        libc.fclose(reader)
        connection.detach()
        finished(connection)


@test
def an_event_loop_moves_to_the_child():
    connection = accepted(ECHO)
    epoll = select.epoll()
    epoll.register(connection, select.EPOLLIN)

    def loop():
        assert epoll.poll(5) == [(connection.fileno(), select.EPOLLIN)]
        answer(connection)

    pid = child(loop)
    reap(pid)
    connection.close()
    finished(connection)


@test
def a_child_waits_in_its_parents_set():
    """What ends only the child's wait must not keep a frame from the parent, which waits in another set."""
    connection = accepted("time.sleep(0.5); s.sendall(b'%f' % time.time()); assert s.recv(1) == b''")
    server, inherited = listener(), select.epoll()
    inherited.register(server, select.EPOLLIN)
    inherited.poll(0)
    pid = child(lambda: inherited.poll(2))
    epoll = select.epoll()
    epoll.register(connection, select.EPOLLIN)
    assert epoll.poll(5) == [(connection.fileno(), select.EPOLLIN)]
    late = time.time() - float(connection.recv(100))
    assert late < 0.18, late
    connection.close()
    finished(connection)
    reap(pid)
    server.close()


@test
def an_ordinary_user_in_a_cage():
    server = listener()
    folder = tempfile.mkdtemp()

    def caged():
        os.chroot(folder)
        os.chdir("/")
        os.setgid(65534)
        os.setuid(65534)
        connection, _ = server.accept()
        grandchild = child(lambda: answer(connection))
        connection.close()
        reap(grandchild)

    pid = child(caged)
    port = server.getsockname()[1]
    server.close()
    time.sleep(0.2)
    control = order("connect", port, ECHO)
    assert control.recv(1) == b""
    reap(pid)
    os.rmdir(folder)


@test
def a_parent_with_children_changes_its_user():
    """setuid() waits for every thread of a process, the library's among them."""

    def become_another():
        connection = accepted(ECHO)
        pid = child(lambda: time.sleep(0.5))
        os.setgid(65534)
        os.setuid(65534)
        answer(connection)
        reap(pid)

    reap(child(become_another))


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


class Server(socketserver.ForkingMixIn, socketserver.TCPServer):
    allow_reuse_address = True


@test
def a_child_that_comes_later_waits_too():
    """Children share the listener's open file: what one of them needs of it must not make another's accept() return."""
    next_port[0] += 1
    server = ends.bound(OWN, next_port[0])

    def serve():
        while True:
            connection, _ = server.accept()
            last = connection.recv(100) == b"last"
            connection.close()
            if last:
                return

    children = []
    for _ in range(3):
        children.append(child(serve))
        time.sleep(0.2)
    server.close()
    controls = [order("connect", next_port[0], f"s.sendall(b'{word}'); assert s.recv(1) == b''")
                for word in ["more"] * 9]
    for control in controls:
        assert control.recv(1) == b""
    for _ in children:
        control = order("connect", next_port[0], "s.sendall(b'last'); assert s.recv(1) == b''")
        assert control.recv(1) == b""
        time.sleep(0.1)
    for pid in children:
        reap(pid)


@test
def a_child_closes_a_listener_that_its_parent_watches():
    next_port[0] += 1
    server = ends.look(ends.bound("", next_port[0]))
    server.setblocking(False)
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN)
    assert epoll.poll(0) == []
    reap(child(server.close))
    # Through the kernel: who connects is not accelerated.
    program = f"import socket; socket.create_connection(('127.0.0.1', {next_port[0]})).recv(1)"
    peer = subprocess.Popen([sys.executable, "-c", program], env={"PATH": os.environ["PATH"]})
    assert epoll.poll(5) == [(server.fileno(), select.EPOLLIN)]
    connection, _ = server.accept()
    connection.close()
    assert peer.wait() == 0
    server.close()


SERVES = '''
import os, select, socket, sys
server = socket.socket(fileno=int(sys.argv[1]))
if "listens" in sys.argv:
    server.listen(20)
if "another user" in sys.argv and os.getuid() == 0:
    os.setuid(65534)
epoll = select.epoll()
epoll.register(server, select.EPOLLIN)
for _ in range(int(sys.argv[2])):
    assert epoll.poll(10)
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
'''


def image_that_serves(server, times, *more):
    server.set_inheritable(True)
    arguments = [sys.executable, "-c", SERVES, str(server.fileno()), str(times), *more]
    return subprocess.Popen(arguments, close_fds=False)


@test
def a_socket_that_another_image_listens_at():
    """As uvicorn's workers do: their master binds, and each of them listens."""
    next_port[0] += 1
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((OWN, next_port[0]))
    image = image_that_serves(server, 20, "listens")
    for _ in range(20):
        while True:
            control = order("connect", next_port[0], "s.sendall(b'hello'); tell(take(5))")
            if control.recv(5) == b"HELLO":
                break
            time.sleep(0.05)
    assert image.wait() == 0
    server.close()


def greets_and_ends(server):
    """By exec, and by fork: a process that has the listener, connects to it and never looks at it."""
    program = f"import socket; s = socket.create_connection(({OWN!r}, {next_port[0]})); s.sendall(b'hello')"
    server.set_inheritable(True)
    image = subprocess.Popen([sys.executable, "-c", program], close_fds=False)
    yield lambda: image.wait() == 0
    pid = child(lambda: exec(program))
    yield lambda: reap(pid) is None


@test
def who_was_started_with_a_listener_connects_to_the_process_that_accepts():
    """It is another process that accepts: after the end of the one that connects, or now and then."""
    for waits in True, False:
        next_port[0] += 1
        server = ends.bound(OWN, next_port[0])
        for ends_well in greets_and_ends(server):
            if waits:
                assert ends_well()
                server.settimeout(10)
                connection, _ = server.accept()
            else:
                server.setblocking(False)
                for _ in range(200):
                    try:
                        connection, _ = server.accept()
                        break
                    except BlockingIOError:
                        time.sleep(0.05)
                assert ends_well()
            connection.setblocking(True)
            assert connection.recv(9, socket.MSG_WAITALL) == b"hello"
            connection.close()
        server.close()


def connects_before_the_server_starts(inherited):
    server = ends.bound(OWN, next_port[0])
    server.set_inheritable(True)
    clients = [socket.create_connection((OWN, next_port[0])) for _ in range(4)]
    for client in clients[:2]:
        client.sendall(b"hello")
    for client in clients:
        client.set_inheritable(inherited)
    program = [sys.executable, "-c", SERVES, str(server.fileno()), "8"]
    image = child(lambda: os.execv(sys.executable, program))
    clients += [socket.create_connection((OWN, next_port[0])) for _ in range(4)]
    for client in clients[2:]:
        client.sendall(b"hello")
    for client in clients:
        client.settimeout(10)
        assert client.recv(5, socket.MSG_WAITALL) == b"HELLO"
        client.close()
    reap(image)


@test
def who_has_connected_to_its_own_listener_leaves_it_to_another_image():
    """As a test driver does: its clients wait before the program under test starts, which has the listener from it, and their connections,
    too, or not."""
    for inherited in False, True:
        next_port[0] += 1
        reap(child(lambda: connects_before_the_server_starts(inherited)))


def connects_while_the_server_starts(pause_us):
    server = ends.bound(OWN, next_port[0])
    greeted = []

    def greets():
        with socket.create_connection((OWN, next_port[0])) as client:
            client.settimeout(10)
            client.sendall(b"hello")
            greeted.append(client.recv(5, socket.MSG_WAITALL))

    def serves():
        for _ in range(3):
            connection, _ = server.accept()
            connection.sendall(connection.recv(5, socket.MSG_WAITALL).upper())
            connection.close()

    clients = [threading.Thread(target=greets) for _ in range(3)]
    for client in clients:
        client.start()
    time.sleep(pause_us / 1e6)
    pid = child(serves)
    for client in clients:
        client.join()
    if greeted != 3 * [b"HELLO"]:
        os.kill(pid, signal.SIGKILL)
    assert greeted == 3 * [b"HELLO"], greeted
    reap(pid)


@test
def who_connects_to_its_own_listener_as_it_forks_is_not_reset():
    """The listener is left to the child, and the handshake has begun."""
    for pause_us in range(0, 600, 20):
        next_port[0] += 1
        reap(child(lambda: connects_while_the_server_starts(pause_us)))


@test
def a_socket_that_another_image_connects():
    """Whoever else has it has the connection."""
    next_port[0] += 1
    order("listen", next_port[0], "assert take(5) == b'image'; s.sendall(b'parent')")
    connection = socket.socket()
    connection.set_inheritable(True)
    program = f"import socket; s = socket.socket(fileno={connection.fileno()}); s.connect(({PEER!r}, {next_port[0]})); s.sendall(b'image')"
    assert subprocess.run([sys.executable, "-c", program], close_fds=False).returncode == 0
    assert connection.recv(10) == b"parent"
    connection.close()


@test
def who_watched_a_listener_leaves_it_to_another_image():
    """As Dovecot's master does: it watches, and has a child accept. At a loopback address nobody brings what waits already."""
    waits_already = OWN != "127.0.0.1"
    server = listener()
    server.setblocking(False)
    epoll = select.epoll()
    for _ in range(2):
        epoll.register(server, select.EPOLLIN)
        controls = []
        if waits_already:
            controls = [order("connect", next_port[0], f"s.sendall(b'hello {index}'); tell(take(7))") for index in range(3)]
            assert epoll.poll(5) == [(server.fileno(), select.EPOLLIN)]
            time.sleep(0.1)
        image = image_that_serves(server, 6)
        epoll.unregister(server)
        controls += [order("connect", next_port[0], f"s.sendall(b'hello {index}'); tell(take(7))") for index in range(len(controls), 6)]
        answers = [control.recv(7) for control in controls]
        assert answers == [b"HELLO %d" % index for index in range(6)], answers
        assert image.wait() == 0
    # And then serves itself.
    epoll.register(server, select.EPOLLIN)
    control = order("connect", next_port[0], "s.sendall(b'hello'); tell(take(5))")
    assert epoll.poll(5) == [(server.fileno(), select.EPOLLIN)]
    connection, _ = server.accept()
    connection.sendall(connection.recv(5))
    assert control.recv(5) == b"hello"
    connection.close()
    server.close()


@test
def a_master_leaves_its_listener_to_images_of_another_user():
    """Dovecot's master has helpers, watches, and never accepts. Who does is of a user that has no stack beside root's."""
    next_port[0] += 1
    server = ends.bound(OWN, next_port[0])
    server.setblocking(False)
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN)
    reap(child(lambda: None))
    controls = [order("connect", next_port[0], f"s.sendall(b'hello {index}'); tell(take(7))") for index in range(10)]
    for _ in controls:
        assert epoll.poll(5) == [(server.fileno(), select.EPOLLIN)]
        epoll.unregister(server)
        assert image_that_serves(server, 1, "another user").wait() == 0
        epoll.register(server, select.EPOLLIN)
    for index, control in enumerate(controls):
        control.settimeout(10)
        assert control.recv(7) == b"HELLO %d" % index
    # And then serves itself.
    control = order("connect", next_port[0], "s.sendall(b'hello'); tell(take(5))")
    assert epoll.poll(5) == [(server.fileno(), select.EPOLLIN)]
    connection, _ = server.accept()
    connection.sendall(connection.recv(5))
    assert control.recv(5) == b"hello"
    connection.close()
    server.close()


@test
def a_child_reads_what_its_parent_has_only_looked_at():
    """As socat's UDP-LISTEN with fork: a socket for each peer, which the parent closes, and opens the port anew."""
    next_port[0] += 1
    port = next_port[0]

    def bound():
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end.bind((OWN, port))
        return end

    def serve(end):
        time.sleep(0.2)
        end.settimeout(5)
        for _ in range(2):
            end.send(end.recv(100).upper())

    end = bound()
    for _ in range(3):
        connection = accepted(
            f"u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect((s.getpeername()[0], {port})); u.settimeout(5)\n"
            "for word in b'first', b'second': u.send(word); assert u.recv(100) == word.upper(), word"
        )
        assert select.select([end], [], [], 5)[0]
        assert end.recvfrom(100, socket.MSG_PEEK)[0] == b"first"
        end.connect(end.recvfrom(100, socket.MSG_PEEK)[1])
        pid = child(lambda end=end: serve(end))
        end.close()
        end = bound()
        assert not select.select([end], [], [], 0)[0]
        reap(pid)
        finished(connection)
        connection.close()
    end.close()


@test
def a_server_that_forks():
    next_port[0] += 1
    with Server((OWN, next_port[0]), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        controls = []
        for index in range(20):
            program = f"s.sendall(b'hello {index}\\n' * 100); s.shutdown(1); assert take(100000) == b'HELLO {index}\\n' * 100"
            controls.append(order("connect", next_port[0], program))
        for control in controls:
            assert control.recv(1) == b""
        server.shutdown()


ends.run(sys.argv[3:])
