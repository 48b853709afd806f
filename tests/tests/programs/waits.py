import select, socket, sys
def connect(path):
    s = socket.create_connection(('10.77.0.1', int(sys.argv[1])), 10)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    s.sendall(b'GET %s HTTP/1.1\r\nHost: x\r\n\r\n' % path)
    assert s.recv(3000)
    return s
waiting = [connect(b'/ok' if number < 30 else b'/big') for number in range(40)]
poll = select.poll()
for s in waiting: poll.register(s, select.POLLERR | select.POLLHUP)
print('ready', flush=True)
sys.stdin.readline()
told = {descriptor for descriptor, _ in poll.poll(0)}
print(len(told), flush=True)
