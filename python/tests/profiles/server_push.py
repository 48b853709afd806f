# The server speaks first, as mail servers do, and then pushes.
from trex.astf.api import *


class Prof1():
    def get_profile(self, **kwargs):
        prog_c = ASTFProgram()
        prog_c.recv(20)
        prog_c.send("HELO\r\n")
        prog_c.recv(8000)
        prog_s = ASTFProgram(commands=[ASTFCmdConnect(), ASTFCmdSend(b"220 mail.example  \r\n"), ASTFCmdRecv(6), ASTFCmdSend(b"", 8000, "push ")])
        prog_s.wait_for_peer_close()
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(default_ip_gen=ip_gen, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, port=25),
            server_template=ASTFTCPServerTemplate(program=prog_s, assoc=ASTFAssociationRule(port=25))))


def register():
    return Prof1()
