import socket, sys, threading
listener = socket.create_server(('0.0.0.0', 9001))
def serve():
    s = listener.accept()[0]
    while data := s.recv(1000): s.sendall(data)
threading.Thread(target=serve, daemon=True).start()
s = socket.create_connection(('127.0.0.1', 9001))
for line in sys.stdin:
    s.sendall(line.encode())
    print(s.recv(1000).decode().strip(), flush=True)
