import socket, sys, threading

def echo(s):
    while data := s.recv(1000): s.sendall(data)

def out():
    server = socket.create_server(('10.77.0.2', 9003))
    print('listening', flush=True)
    while True: threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()

threading.Thread(target=out, daemon=True).start()
held = udp = None

def connect():
    s = socket.create_connection(('10.77.0.1', 9001), 10)
    s.settimeout(10)
    return s

for number, line in enumerate(sys.stdin):
    try:
        if held is None:
            held = connect()
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.connect(('10.77.0.1', 9002))
            udp.settimeout(10)
        for s, data in [(held, b'held %d'), (held, b'out %d'), (udp, b'udp %d'), (connect(), b'new %d')]:
            s.send(data % number)
            assert (got := s.recv(1000)) == data % number, (data, got)
        print('ok', flush=True)
    except Exception as error:
        print(repr(error), flush=True)
