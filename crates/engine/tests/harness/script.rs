//! One engine and a peer that a test plays by hand, segment by segment, as packet scripts do.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use overfly_engine::{Config, FlowId, Instant, State};
use overfly_wire::checksum::{Sum, pseudo_ipv6};
use overfly_wire::ip::{self, Ecn};
use overfly_wire::tcp::{Flags, Header, Options, Sacks, Segment, Timestamps, write_checksum};
use overfly_wire::{MacAddr, ethernet, ipv4, ipv6};

use super::{CLIENT, Host, SERVER, Stream, config, pattern};

/// A segment as a test writes and reads it: sequence numbers relative to each side's SYN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seg {
    pub flags: Flags,
    pub seq: u32,
    pub ack: u32,
    pub len: usize,
    pub win: u16,
    pub options: Options,
    /// The ECN field of its packet (RFC 3168 section 5).
    pub ecn: Ecn,
}

impl Seg {
    /// Its SACK blocks, relative to the peer's SYN.
    pub fn blocks(&self) -> Vec<(u32, u32)> {
        let relative = |number: u32| number.wrapping_sub(PEER_ISS);
        self.options.sack.as_slice().iter().map(|&(left, right)| (relative(left), relative(right))).collect()
    }
}

pub const SYN: Flags = Flags::SYN;
pub const ACK: Flags = Flags::ACK;
pub const RST: Flags = Flags::RST;
pub const FIN: Flags = Flags::FIN;
pub const PSH: Flags = Flags::PSH;
pub const ECE: Flags = Flags::ECE;
pub const CWR: Flags = Flags::CWR;

/// The ends of a script over IPv6.
pub const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// The peer's initial sequence number: so that numbers wrap early in every test.
pub const PEER_ISS: u32 = 0xffff_fff0;

/// The engine under test at [`SERVER`], the test at [`CLIENT`].
pub struct Script {
    pub host: Host,
    pub now: Instant,
    pub local: SocketAddrV4,
    pub peer: SocketAddrV4,
    /// The engine's initial sequence number, once seen.
    pub iss: u32,
    pub options: Options,
    /// The options of the segment last expected.
    pub last_options: Options,
    pub peer_timestamp: Option<u32>,
    /// What the peer echoes of our timestamps (TSecr).
    pub peer_echo: u32,
    /// The last byte of the hardware address that frames come from.
    pub from: u8,
    /// The type of service of the peer's packets: its last two bits are ECN's (RFC 3168 section 5).
    pub tos: u8,
    /// The ends are [`SERVER6`] and [`CLIENT6`], with the ports of [`Script::local`] and [`Script::peer`].
    pub six: bool,
    /// The window of the segments that [`Script::ack`] and [`Script::sack`] inject.
    pub win: u16,
    /// The frames that [`Script::sent`] last read.
    pub frames: Vec<Vec<u8>>,
}

impl Script {
    pub fn new() -> Self {
        Self::with(config(SERVER))
    }

    pub fn with(config: Config) -> Self {
        Self {
            host: Host::new(config),
            now: Instant::from_micros(5_000_000),
            local: SocketAddrV4::new(SERVER, 80),
            peer: SocketAddrV4::new(CLIENT, 40_000),
            iss: 0,
            options: Options { mss: Some(1460), ..Options::NONE },
            last_options: Options::NONE,
            peer_timestamp: None,
            peer_echo: 0,
            from: 2,
            tos: 0,
            six: false,
            win: 65_535,
            frames: Vec::new(),
        }
    }

    /// A script over IPv6, with SACK offered.
    pub fn six() -> Self {
        Self::six_with(config(SERVER))
    }

    pub fn six_with(mut config: Config) -> Self {
        config.address6 = Some(SERVER6);
        let mut script = Self::with(config);
        script.six = true;
        script.options = Options { mss: Some(1440), sack_permitted: true, ..Options::NONE };
        script
    }

    /// The engine's end.
    pub fn local_end(&self) -> SocketAddr {
        if self.six { (SERVER6, self.local.port()).into() } else { self.local.into() }
    }

    /// The peer's end.
    pub fn peer_end(&self) -> SocketAddr {
        if self.six { (CLIENT6, self.peer.port()).into() } else { self.peer.into() }
    }

