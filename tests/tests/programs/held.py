"""Connections that stay open, as many as are asked for; then an exchange over each."""
import resource, socket, sys
count = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
held = []
request = b'GET /ok HTTP/1.1\r\nHost: x\r\n\r\n'
def exchange(s):
    s.sendall(request)
    body = b''
    while not body.endswith(b'o' * 1000):
        more = s.recv(65536)
        assert more, 'the connection ended'
        body += more
for _ in range(count):
    s = socket.create_connection(('10.77.0.1', 8080), 20)
    exchange(s)
    held.append(s)
print('ready', flush=True)
sys.stdin.readline()
for s in held: exchange(s)
print('all', flush=True)
