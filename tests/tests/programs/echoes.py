import socket, threading
out = socket.create_connection(('10.77.0.2', 9003))
lock = threading.Lock()

def serve(s):
    while data := s.recv(1000):
        if data.startswith(b'out'):
            with lock:
                out.sendall(data)
                data = out.recv(1000)
        s.sendall(data)

def datagrams():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('0.0.0.0', 9002))
    while True:
        data, peer = s.recvfrom(1000)
        s.sendto(data, peer)

threading.Thread(target=datagrams, daemon=True).start()
listener = socket.create_server(('0.0.0.0', 9001))
print('ready', flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