    /// The engine opens a connection to the peer, whose hardware address it knows.
    pub fn connect(&mut self) -> FlowId {
        let (local, peer) = (self.local_end(), self.peer_end());
        self.host.engine.set_neighbor(peer.ip(), MacAddr([2, 0, 0, 0, 0, 2]));
        let flow = self.host.engine.connect(self.now, local, peer).expect("connect");
        self.host.owner.next_seed += 1;
        let stream = Stream { seed: self.host.owner.next_seed, ..Stream::default() };
        self.host.owner.streams.insert(flow, stream);
        flow
    }

    /// Lets time pass, with the timers that come due on the way, each when it is due.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.host.engine.next_deadline() {
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            self.host.engine.advance(self.now, &mut self.host.owner);
            self.host.transmit(self.now);
        }
        self.now = end;
        self.host.engine.advance(end, &mut self.host.owner);
    }

    pub fn wait_ms(&mut self, ms: u64) {
        self.wait(Duration::from_millis(ms));
    }

    /// The peer sends a segment; sequence numbers relative.
    pub fn inject(&mut self, flags: Flags, seq: u32, ack: u32, len: usize, win: u16) {
        let options = if flags.contains(SYN) { self.options } else { Options::NONE };
        self.inject_with(flags, seq, ack, len, win, options);
    }

    pub fn inject_with(&mut self, flags: Flags, seq: u32, ack: u32, len: usize, win: u16, options: Options) {
        // The peer's stream: byte n (from 1, after the SYN) is pattern(77, n - 1).
        let data: Vec<u8> = (0..len).map(|index| pattern(77, u64::from(seq) - 1 + index as u64)).collect();
        self.inject_bytes(flags, seq, ack, &data, win, options);
    }

    /// As [`Script::inject_with`], with payload of the test's own.
    pub fn inject_bytes(
        &mut self,
        flags: Flags,
        seq: u32,
        ack: u32,
        data: &[u8],
        win: u16,
        mut options: Options,
    ) {
        let len = data.len();
        if let Some(value) = self.peer_timestamp {
            options.timestamps = Some(Timestamps { value, echo: self.peer_echo });
        }
        let header = Header {
            source_port: self.peer.port(),
            destination_port: self.local.port(),
            sequence: PEER_ISS.wrapping_add(seq),
            acknowledgment: if flags.contains(ACK) { self.iss.wrapping_add(ack) } else { 0 },
            flags,
            window: win,
            options,
        };
        let mut segment = vec![0; header.header_len() + len];
        let header_len = header.emit(&mut segment);
        segment[header_len..].copy_from_slice(data);
        if self.six {
            write_checksum(&mut segment, CLIENT6, SERVER6);
        } else {
            write_checksum(&mut segment, *self.peer.ip(), *self.local.ip());
        }
        self.inject_packet(ipv4::PROTOCOL_TCP, 64, &segment);
    }

    /// The peer sends an IP packet, of the script's family.
    pub fn inject_packet(&mut self, protocol: u8, hop_limit: u8, payload: &[u8]) {
        let (source, destination) = (self.peer_end().ip(), self.local_end().ip());
        self.inject_between(source, destination, protocol, hop_limit, payload);
    }

    pub fn inject_between(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        hop_limit: u8,
        payload: &[u8],
    ) {
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let ethertype = if source.is_ipv6() { ethernet::ETHERTYPE_IPV6 } else { ethernet::ETHERTYPE_IPV4 };
        let headers = if source.is_ipv6() { 54 } else { 34 };
        let mut frame = vec![0; headers + payload.len()];
        ethernet::Header { destination: mac(1), source: mac(self.from), ethertype }.emit(&mut frame);
        let payload_len = payload.len() as u16;
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
                source,
                destination,
                protocol,
                ttl: hop_limit,
                tos: self.tos,
                identification: 0,
                dont_fragment: true,
                payload_len,
            }
            .emit(&mut frame[14..]),
            (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
                source,
                destination,
                protocol,
                hop_limit,
                traffic_class: self.tos,
                flow_label: 0,
                payload_len,
            }
            .emit(&mut frame[14..]),
            _ => panic!("both ends are of one family"),
        }
        frame[headers..].copy_from_slice(payload);
        self.host.engine.receive(self.now, &frame, &mut self.host.owner);
    }

    /// The peer acknowledges up to `ack`, with nothing else to say.
    pub fn ack(&mut self, ack: u32) {
        self.sack(ack, &[]);
    }

    /// As [`Script::ack`], with SACK blocks relative to the engine's SYN.
    pub fn sack(&mut self, ack: u32, blocks: &[(u32, u32)]) {
        let mut sack = Sacks::EMPTY;
        for &(left, right) in blocks {
            assert!(sack.push(self.iss.wrapping_add(left), self.iss.wrapping_add(right)), "four at most");
        }
        self.inject_with(ACK, 1, ack, 0, self.win, Options { sack, ..Options::NONE });
    }

    /// A router that takes packets of `mtu` bytes returns `frame`, which we sent: RFC 792's fragmentation needed with the MTU of
    /// RFC 1191 section 4, or RFC 4443 section 3.2's packet too big.
    pub fn too_big(&mut self, mtu: u32, frame: &[u8]) {
        let packet = &frame[14..];
        let mut message = vec![0; 8];
        if self.six {
            message[0] = 2;
            message[4..8].copy_from_slice(&mtu.to_be_bytes());
            message.extend_from_slice(&packet[..packet.len().min(1232)]);
            let sum = pseudo_ipv6(CLIENT6, SERVER6, ipv6::PROTOCOL_ICMPV6, message.len() as u32)
                .bytes(&message)
                .finish();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            self.inject_packet(ipv6::PROTOCOL_ICMPV6, 64, &message);
        } else {
            (message[0], message[1]) = (3, 4);
            message[6..8].copy_from_slice(&(mtu as u16).to_be_bytes());
            message.extend_from_slice(&packet[..28]);
            let sum = Sum::new().bytes(&message).finish();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            self.inject_packet(ipv4::PROTOCOL_ICMP, 64, &message);
        }
    }

    /// The segments that the engine sends now, oldest first. Its questions by ARP are none.
    pub fn sent(&mut self) -> Vec<Seg> {
        self.host.transmit(self.now);
        let is_segment = |frame: &Vec<u8>| frame[12..14] != ethernet::ETHERTYPE_ARP.to_be_bytes();
        let frames: Vec<Vec<u8>> = self.host.outbox.frames.drain(..).filter(is_segment).collect();
        let sent = frames
            .iter()
            .map(|frame| {
                let (_, packet) = ethernet::Header::parse(frame).expect("Ethernet");
                let packet = ip::Packet::parse(packet).expect("IP");
                let segment = Segment::parse(packet.payload()).expect("TCP");
                let holds = match (packet.source(), packet.destination()) {
                    (IpAddr::V4(from), IpAddr::V4(to)) => segment.checksum_holds(from, to),
                    (IpAddr::V6(from), IpAddr::V6(to)) => segment.checksum_holds(from, to),
                    _ => false,
                };
                assert!(holds, "a wrong checksum was sent");
                assert_eq!(packet.source(), self.local_end().ip());
                if segment.flags().contains(SYN) {
                    self.iss = segment.sequence();
                }
                self.last_options = segment.options().expect("options");
                let has_ack = segment.flags().contains(ACK);
                Seg {
                    flags: segment.flags(),
                    seq: segment.sequence().wrapping_sub(self.iss),
                    ack: if has_ack { segment.acknowledgment().wrapping_sub(PEER_ISS) } else { 0 },
                    len: segment.payload().len(),
                    win: segment.window(),
                    options: self.last_options,
                    ecn: packet.ecn(),
                }
            })
            .collect();
        self.frames = frames;
        sent
    }

    /// The engine's neighbour discovery, pings and ARP: frames that [`Script::sent`] does not take.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        self.host.transmit(self.now);
        self.host.outbox.frames.drain(..).collect()
    }

    /// The engine sends exactly this now.
    #[track_caller]
    pub fn expect(&mut self, expected: &[(Flags, u32, u32, usize)]) {
        let sent: Vec<_> = self.sent().into_iter().map(|s| (s.flags, s.seq, s.ack, s.len)).collect();
        assert_eq!(sent, expected, "(flags, seq, ack, len)");
    }

    /// As [`Script::expect`] of one segment, with these SACK blocks, relative to the peer's SYN.
    #[track_caller]
    pub fn expect_sack(&mut self, segment: (Flags, u32, u32, usize), blocks: &[(u32, u32)]) {
        let sent: Vec<_> =
            self.sent().into_iter().map(|s| ((s.flags, s.seq, s.ack, s.len), s.blocks())).collect();
        assert_eq!(sent, [(segment, blocks.to_vec())], "(flags, seq, ack, len), SACK blocks");
    }

    /// Nothing for `ms` milliseconds less two (the clock is a millisecond, and timers fire late rather than early), then exactly
    /// this within four. It is then when that was sent.
    #[track_caller]
    pub fn expect_after(&mut self, ms: u64, expected: &[(Flags, u32, u32, usize)]) {
        self.wait_ms(ms - 2);
        self.expect(&[]);
        let end = self.now + Duration::from_millis(4);
        while let Some(next) = self.host.engine.next_deadline().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.host.engine.advance(self.now, &mut self.host.owner);
            self.host.transmit(self.now);
            if !self.host.outbox.frames.is_empty() {
                break;
            }
        }
        self.expect(expected);
    }

    /// A listener, and a connection that the peer opened to it over a path with this round trip.
    #[track_caller]
    pub fn passive_open_over(&mut self, rtt_ms: u64) -> FlowId {
        self.host.engine.listen(self.local_end(), 8).expect("listen");
        self.inject(SYN, 0, 0, 0, self.win);
        assert_eq!(self.sent().len(), 1);
        self.wait_ms(rtt_ms);
        self.inject(ACK, 1, 1, 0, self.win);
        let (flow, _) = self.host.owner.incoming.pop_front().expect("an incoming flow");
        self.host.engine.accepted(flow);
        assert_eq!(self.state(flow), State::Established);
        self.expect(&[]);
        flow
    }

    /// The engine sends `segments` full segments of `mss` bytes, from sequence number `from` on; the last has PSH if `all` says
    /// that no more are promised.
    #[track_caller]
    pub fn expect_full(&mut self, from: u32, segments: usize, mss: usize, all: bool) {
        let sent: Vec<_> = self.sent().into_iter().map(|s| (s.flags, s.seq, s.len)).collect();
        let expected: Vec<_> = (0..segments)
            .map(|index| {
                let last = all && index + 1 == segments;
                (if last { PSH | ACK } else { ACK }, from + (index * mss) as u32, mss)
            })
            .collect();
        assert_eq!(sent, expected, "(flags, seq, len)");
    }

    /// A listener, and a connection that the peer opened to it.
    #[track_caller]
    pub fn passive_open(&mut self) -> FlowId {
        self.host.engine.listen(self.local_end(), 8).expect("listen");
        self.inject(SYN, 0, 0, 0, 65_535);
        self.expect(&[(SYN | ACK, 0, 1, 0)]);
        self.inject(ACK, 1, 1, 0, 65_535);
        let (flow, _) = self.host.owner.incoming.pop_front().expect("an incoming flow");
        self.host.engine.accepted(flow);
        assert_eq!(self.state(flow), State::Established);
        self.expect(&[]);
        flow
    }

    /// From now on the peer is another one: `number` of many.
    pub fn play(&mut self, number: u32) {
        self.peer.set_ip(std::net::Ipv4Addr::new(10, 77, 1 + (number >> 14) as u8, 7));
        self.peer.set_port(10_000 + (number & 0x3fff) as u16);
    }

    /// A connection that the peer opens to a listener that is there. Sets [`Script::iss`], which names the flow to the peer.
    #[track_caller]
    pub fn open(&mut self, win: u16) -> FlowId {
        self.inject(SYN, 0, 0, 0, win);
        self.sent();
        self.inject(ACK, 1, 1, 0, win);
        let (flow, _) = self.host.owner.incoming.pop_front().expect("an incoming flow");
        self.host.engine.accepted(flow);
        self.sent();
        flow
    }

    pub fn state(&self, flow: FlowId) -> State {
        self.host.engine.info(flow).state
    }

    /// The payload that the peer sent so far has arrived whole.
    #[track_caller]
    pub fn received(&self, flow: FlowId, bytes: usize) {
        let received = &self.host.owner.streams[&flow].received;
        assert_eq!(received.len(), bytes);
        assert!(received.iter().enumerate().all(|(index, byte)| *byte == pattern(77, index as u64)));
    }
}
