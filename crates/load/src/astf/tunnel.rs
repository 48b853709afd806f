//! What is around the frames of clients behind tunnels: GTP-U (3GPP TS 29.281), VXLAN (RFC 7348), or a VLAN tag (IEEE 802.1Q).
//!
//! The client side puts its frames in. The server side takes them out, and answers each tunnel's clients as they came: a device that
//! takes tunnels away in between needs no other setting.

use std::net::IpAddr;

use overfly_wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, HEADER_LEN as ETHERNET_LEN};
use overfly_wire::{FrameSink, ipv4, ipv6, udp};

use super::address::Range;
use super::form::{self, TunnelKind};
use super::plan::Role;
use crate::link::{Each, Gone, Wire};

/// IANA's ports.
const GTPU_PORT: u16 = 2152;
const VXLAN_PORT: u16 = 4789;
/// IEEE 802.1Q.
const ETHERTYPE_VLAN: u16 = 0x8100;
const VLAN_LEN: usize = 4;
/// TS 29.281 section 5.1, without options; RFC 7348 section 5.
const SHIM_LEN: usize = 8;
/// G-PDU.
const GTPU_MESSAGE: u8 = 255;
/// Outer Ethernet, IP, UDP and VXLAN headers at most.
pub(crate) const MOST: usize = ETHERNET_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN + SHIM_LEN;

/// One range of clients.
#[derive(Debug, Clone)]
struct Tunnel {
    kind: TunnelKind,
    clients: Range,
    vlan: u16,
    identity: u32,
    identity_step: u32,
    source_port: u16,
    /// The outer addresses: as the client side has them.
    source: IpAddr,
    destination: IpAddr,
    /// The server side: whether the clients come by it.
    is_used: bool,
}

impl Tunnel {
    fn new(form: &form::Tunnel) -> Option<Tunnel> {
        Some(Tunnel {
            kind: form.kind,
            clients: Range::new(form.first, form.last).ok()?,
            vlan: form.vlan.unwrap_or(0),
            identity: form.identity.unwrap_or(0),
            identity_step: form.identity_step.unwrap_or(0),
            source_port: form.source_port.unwrap_or(0),
            source: form.outer_source.unwrap_or(form.first),
            destination: form.outer_destination.unwrap_or(form.first),
            is_used: false,
        })
    }

    /// Bytes before the inner frame.
    fn overhead(&self) -> usize {
        let ip = if self.source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        match self.kind {
            TunnelKind::Vlan => VLAN_LEN,
            // The inner frame's Ethernet header is written over.
            TunnelKind::Gtpu => ip + udp::HEADER_LEN + SHIM_LEN,
            TunnelKind::Vxlan => ETHERNET_LEN + ip + udp::HEADER_LEN + SHIM_LEN,
        }
    }

