# Three kinds of traffic, one of each ten flows to the second kind, and so on.
from trex_astf_lib.api import *


class Prof1():
    def exchange(self, ip_gen, port, cps, request, response):
        prog_c = ASTFProgram()
        prog_c.send("q" * request)
        prog_c.recv(response)
        prog_s = ASTFProgram()
        prog_s.recv(request)
        prog_s.send("a" * response)
        temp_c = ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, port=port, cps=cps)
        temp_s = ASTFTCPServerTemplate(program=prog_s, assoc=ASTFAssociation(rules=[ASTFAssociationRule(port=port)]))
        return ASTFTemplate(client_template=temp_c, server_template=temp_s)

    def get_profile(self):
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(
            default_ip_gen=ip_gen,
            templates=[
                self.exchange(ip_gen, 80, 70, 100, 32000),
                self.exchange(ip_gen, 443, 25.5, 517, 5000),
                self.exchange(ip_gen, 5222, 0.5, 64, 64),
            ],
        )


def register():
    return Prof1()
