# Captures: TCP in a VLAN, TCP over IPv6, and UDP whose datagrams are cut; each with a share of all bytes.
from trex.astf.api import *


class Prof1():
    def get_profile(self, **kwargs):
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(default_ip_gen=ip_gen, s_delay=ASTFCmdDelay(700), cap_list=[
            ASTFCapInfo(file="vlan.pcap", l7_percent=60),
            ASTFCapInfo(file="ipv6.pcapng", l7_percent=30, port=8080, tg_name="six", s_delay=ASTFCmdDelayRnd(100, 300)),
            ASTFCapInfo(file="dns.pcap", l7_percent=10, udp_mtu=142),
        ])


def register():
    return Prof1()
