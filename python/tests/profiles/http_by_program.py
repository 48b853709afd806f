# The same exchange, written step by step. -t size=BYTES is the response's body.
from trex.astf.api import *
import argparse

REQUEST = b"GET /3384 HTTP/1.1\r\nHost: 22.0.0.3\r\nConnection: close\r\n\r\n"
HEADER = "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n"


class Prof1():
    def create_profile(self, size):
        response = HEADER.format(size) + "*" * size
        prog_c = ASTFProgram()
        prog_c.connect()
        prog_c.send(REQUEST)
        prog_c.recv(len(response))

        prog_s = ASTFProgram()
        prog_s.accept()
        prog_s.recv(len(REQUEST))
        prog_s.send(response)
        prog_s.wait_for_peer_close()

        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        temp_c = ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, cps=10)
        temp_s = ASTFTCPServerTemplate(program=prog_s)
        return ASTFProfile(default_ip_gen=ip_gen, templates=ASTFTemplate(client_template=temp_c, server_template=temp_s))

    def get_profile(self, tunables, **kwargs):
        parser = argparse.ArgumentParser(description="Argparser for {}".format(os.path.basename(__file__)))
        parser.add_argument("--size", type=int, default=32768, help="bytes of the response's body")
        args = parser.parse_args(tunables)
        return self.create_profile(args.size)


def register():
    return Prof1()