    /// Puts what stands `overhead` bytes into `frame` into the tunnel of the client at `position`.
    fn wrap(&self, role: Role, position: u64, frame: &mut [u8]) {
        let overhead = self.overhead();
        let mut link = [0; ETHERNET_LEN];
        link.copy_from_slice(&frame[overhead..overhead + ETHERNET_LEN]);
        frame[..ETHERNET_LEN].copy_from_slice(&link);
        let identity = self.identity.wrapping_add(self.identity_step.wrapping_mul(position as u32));
        let shim = match self.kind {
            TunnelKind::Vlan => {
                frame[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
                frame[14..16].copy_from_slice(&self.vlan.to_be_bytes());
                return;
            }
            TunnelKind::Gtpu => {
                let inner = (frame.len() - overhead - ETHERNET_LEN) as u16;
                // Version 1, GTP, no options.
                u64::from(0x30_u8) << 56
                    | u64::from(GTPU_MESSAGE) << 48
                    | u64::from(inner) << 32
                    | u64::from(identity)
            }
            TunnelKind::Vxlan => 0x08 << 56 | u64::from(identity) << 8,
        };
        let (source, destination) = match role {
            Role::Client => (self.source, self.destination),
            Role::Server => (self.destination, self.source),
        };
        let transport = frame.len() - ETHERNET_LEN;
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
                ipv4::Header {
                    source,
                    destination,
                    protocol: ipv4::PROTOCOL_UDP,
                    ttl: 64,
                    tos: 0,
                    identification: 0,
                    dont_fragment: true,
                    payload_len: (transport - ipv4::HEADER_LEN) as u16,
                }
                .emit(&mut frame[ETHERNET_LEN..]);
                self.write_udp(shim, &mut frame[ETHERNET_LEN + ipv4::HEADER_LEN..]);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
                ipv6::Header {
                    source,
                    destination,
                    protocol: ipv4::PROTOCOL_UDP,
                    hop_limit: 64,
                    traffic_class: 0,
                    flow_label: 0,
                    payload_len: (transport - ipv6::HEADER_LEN) as u16,
                }
                .emit(&mut frame[ETHERNET_LEN..]);
                self.write_udp(shim, &mut frame[ETHERNET_LEN + ipv6::HEADER_LEN..]);
            }
            _ => {}
        }
    }

    /// Without a checksum: RFC 7348 section 5, RFC 6935 for tunnels over IPv6.
    fn write_udp(&self, shim: u64, datagram: &mut [u8]) {
        let port = self.port();
        let length = datagram.len() as u16;
        datagram[..2].copy_from_slice(&self.source_port.to_be_bytes());
        datagram[2..4].copy_from_slice(&port.to_be_bytes());
        datagram[4..6].copy_from_slice(&length.to_be_bytes());
        datagram[6..8].fill(0);
        datagram[8..16].copy_from_slice(&shim.to_be_bytes());
    }

    fn port(&self) -> u16 {
        if self.kind == TunnelKind::Vxlan { VXLAN_PORT } else { GTPU_PORT }
    }
}

/// All tunnels of a run.
#[derive(Debug, Clone)]
pub(crate) struct Tunnels {
    tunnels: Vec<Tunnel>,
    role: Role,
}

impl Tunnels {
    /// Those of the form that are in use.
    pub(crate) fn new(forms: &[form::Tunnel], role: Role) -> Tunnels {
        Tunnels { tunnels: forms.iter().filter(|form| form.active).filter_map(Tunnel::new).collect(), role }
    }

    /// Bytes by which a packet grows at most.
    pub(crate) fn overhead(&self) -> usize {
        self.tunnels.iter().map(Tunnel::overhead).max().unwrap_or(0)
    }

    /// The tunnel of a frame's client, and where the client is in its range.
    fn find(&self, frame: &[u8]) -> Option<(usize, u64)> {
        let client = client_of(frame, self.role)?;
        let place = |(index, tunnel): (usize, &Tunnel)| Some((index, tunnel.clients.position(client)?));
        self.tunnels.iter().enumerate().find_map(place)
    }

    /// What is in a frame, as an Ethernet frame, and the tunnel that it came by; `None`: it came as it is.
    fn unwrap<'a>(&mut self, frame: &[u8], scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let ethertype = u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?);
        let inner = match ethertype {
            ETHERTYPE_VLAN => &frame[VLAN_LEN..],
            ETHERTYPE_IPV4 if frame.get(ETHERNET_LEN)? == &0x45 => payload(frame, ipv4::HEADER_LEN, 9)?,
            ETHERTYPE_IPV6 => payload(frame, ipv6::HEADER_LEN, 6)?,
            _ => return None,
        };
        scratch.clear();
        if ethertype == ETHERTYPE_VLAN {
            scratch.extend_from_slice(&frame[..12]);
            scratch.extend_from_slice(frame.get(16..)?);
        } else if inner.first()? & 0xf7 == 0 && inner.len() > SHIM_LEN + ETHERNET_LEN && inner[0] & 8 != 0 {
            scratch.extend_from_slice(&inner[SHIM_LEN..]);
        } else {
            let packet = inner.get(SHIM_LEN..)?;
            let ethertype = if packet.first()? >> 4 == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
            scratch.extend_from_slice(&frame[..12]);
            scratch.extend_from_slice(&ethertype.to_be_bytes());
            scratch.extend_from_slice(packet);
        }
        if self.role == Role::Server
            && let Some(client) = client_of(scratch, Role::Client)
            && let Some(tunnel) = self.tunnels.iter_mut().find(|tunnel| tunnel.clients.contains(client))
        {
            tunnel.is_used = true;
        }
        Some(scratch)
    }
}

