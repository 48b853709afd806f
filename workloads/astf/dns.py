# One question over UDP a flow, each from a port of its own, as resolvers ask; a name server answers, or this profile's own server side.
from trex.astf.api import *
import argparse


class Dns():
    def get_profile(self, tunables, **kwargs):
        parser = argparse.ArgumentParser()
        parser.add_argument("--server", default="10.77.0.1", help="its address")
        parser.add_argument("--port", type=int, default=53, help="its port")
        parser.add_argument("--name", default="host7.test", help="what is asked for")
        parser.add_argument("--flows", type=int, default=64, help="questions under way")
        args = parser.parse_args(tunables)
        labels = b"".join(bytes([len(label)]) + label.encode() for label in args.name.split("."))
        question = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0" + labels + b"\0\0\x01\0\x01"
        client = ASTFProgram(stream=False)
        client.set_keepalive_msg(1000)
        client.send_msg(question)
        client.recv_msg(1)
        client.close_msg()
        server = ASTFProgram(stream=False)
        server.set_keepalive_msg(1000)
        server.recv_msg(1)
        # The header says that it is an answer, with one record: the name again, an address.
        server.send_msg(b"\x12\x34\x85\x80\0\x01\0\x01\0\0\0\0" + question[12:] + b"\xc0\x0c\0\x01\0\x01\0\0\x0e\x10\0\x04\xc0\0\x02\x07")
        server.close_msg()
        ip_gen = ASTFIPGen(dist_client=ASTFIPGenDist(["10.77.0.2", "10.77.0.201"]),
                           dist_server=ASTFIPGenDist([args.server, args.server]))
        return ASTFProfile(default_ip_gen=ip_gen, templates=ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=client, ip_gen=ip_gen, port=args.port, cps=1000000, limit=args.flows, cont=True),
            server_template=ASTFTCPServerTemplate(program=server, assoc=ASTFAssociationRule(port=args.port))))


def register():
    return Dns()
