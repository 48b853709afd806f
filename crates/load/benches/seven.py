# One exchange a connection: of seven packets, or of as many bytes as --req and --size say. docs/performance.md has its figures.
from trex.astf.api import *
import argparse


class Prof1():
    def get_profile(self, tunables, **kwargs):
        parser = argparse.ArgumentParser()
        parser.add_argument("--req", type=int, default=1, help="bytes of the request")
        parser.add_argument("--size", type=int, default=1, help="bytes of the response")
        parser.add_argument("--hold", type=int, default=0, help="how long the client waits before it closes, us")
        parser.add_argument("--first", type=int, default=0, help="how long the client waits before its request, us")
        parser.add_argument("--clients", type=int, default=255, help="client addresses")
        parser.add_argument("--win", type=int, default=32768, help="receive window, bytes")
        parser.add_argument("--cps", type=float, default=1.0, help="connections a second")
        parser.add_argument("--limit", type=int, default=None, help="connections in all")
        parser.add_argument("--delay", type=int, default=0, help="how long packets take each way, us")
        args = parser.parse_args(tunables)
        prog_c = ASTFProgram()
        if args.first:
            prog_c.delay(args.first)
        prog_c.send("q" * args.req)
        prog_c.recv(args.size)
        prog_s = ASTFProgram()
        prog_s.recv(args.req)
        prog_s.send("r" * args.size)
        if args.hold:
            prog_c.delay(args.hold)
            prog_s.wait_for_peer_close()
        clients = ASTFIPGenDist(["16.0.0.1", "16.0.{}.{}".format(args.clients >> 8, args.clients & 255)])
        ip_gen = ASTFIPGen(dist_client=clients, dist_server=ASTFIPGenDist(["48.0.0.1", "48.0.0.255"]))
        info = ASTFGlobalInfo()
        info.tcp.rxbufsize = info.tcp.txbufsize = args.win
        info.path.delay_usec = args.delay
        return ASTFProfile(default_ip_gen=ip_gen, default_c_glob_info=info, default_s_glob_info=info, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=prog_c, ip_gen=ip_gen, cps=args.cps, limit=args.limit),
            server_template=ASTFTCPServerTemplate(program=prog_s)))


def register():
    return Prof1()
