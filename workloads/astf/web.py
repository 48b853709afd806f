# What seed 004's nginx comparison asks for: a request, a response of some kilobytes, a connection each; 200 clients, an initial window
# of two segments, acknowledgements delayed by 100 ms. A real server, or this profile's own server side, answers.
from trex.astf.api import *
import argparse


class Web():
    def get_profile(self, tunables, **kwargs):
        parser = argparse.ArgumentParser()
        parser.add_argument("--server", default="10.77.0.1", help="its address")
        parser.add_argument("--port", type=int, default=80, help="its port")
        parser.add_argument("--size", type=int, default=32768, help="bytes of the response's content")
        parser.add_argument("--delay", type=int, default=100, help="how long acknowledgements may wait, ms")
        parser.add_argument("--flows", type=int, default=64, help="connections at once")
        args = parser.parse_args(tunables)
        request = "GET /{} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".format(args.size)
        client = ASTFProgram()
        client.send(request)
        client.wait_for_peer_close()
        server = ASTFProgram()
        server.recv(len(request))
        server.send("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n".format(args.size) + "x" * args.size)
        info = ASTFGlobalInfo()
        info.tcp.initwnd = 2
        info.tcp.delay_ack_msec = args.delay
        # One network, so that they are reached over shared memory as well as over an interface that has these addresses.
        ip_gen = ASTFIPGen(dist_client=ASTFIPGenDist(["10.77.0.2", "10.77.0.201"]),
                           dist_server=ASTFIPGenDist([args.server, args.server]))
        return ASTFProfile(default_ip_gen=ip_gen, default_c_glob_info=info, default_s_glob_info=info, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=client, ip_gen=ip_gen, port=args.port, cps=1000000, limit=args.flows, cont=True),
            server_template=ASTFTCPServerTemplate(program=server, assoc=ASTFAssociationRule(port=args.port))))


def register():
    return Web()
