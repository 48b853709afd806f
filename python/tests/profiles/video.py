# A player that fetches chunks with flows of another template, and changes to a smaller one.
from trex.astf.api import *


class Prof1():
    def chunk(self, ip_gen, name, size, following):
        prog_c = ASTFProgram()
        prog_c.send(name)
        prog_c.recv(size)
        prog_c.set_next_template(following)
        prog_s = ASTFProgram()
        prog_s.recv(len(name))
        prog_s.send("", size)
        return ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, cps=0),
            server_template=ASTFTCPServerTemplate(program=prog_s, assoc=ASTFAssociationRule(port=80, l7_map=[0, 1, 2])),
            tg_name=name)

    def get_profile(self, tunables, **kwargs):
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        player = ASTFProgram(stream=False)
        player.set_keepalive_msg(64000)
        player.set_var("chunks", 3)
        player.set_next_template("big")
        player.set_label("next:")
        player.exec_template()
        player.delay(1000000)
        player.jmp_nz("chunks", "next:")
        idle = ASTFProgram(stream=False)
        idle.close_msg()
        return ASTFProfile(default_ip_gen=ip_gen, templates=[
            ASTFTemplate(
                client_template=ASTFTCPClientTemplate(program=player, ip_gen=ip_gen),
                server_template=ASTFTCPServerTemplate(program=idle)),
            self.chunk(ip_gen, "big", 500000, "low"),
            self.chunk(ip_gen, "low", 50000, "low"),
        ])


def register():
    return Prof1()
