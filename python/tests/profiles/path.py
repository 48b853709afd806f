# A path that is simulated: what the clients send takes 20 ms, what the servers send 30 ms, 10 more or less, and some is lost.
from trex.astf.api import *


class Prof1():
    def get_profile(self, delay=30000, jitter=10000, loss=20000):
        c_info = ASTFGlobalInfo()
        c_info.path.delay_usec = 20000
        own = ASTFGlobalInfoPerTemplate()
        own.path.delay_usec = delay
        own.path.jitter_usec = jitter
        own.path.loss_ppm = loss

        prog_c = ASTFProgram()
        prog_c.send("c" * 500)
        prog_c.recv(20000)
        prog_s = ASTFProgram()
        prog_s.recv(500)
        prog_s.send("s" * 20000)
        ip_gen = ASTFIPGen(
            dist_client=ASTFIPGenDist(ip_range=["16.0.0.1", "16.0.0.200"], distribution="seq"),
            dist_server=ASTFIPGenDist(ip_range=["48.0.0.1", "48.0.0.20"], distribution="seq"))
        return ASTFProfile(
            default_ip_gen=ip_gen,
            default_c_glob_info=c_info,
            templates=ASTFTemplate(
                client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, cps=10),
                server_template=ASTFTCPServerTemplate(program=prog_s, glob_info=own)))


def register():
    return Prof1()
