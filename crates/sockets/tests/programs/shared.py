"""What connections from shared ports do when they leave the process or end, and what else their ports can be used for.

usage: shared.py OWN PEER PORT

A byte `x` the peer answers, and closes; `h`, and goes on; `r` it resets the connection. Each function says what came of it: the same on the
kernel and over Overfly.
"""
import ctypes
import errno
import os
import resource
import socket
import struct
import subprocess
import sys
import time

OWN, HOST, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
IP_LOCAL_PORT_RANGE = 51
libc = ctypes.CDLL(None, use_errno=True)


def tried(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"


def name(end):
    address, port = end.getsockname()
    return ("port" if port else "no port") + (" any" if address == "0.0.0.0" else "")


def connected():
    return socket.create_connection((HOST, PORT), 5)


def echoes(end, byte=b"h"):
    end.settimeout(5)
    end.sendall(byte)
    return end.recv(1) == byte


def unconnect(end):
    none = struct.pack("=H14x", socket.AF_UNSPEC)
    return libc.connect(end.fileno(), none, len(none))


def in_child(what):
    """A child of a fork does it."""
    child = os.fork()
    if child == 0:
        os._exit(0 if what() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def again(end):
    end.setblocking(True)
    said = [unconnect(end), name(end), tried(end.connect, (HOST, PORT)), echoes(end), name(end)]
    end.close()
    return said


def ended_and_connected_again():
    return again(connected())


def refused():
    with socket.socket() as end:
        return tried(end.connect, (HOST, PORT + 1)), name(end), tried(end.connect, (HOST, PORT)), name(end)


def handed_over_by_a_fork():
    end = connected()
    return in_child(lambda: echoes(end)), echoes(end), *again(end)


def handed_over_and_reset():
    end = connected()
    other = connected()
    said = in_child(lambda: echoes(end)), echoes(other)
    end.sendall(b"r" * 9)
    time.sleep(0.2)
    said += tried(end.recv, 1), name(end), tried(end.bind, (OWN, 0)), name(end), echoes(other)
    end.close()
    other.close()
    return said


def passed_on():
    ours, theirs = socket.socketpair()
    end = connected()
    socket.send_fds(ours, [b"x"], [end.fileno()])
    end.close()
    passed = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
    return echoes(passed), *again(passed)


def both_after_a_fork():
    first = connected()
    reader, writer = os.pipe()
    child = os.fork()
    ends = [connected() for _ in range(20)]
    good = all(echoes(end) for end in ends)
    ports = [end.getsockname()[1] for end in ends]
    if child == 0:
        os.write(writer, struct.pack("20H", *ports) if good else b"")
        time.sleep(0.3)
        os._exit(0)
    ports += struct.unpack("20H", os.read(reader, 40))
    os.waitpid(child, 0)
    ends.append(first)
    return good, all(echoes(end) for end in ends), len(set(ports))


def bound_since():
    """The port of a connection that the peer has closed first is free, and one that is open is not."""
    end = connected()
    port = end.getsockname()[1]
    said = []
    with socket.socket() as other:
        said.append(tried(other.bind, (OWN, port)))
    said.append(echoes(end, b"x") and end.recv(1) == b"")
    end.close()
    time.sleep(0.1)
    with socket.socket() as other:
        said += tried(other.bind, ("", port)), tried(other.listen)
    end = connected()
    said.append(echoes(end))
    end.close()
    return said


def bound_in_time_wait():
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end.connect((HOST, PORT))
        port = end.getsockname()[1]
        echoes(end)
    time.sleep(0.1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return tried(other.bind, (OWN, port)), tried(other.listen)


def bound_elsewhere():
    """Another process gets the ports of connections that are over."""
    ends = [connected() for _ in range(30)]
    ports = [end.getsockname()[1] for end in ends]
    for end in ends:
        echoes(end, b"x")
        end.recv(1)
        end.close()
    time.sleep(2.2)
    connected().close()
    binds = "import socket, sys\nfor port in sys.argv[1:]: socket.socket().bind(('', int(port)))"
    good = 0
    for port in ports:
        way = {**os.environ, "LD_PRELOAD": ""}
        command = [sys.executable, "-S", "-c", binds, str(port)]
        good += subprocess.run(command, env=way, stderr=subprocess.DEVNULL).returncode == 0
    # One may be kept for the next connection.
    return good >= 29


def where_the_program_says():
    with socket.socket() as end:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        end.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("HH", port, port))
        end.connect((HOST, PORT))
        return end.getsockname()[1] == port


def closed_from_three():
    def closes():
        end = connected()
        good = echoes(end)
        end.detach()
        os.closerange(3, 65536)
        libc.syscall(436, 3, 0xffffffff, 0)
        for _ in range(5):
            with connected() as end:
                good = good and echoes(end)
        return good and in_child(lambda: echoes(connected()))

    return in_child(closes)


def with_few_descriptors():
    """No socket but the program's own takes one of them."""
    def connects():
        os.closerange(3, 65536)
        ends = [connected()]
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        ends += [connected() for _ in range(2)]
        good = all(echoes(end) for end in ends)
        links = {number: f"/proc/self/fd/{number}" for number in range(3, 20)}
        sockets = [
            number for number, link in links.items() if os.path.lexists(link) and os.readlink(link).startswith("socket:")
        ]
        return good and sockets == [end.fileno() for end in ends]

    return in_child(connects)


def with_many_connections():
    """Who has none left gets those that keep ports."""
    def connects():
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
        ends = [connected() for _ in range(100)]
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
        while True:
            try:
                files.append(socket.socket())
            except OSError:
                break
        return len(files) + len(ends) > 512 - 110 and all(echoes(end) for end in ends)

    return in_child(connects)


def another_image():
    end = connected()
    os.set_inheritable(end.fileno(), True)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:4], str(end.fileno())])


if len(sys.argv) > 4:
    inherited = socket.socket(fileno=int(sys.argv[4]))
    print("another_image", echoes(inherited), *again(inherited))
    sys.exit()
for does in [
    ended_and_connected_again, refused, handed_over_by_a_fork, handed_over_and_reset, passed_on, both_after_a_fork,
    bound_since, bound_in_time_wait, bound_elsewhere, where_the_program_says, closed_from_three, with_few_descriptors,
    with_many_connections, another_image,
]:
    print(does.__name__, does(), flush=True)
