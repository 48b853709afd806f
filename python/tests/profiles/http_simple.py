# One HTTP exchange, from a capture.
from trex.astf.api import *


class Prof1():
    def get_profile(self, **kwargs):
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(default_ip_gen=ip_gen, cap_list=[ASTFCapInfo(file="http.pcap", cps=2.776)])


def register():
    return Prof1()
