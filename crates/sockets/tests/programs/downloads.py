"""Many transfers at once, from a sender to a receiver.

    downloads.py send ADDRESS PORT COUNT SIZE         says "ready", then in the end how many segments it sent, and how many again
    downloads.py events|threads ADDRESS PORT COUNT SIZE
"""
import selectors
import socket
import struct
import sys
import threading

role, address, port, count, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])


def send():
    with socket.create_server((address, port), backlog=count) as listener:
        print("ready", flush=True)
        connections = [listener.accept()[0] for _ in range(count)]
    # All begin at once.
    threads = [threading.Thread(target=one.sendall, args=(bytes(size),)) for one in connections]
    for thread in threads:
        thread.start()
    sent = again = 0
    for thread, one in zip(threads, connections):
        thread.join()
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""
        information = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        # tcpi_total_retrans and tcpi_segs_out (linux/tcp.h).
        again += struct.unpack_from("I", information, 100)[0]
        sent += struct.unpack_from("I", information, 136)[0]
    print(sent, again, flush=True)


def connections():
    return [socket.create_connection((address, port)) for _ in range(count)]


def take_with_threads():
    def take(one, buffer):
        got = 0
        while part := one.recv_into(buffer):
            got += part
        one.close()
        assert got == size, got

    threads = [threading.Thread(target=take, args=(one, bytearray(65536))) for one in connections()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def take_with_events():
    selector, buffer = selectors.DefaultSelector(), bytearray(65536)
    for one in connections():
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ, [0])
    while selector.get_map():
        for key, _ in selector.select():
            part = key.fileobj.recv_into(buffer)
            key.data[0] += part
            if part == 0:
                assert key.data[0] == size, key.data
                selector.unregister(key.fileobj)
                key.fileobj.close()


{"send": send, "events": take_with_events, "threads": take_with_threads}[role]()
