# A service beside others: run together with http_by_program.py.
from trex.astf.api import *


class Prof1():
    def get_profile(self, port=9090, **kwargs):
        prog_c = ASTFProgram()
        prog_c.send("12345")
        prog_c.recv(6)
        prog_s = ASTFProgram()
        prog_s.recv(5)
        prog_s.send("123456")
        gen = ASTFIPGen(dist_client=ASTFIPGenDist(["17.0.0.1", "17.0.0.9"]), dist_server=ASTFIPGenDist(["49.0.0.1", "49.0.0.1"]))
        return ASTFProfile(default_ip_gen=gen, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=gen, port=port, limit=3),
            server_template=ASTFTCPServerTemplate(program=prog_s, assoc=ASTFAssociationRule(port=port))))


def register():
    return Prof1()
