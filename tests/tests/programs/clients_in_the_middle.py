import hashlib, socket, sys
port, digest, length = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def connect():
    s = socket.create_connection(('10.77.0.1', port), 10)
    s.settimeout(30)
    return s

def response(s, body=b''):
    while b'\r\n\r\n' not in body:
        more = s.recv(65536)
        assert more, 'the connection ended'
        body += more
    head, body = body.split(b'\r\n\r\n', 1)
    assert head.startswith(b'HTTP/1.1 200'), head
    wanted = int(head.lower().split(b'content-length: ')[1].split(b'\r\n')[0])
    while len(body) < wanted:
        more = s.recv(65536)
        assert more, 'the connection ended'
        body += more
    return body

small, big = b'GET /ok HTTP/1.1\r\nHost: x\r\n\r\n', b'GET /big HTTP/1.1\r\nHost: x\r\n\r\n'
idle, half, reading = [connect() for _ in range(12)], [connect() for _ in range(6)], [connect() for _ in range(6)]
for s in idle:
    s.sendall(small)
    assert len(response(s)) == length
for s in half:
    s.sendall(small[:20])
begun = []
for s in reading:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    s.sendall(big)
    begun.append(s.recv(30000))
print('ready', flush=True)
sys.stdin.readline()
failed = 0
def attempt(what, act):
    global failed
    try:
        act()
    except Exception as error:
        failed += 1
        print(what, repr(error), flush=True)
def again(s):
    s.sendall(small)
    assert len(response(s)) == length
def finish(s):
    s.sendall(small[20:])
    assert len(response(s)) == length
    again(s)
def read_on(s, body):
    assert hashlib.sha256(response(s, body)).hexdigest() == digest
    again(s)
for s in idle: attempt('idle', lambda: again(s))
for s in half: attempt('half', lambda: finish(s))
for s, body in zip(reading, begun): attempt('reading', lambda: read_on(s, body))
print('failed', failed, flush=True)
