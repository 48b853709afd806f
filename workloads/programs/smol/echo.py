"""What is sent to the ports 7007 (TCP) and 7008 (UDP) comes back."""

import socket
import sys

server = sys.argv[1]
for round in range(40):
    with socket.create_connection((server, 7007), 5) as connection:
        connection.sendall(b"%d" % round)
        assert connection.recv(100) == b"%d" % round
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.settimeout(5)
    for round in range(40):
        end.sendto(b"%d" % round, (server, 7008))
        assert end.recv(100) == b"%d" % round
