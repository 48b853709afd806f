# Many requests on one connection: a loop over a variable, with counters that are cleared each time round.
from trex.astf.api import *

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Prof1():
    def create_profile(self, loop, size):
        prog_c = ASTFProgram()
        prog_c.set_var("requests", loop)
        prog_c.set_label("again:")
        prog_c.send(REQUEST)
        prog_c.recv(size, True)
        prog_c.jmp_nz("requests", "again:")

        prog_s = ASTFProgram()
        prog_s.set_var("requests", loop)
        prog_s.set_label("again:")
        prog_s.recv(len(REQUEST), True)
        prog_s.send("", size=size, fill="0123456789")
        prog_s.jmp_nz("requests", "again:")
        prog_s.wait_for_peer_close()
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(default_ip_gen=ip_gen, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, limit=500, cont=True),
            server_template=ASTFTCPServerTemplate(program=prog_s)))

    def get_profile(self, **kwargs):
        return self.create_profile(kwargs.get("loop", 10), kwargs.get("size", 1024))


def register():
    return Prof1()
