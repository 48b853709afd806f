# Template groups: two kinds of pages are counted together, the third by itself, the fourth with all that have no group.
from trex.astf.api import *


class Prof1():
    def get_profile(self, tunables=(), **kwargs):
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        templates = []
        for port, size, group in ((80, 1000, "pages"), (81, 2000, "pages"), (82, 50000, "downloads"), (83, 1, None)):
            prog_c = ASTFProgram()
            prog_c.send(b"x" * 10)
            prog_c.recv(size)
            prog_s = ASTFProgram()
            prog_s.recv(10)
            prog_s.send(b"y" * size)
            templates.append(ASTFTemplate(
                client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, port=port, cps=1),
                server_template=ASTFTCPServerTemplate(program=prog_s, assoc=ASTFAssociationRule(port=port)),
                tg_name=group))
        return ASTFProfile(default_ip_gen=ip_gen, templates=templates)


def register():
    return Prof1()
