# Through a device that translates: two servers share port 80 by their inside addresses, two more by the first bytes of payload, and
# what comes for port 8080 is turned to 80.
from trex.astf.api import *


class Prof1():
    def exchange(self, ip_gen, request, size, port, assoc):
        prog_c = ASTFProgram()
        prog_c.send(request)
        prog_c.recv(size)
        prog_s = ASTFProgram()
        prog_s.recv(len(request))
        prog_s.send("n" * size)
        return ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, port=port),
            server_template=ASTFTCPServerTemplate(program=prog_s, assoc=assoc))

    def get_profile(self, **kwargs):
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        inside = [ASTFAssociationRule(port=80, ip_start="10.0.0.1", ip_end="10.0.0.9"), ASTFAssociationRule(port=80, ip_start="10.0.0.10", ip_end="10.0.0.19")]
        by_payload = ASTFAssociationRule(port=81, l7_map={"offset": [0, 1], "mask": [255, 223], "value": [71, 69]})
        return ASTFProfile(default_ip_gen=ip_gen, templates=[
            self.exchange(ip_gen, "one", 11, 80, inside[0]),
            self.exchange(ip_gen, "two!", 22, 8080, inside[1]),
            self.exchange(ip_gen, "GET /", 33, 81, by_payload),
            self.exchange(ip_gen, "PUT /12", 44, 81, ASTFAssociationRule(port=81, l7_map=[0, 1])),
        ])


def register():
    return Prof1()
