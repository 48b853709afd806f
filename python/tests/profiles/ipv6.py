# IPv6: one template whose addresses are the last 32 bits, one with addresses of its own.
from trex.astf.api import *


class Prof1():
    def get_profile(self, **kwargs):
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        own = ASTFIPGen(
            dist_client=ASTFIPGenDist(ip_range=["2001:db8:1::1", "2001:db8:1::ff"], distribution="rand"),
            dist_server=ASTFIPGenDist(ip_range=["2001:db8:2::1", "2001:db8:2::1"]))
        c_info = ASTFGlobalInfo()
        c_info.ipv6.src_msb = "ff02::"
        c_info.ipv6.dst_msb = "ff03::"
        c_info.ipv6.enable = 1

        def side(first, size, other):
            prog = ASTFProgram()
            if first:
                prog.send("6" * size)
            prog.recv(other)
            if not first:
                prog.send("6" * size)
            return prog

        return ASTFProfile(default_ip_gen=ip_gen, default_c_glob_info=c_info, templates=[
            ASTFTemplate(
                client_template=ASTFTCPClientTemplate(program=side(True, 300, 3000), ip_gen=ip_gen),
                server_template=ASTFTCPServerTemplate(program=side(False, 3000, 300))),
            ASTFTemplate(
                client_template=ASTFTCPClientTemplate(program=side(True, 40, 41), ip_gen=own, port=81),
                server_template=ASTFTCPServerTemplate(program=side(False, 41, 40), assoc=ASTFAssociationRule(port=81))),
        ])


def register():
    return Prof1()