/// What a UDP datagram to a tunnel's port carries.
fn payload(frame: &[u8], header: usize, protocol_at: usize) -> Option<&[u8]> {
    let packet = &frame[ETHERNET_LEN..];
    if packet.get(protocol_at)? != &ipv4::PROTOCOL_UDP {
        return None;
    }
    let datagram = packet.get(header..)?;
    let port = u16::from_be_bytes(datagram.get(2..4)?.try_into().ok()?);
    let length = usize::from(u16::from_be_bytes(datagram.get(4..6)?.try_into().ok()?));
    matches!(port, GTPU_PORT | VXLAN_PORT).then_some(datagram.get(udp::HEADER_LEN..length)?)
}

/// The address of a frame's client: who sends it on the client side, to whom it goes on the server side.
fn client_of(frame: &[u8], role: Role) -> Option<IpAddr> {
    let ethertype = u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?);
    let packet = &frame[ETHERNET_LEN..];
    match ethertype {
        ETHERTYPE_IPV4 => {
            let at = if role == Role::Client { 12 } else { 16 };
            let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        ETHERTYPE_IPV6 => {
            let at = if role == Role::Client { 8 } else { 24 };
            let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        _ => None,
    }
}

/// A wire whose clients are behind tunnels.
pub(crate) struct Tunnelled<W> {
    pub(crate) wire: W,
    tunnels: Tunnels,
    /// A frame that is being written, with room before it.
    frame: Vec<u8>,
    scratch: Vec<u8>,
    wrapped: u64,
    unwrapped: u64,
}

impl<W: Wire> Tunnelled<W> {
    pub(crate) fn new(wire: W, tunnels: Tunnels) -> Tunnelled<W> {
        Tunnelled {
            wire,
            tunnels,
            frame: vec![0; MOST + (1 << 16)],
            scratch: Vec::new(),
            wrapped: 0,
            unwrapped: 0,
        }
    }
}

impl<W: Wire> FrameSink for Tunnelled<W> {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        let room = self.wire.frame()?.len().saturating_sub(self.tunnels.overhead());
        Some(&mut self.frame[MOST..MOST + room])
    }

    fn commit(&mut self, length: usize) {
        let inner = &self.frame[MOST..MOST + length];
        let found = self
            .tunnels
            .find(inner)
            .filter(|(index, _)| self.tunnels.role == Role::Client || self.tunnels.tunnels[*index].is_used);
        let from = match found {
            Some((index, position)) => {
                let tunnel = &self.tunnels.tunnels[index];
                let from = MOST - tunnel.overhead();
                tunnel.wrap(self.tunnels.role, position, &mut self.frame[from..MOST + length]);
                self.wrapped += 1;
                from
            }
            None => MOST,
        };
        let whole = &self.frame[from..MOST + length];
        // It had room for a longer one just now.
        if let Some(place) = self.wire.frame() {
            place[..whole.len()].copy_from_slice(whole);
            self.wire.commit(whole.len());
        }
    }
}

