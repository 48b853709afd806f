# A question of 50 bytes and two answers, over UDP.
from trex.astf.api import *


class Prof1():
    def get_profile(self, **kwargs):
        prog_c = ASTFProgram(stream=False)
        prog_c.set_keepalive_msg(2000)
        prog_c.send_msg("q" * 50)
        prog_c.recv_msg(2)
        prog_s = ASTFProgram(stream=False)
        prog_s.recv_msg(1)
        prog_s.send_msg("a" * 400)
        prog_s.delay(1000)
        prog_s.send_msg("", size=900, fill="b")
        prog_s.close_msg()
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(default_ip_gen=ip_gen, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, port=53, cps=100),
            server_template=ASTFTCPServerTemplate(program=prog_s, assoc=ASTFAssociationRule(port=53))))


def register():
    return Prof1()
