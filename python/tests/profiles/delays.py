# A user who thinks, and a server that takes its time and answers in pieces.
from trex.astf.api import *


class Prof1():
    def get_profile(self, **kwargs):
        page = "p" * 4500
        prog_c = ASTFProgram()
        prog_c.connect()
        prog_c.delay_rand(1000, 3000)
        prog_c.send("GET /")
        prog_c.recv(len(page))
        prog_c.delay(250000)
        prog_s = ASTFProgram()
        prog_s.recv(5)
        prog_s.delay(10000.0)
        prog_s.send_chunk(page, 1100, 20)
        prog_s.wait_for_peer_close()
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(default_ip_gen=ip_gen, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen),
            server_template=ASTFTCPServerTemplate(program=prog_s)))


def register():
    return Prof1()
