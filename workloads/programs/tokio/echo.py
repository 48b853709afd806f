"""Sends 5 MB to the echo and reads them back at the same time; says how many segments its kernel had to send again."""
import os
import socket
import sys
import threading


def sent_again():
    with open("/proc/net/snmp") as file:
        names, values = [line.split() for line in file if line.startswith("Tcp:")]
    return int(dict(zip(names, values))["RetransSegs"])


before = sent_again()
data = os.urandom(5_000_000)
for _ in range(5):
    connection = socket.create_connection((sys.argv[1], 8081))
    writer = threading.Thread(target=connection.sendall, args=(data,))
    writer.start()
    got = bytearray()
    while len(got) < len(data):
        piece = connection.recv(1 << 16)
        assert piece, len(got)
        got += piece
    writer.join()
    assert got == data
    connection.close()
again = sent_again() - before
print(again, "segments were sent again")
sys.exit(again > 20)
