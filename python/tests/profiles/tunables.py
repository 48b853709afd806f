# Tunables of each class, of all templates and of one.
from trex.astf.api import *


class Prof1():
    def get_profile(self, mss=1100, win=512):
        c_info = ASTFGlobalInfo()
        c_info.tcp.mss = mss
        c_info.tcp.initwnd = 20
        c_info.tcp.rxbufsize = win * 1024
        c_info.tcp.txbufsize = win * 1024
        c_info.tcp.no_delay = 1
        c_info.tcp.no_delay_counter = mss * 2
        c_info.tcp.rexmtthresh = 2
        c_info.tcp.do_rfc1323 = 0
        c_info.tcp.do_sack = 0
        c_info.tcp.cc_algo = 1
        c_info.tcp.do_ecn = 2
        c_info.tcp.reass_maxqlen = 1000
        c_info.tcp.keepinit = 253
        c_info.tcp.keepidle = 253
        c_info.tcp.keepintvl = 253
        c_info.tcp.blackhole = 2
        c_info.tcp.delay_ack_msec = 20
        c_info.ip.tos = 7
        c_info.ip.ttl = 34
        c_info.scheduler.rampup_sec = 5
        s_info = ASTFGlobalInfo()
        s_info.tcp.delay_ack_msec = 200
        own = ASTFGlobalInfoPerTemplate()
        own.tcp.mss = 9000
        own.tcp.initwnd = 1
        own.ip.ttl = 12
        assert own.tcp.mss == 9000 and c_info.tcp.mss == mss

        prog_c = ASTFProgram()
        prog_c.send("c" * 2500)
        prog_c.recv(10000)
        prog_s = ASTFProgram()
        prog_s.recv(2500)
        prog_s.send("s" * 10000)
        clients = ASTFIPGenDist(ip_range=["16.0.0.0", "16.0.0.255"], distribution="seq")
        servers = ASTFIPGenDist(ip_range=["48.0.0.0", "48.0.255.255"], distribution="seq")
        ip_gen = ASTFIPGen(glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"), dist_client=clients, dist_server=servers)
        return ASTFProfile(
            default_ip_gen=ip_gen,
            default_c_glob_info=c_info,
            default_s_glob_info=s_info,
            templates=ASTFTemplate(
                client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen),
                server_template=ASTFTCPServerTemplate(program=prog_s, glob_info=own)))


def register():
    return Prof1()
