# Loops within loops, counted up and down, and one that goes on for a time.
from trex.astf.api import *


class Prof1():
    def get_profile(self, tunables, **kwargs):
        prog_c = ASTFProgram()
        prog_c.set_var("pages", 3)
        prog_c.set_label("page:")
        prog_c.set_var("parts", 0)
        prog_c.set_label("part:")
        prog_c.send("p" * 100)
        prog_c.add_var("parts", 2)
        prog_c.jmp_lt("parts", "part:", 8)
        prog_c.jmp_nz("pages", "page:")
        prog_c.recv(1200)
        prog_c.jmp_ne("parts", "failed:", 8)
        prog_c.add_stats("A", 7)
        prog_c.set_tick_var("clock")
        prog_c.set_label("tick:")
        prog_c.delay(1000)
        prog_c.jmp_dp("clock", "tick:", 0.01)
        prog_c.add_tick_stats("B", "clock")
        prog_c.jmp("end:")
        prog_c.set_label("failed:")
        prog_c.reset()
        prog_c.set_label("end:")

        prog_s = ASTFProgram()
        prog_s.set_send_blocking(False)
        prog_s.set_var("echoes", 12)
        prog_s.set_label("echo:")
        prog_s.recv(100, clear=True)
        prog_s.send("e" * 100)
        prog_s.jmp_nz("echoes", "echo:")
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(default_ip_gen=ip_gen, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen),
            server_template=ASTFTCPServerTemplate(program=prog_s)))


def register():
    return Prof1()