impl<W: Wire> Wire for Tunnelled<W> {
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let (tunnels, scratch, unwrapped) = (&mut self.tunnels, &mut self.scratch, &mut self.unwrapped);
        self.wire.receive(budget, |frame| match tunnels.unwrap(frame, scratch) {
            Some(inner) => {
                *unwrapped += 1;
                each(inner);
            }
            None => each(frame),
        })
    }

    fn flush(&mut self) {
        self.wire.flush();
    }

    fn room(&self) -> Option<u32> {
        self.wire.room()
    }

    fn take_gone(&mut self) -> Option<Gone> {
        self.wire.take_gone()
    }

    fn each_counter(&self, each: Each<'_>) {
        self.wire.each_counter(each);
        each("tunnel", "sent_frames", self.wrapped);
        each("tunnel", "received_frames", self.unwrapped);
    }

    fn each_kernel_counter(&self, each: Each<'_>) {
        self.wire.each_kernel_counter(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::astf::wire::End;

    fn forms(text: &str) -> Vec<form::Tunnel> {
        serde_json::from_str(text).unwrap()
    }

    /// An IPv4 frame between these addresses, its payload so long.
    fn packet(source: [u8; 4], destination: [u8; 4], length: usize) -> Vec<u8> {
        let mut frame = vec![0xaa; ETHERNET_LEN + ipv4::HEADER_LEN + length];
        frame[..6].fill(1);
        frame[6..12].fill(2);
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        ipv4::Header {
            source: source.into(),
            destination: destination.into(),
            protocol: ipv4::PROTOCOL_TCP,
            ttl: 64,
            tos: 0,
            identification: 0,
            dont_fragment: true,
            payload_len: length as u16,
        }
        .emit(&mut frame[ETHERNET_LEN..]);
        frame
    }

    #[test]
    fn what_goes_in_comes_out_and_the_answer_goes_back() {
        let outer = r#""active":true,"identity":100,"identity_step":2,"source_port":5000"#;
        let outer4 = format!(r#"{outer},"outer_source":"1.1.1.11","outer_destination":"12.2.2.2""#);
        let outer6 = format!(r#"{outer},"outer_source":"fd01::1","outer_destination":"fd01::2""#);
        let range = r#""first":"16.0.0.0","last":"16.0.0.255""#;
        for (kind, more, overhead) in [
            ("vlan", r#""active":true,"vlan":7"#, 4),
            ("gtpu", outer4.as_str(), 36),
            ("gtpu", &outer6, 56),
            ("vxlan", &outer4, 50),
            ("vxlan", &outer6, 70),
        ] {
            let forms = forms(&format!(r#"[{{"kind":"{kind}",{range},{more}}}]"#));
            let mut client = Tunnelled::new(End::new(1600), Tunnels::new(&forms, Role::Client));
            let mut server = Tunnelled::new(End::new(1600), Tunnels::new(&forms, Role::Server));
            assert_eq!(client.tunnels.overhead(), overhead);
            let send = |wire: &mut Tunnelled<End>, frame: &[u8]| {
                wire.frame().unwrap()[..frame.len()].copy_from_slice(frame);
                wire.commit(frame.len());
            };
            let received = |wire: &mut Tunnelled<End>| {
                let mut frames = Vec::new();
                wire.receive(10, |frame| frames.push(frame.to_vec()));
                frames
            };
            let (question, answer) =
                (packet([16, 0, 0, 5], [48, 0, 0, 1], 100), packet([48, 0, 0, 1], [16, 0, 0, 5], 1400));
            // Before anybody has come by the tunnel, the server does not use it.
            send(&mut server, &answer);
            client.wire.take_from(&mut server.wire);
            assert_eq!((received(&mut client), client.unwrapped), (vec![answer.clone()], 0));
            send(&mut client, &question);
            let outside = packet([17, 0, 0, 5], [48, 0, 0, 1], 100);
            send(&mut client, &outside);
            let lengths: Vec<usize> = client.wire.out.frames().map(<[u8]>::len).collect();
            assert_eq!(lengths, [question.len() + overhead, outside.len()]);
            if kind == "gtpu" && overhead == 36 {
                let frame = client.wire.out.frames().next().unwrap();
                assert_eq!(
                    frame[34..50],
                    [0x13, 0x88, 8, 104, 0, 136, 0, 0, 0x30, 255, 0, 120, 0, 0, 0, 110]
                );
            }
            server.wire.take_from(&mut client.wire);
            assert_eq!(received(&mut server), [question, outside]);
            send(&mut server, &answer);
            client.wire.take_from(&mut server.wire);
            assert_eq!((received(&mut client), client.unwrapped), (vec![answer], 1), "{kind}");
        }
    }

    #[test]
    fn hostile_frames_are_survived() {
        let forms =
            forms(r#"[{"kind":"vlan","first":"16.0.0.0","last":"16.0.0.255","active":true,"vlan":7}]"#);
        let mut tunnels = Tunnels::new(&forms, Role::Server);
        let mut random = crate::random::SplitMix::new(7);
        println!("seed 7");
        let mut scratch = Vec::new();
        for round in 0..20_000 {
            let mut frame: Vec<u8> = (0..random.below(120)).map(|_| random.next() as u8).collect();
            if frame.len() > 46 {
                let ethertype = [ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN][round % 3];
                frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
                frame[14] = 0x45;
                frame[20 + 3 * (round % 2)] = ipv4::PROTOCOL_UDP;
                frame[36..38].copy_from_slice(&[GTPU_PORT, VXLAN_PORT][round % 2].to_be_bytes());
            }
            tunnels.unwrap(&frame, &mut scratch);
            tunnels.find(&frame);
        }
    }
}
