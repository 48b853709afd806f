# Mobile subscribers behind GTP-U, one tunnel each.
from trex.astf.api import *
from trex.astf.tunnels_topo import TunnelsTopo


class Prof1():
    def get_profile(self, **kwargs):
        prog_c = ASTFProgram()
        prog_c.send("s" * 123)
        prog_c.recv(4567)
        prog_s = ASTFProgram()
        prog_s.recv(123)
        prog_s.send("", 4567, "internet")
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(default_ip_gen=ip_gen, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen),
            server_template=ASTFTCPServerTemplate(program=prog_s)))


def get_topo():
    topo = TunnelsTopo()
    topo.add_tunnel_ctx(src_start="16.0.0.0", src_end="16.0.0.255", initial_teid=100, teid_jump=2, sport=5000, version=4,
                        tunnel_type=1, src_ip="1.1.1.11", dst_ip="12.2.2.2", activate=True)
    topo.add_tunnel_latency(client_port_id=0, client_ip="16.0.0.1", server_ip="48.0.0.1")
    return topo


def register():
    return Prof1()
