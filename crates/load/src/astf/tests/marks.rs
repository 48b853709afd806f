//! Traffic classes and hop limits, template by template, in the bytes of the frames.

use std::collections::BTreeMap;

use overfly_wire::ip::Packet;
use overfly_wire::{ethernet, ipv4, ipv6};

use super::super::wire::HasEnd;
use super::*;

/// Each template's port, and what the packets of its client and its server say. One says nothing.
const PROFILE: &str = "from trex.astf.api import *
def info(marks, six=False):
    info = ASTFGlobalInfoPerTemplate()
    if marks:
        info.ip.tos, info.ip.ttl = marks
    if six:
        info.ipv6.enable, info.ipv6.src_msb, info.ipv6.dst_msb = 1, 'fd02::', 'fd03::'
    return info
class P():
    def get_profile(self, tunables=(), **kwargs):
        ip = ASTFIPGen(dist_client=ASTFIPGenDist(['16.0.0.1', '16.0.0.9']), dist_server=ASTFIPGenDist(['48.0.0.1', '48.0.0.1']))
        templates = []
        for port, stream, six, up, down in (
            (80, True, False, (40, 9), (72, 200)), (81, True, False, None, None), (82, False, False, (184, 5), (32, 255)),
            (83, True, True, (0, 1), (252, 17)), (84, False, True, (96, 2), None)):
            c = ASTFProgram(stream=stream); s = ASTFProgram(stream=stream)
            if stream:
                c.send('a' * 2000); c.recv(3000); s.recv(2000); s.send('b' * 3000)
            else:
                c.send_msg('a'); c.recv_msg(1); s.recv_msg(1); s.send_msg('b')
            templates.append(ASTFTemplate(
                client_template=ASTFTCPClientTemplate(program=c, ip_gen=ip, cps=10, port=port, glob_info=info(up, six)),
                server_template=ASTFTCPServerTemplate(program=s, assoc=ASTFAssociationRule(port=port), glob_info=info(down, six))))
        return ASTFProfile(default_ip_gen=ip, templates=templates)
def register(): return P()
";

/// The servers' port, the traffic class and the hop limit of a frame that `role` sent.
fn marks(frame: &[u8], role: Role) -> (u16, u8, u8) {
    let (link, bytes) = ethernet::Header::parse(frame).unwrap();
    let packet = match link.ethertype {
        ethernet::ETHERTYPE_IPV4 => Packet::V4(ipv4::Packet::parse(bytes).unwrap()),
        _ => Packet::V6(ipv6::Packet::parse(bytes).unwrap()),
    };
    let payload = packet.payload();
    let half = |at: usize| u16::from_be_bytes([payload[at], payload[at + 1]]);
    let port = if role == Role::Client { half(2) } else { half(0) };
    (port, packet.traffic_class(), packet.hop_limit())
}

#[test]
fn each_template_has_its_own_traffic_class_and_hop_limit_from_the_first_packet_on() {
    let mut case = Case::written(PROFILE, 1.0, 1);
    let mut seen = BTreeMap::new();
    while case.now_ns.get() < 1_300_000_000 {
        let now_ns = case.now_ns.get();
        case.pair.pace(now_ns.min(1_000_000_000), 1.0, false);
        case.pair.begin(now_ns, 1.0);
        case.turn();
        for (role, to) in [(Role::Client, &mut case.pair.server), (Role::Server, &mut case.pair.client)] {
            for frame in to.stack.wire.end().inbox.frames() {
                let (port, class, hops) = marks(frame, role);
                *seen
                    .entry((port, role as usize))
                    .or_insert_with(BTreeMap::new)
                    .entry((class, hops))
                    .or_insert(0) += 1;
            }
        }
    }
    for (port, up, down) in [
        (80, (40, 9), (72, 200)),
        (81, (0, 64), (0, 64)),
        (82, (184, 5), (32, 255)),
        (83, (0, 1), (252, 17)),
        (84, (96, 2), (0, 64)),
    ] {
        for (role, expected) in [(Role::Client, up), (Role::Server, down)] {
            let of = &seen[&(port, role as usize)];
            let marks: Vec<_> = of.keys().copied().collect();
            assert_eq!(marks, [expected], "port {port}, {role:?}: {of:?}");
            assert!(of[&expected] >= 10, "port {port}, {role:?}: {of:?}");
        }
    }
    case.drain().check_clean();
}
