//! One engine and a peer that a test plays by hand, segment by segment, as packet scripts do.

use std::net::SocketAddrV4;
use std::time::Duration;

use overfly_engine::{Config, FlowId, Instant, State};
use overfly_wire::tcp::{Flags, Header, Options, Segment, Timestamps, write_checksum};
use overfly_wire::{MacAddr, ethernet, ipv4};

use super::{CLIENT, Host, SERVER, config, pattern};

/// A segment as a test writes and reads it: sequence numbers relative to each side's SYN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seg {
    pub flags: Flags,
    pub seq: u32,
    pub ack: u32,
    pub len: usize,
    pub win: u16,
}

pub const SYN: Flags = Flags::SYN;
pub const ACK: Flags = Flags::ACK;
pub const RST: Flags = Flags::RST;
pub const FIN: Flags = Flags::FIN;
pub const PSH: Flags = Flags::PSH;

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
    /// The type of service of the peer's packets: its last two bits are ECN's (RFC 3168 section 5).
    pub tos: u8,
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
            tos: 0,
        }
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
            options.timestamps = Some(Timestamps { value, echo: 0 });
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
        let mut frame = vec![0; 34 + header.header_len() + len];
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        ethernet::Header { destination: mac(1), source: mac(2), ethertype: ethernet::ETHERTYPE_IPV4 }
            .emit(&mut frame);
        let (source, destination) = (*self.peer.ip(), *self.local.ip());
        ipv4::Header {
            source,
            destination,
            protocol: ipv4::PROTOCOL_TCP,
            ttl: 64,
            tos: self.tos,
            identification: 0,
            dont_fragment: true,
            payload_len: (header.header_len() + len) as u16,
        }
        .emit(&mut frame[14..]);
        let header_len = header.emit(&mut frame[34..]);
        frame[34 + header_len..].copy_from_slice(data);
        write_checksum(&mut frame[34..], source, destination);
        self.host.engine.receive(self.now, &frame, &mut self.host.owner);
    }

    /// What the engine sends now, oldest first.
    pub fn sent(&mut self) -> Vec<Seg> {
        self.host.transmit(self.now);
        let frames: Vec<Vec<u8>> = self.host.outbox.frames.drain(..).collect();
        frames
            .iter()
            .map(|frame| {
                let (_, packet) = ethernet::Header::parse(frame).expect("Ethernet");
                let packet = ipv4::Packet::parse(packet).expect("IPv4");
                let segment = Segment::parse(packet.payload()).expect("TCP");
                assert!(
                    segment.checksum_holds(packet.source(), packet.destination()),
                    "a wrong checksum was sent"
                );
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
                }
            })
            .collect()
    }

    /// The engine sends exactly this now.
    #[track_caller]
    pub fn expect(&mut self, expected: &[(Flags, u32, u32, usize)]) {
        let sent: Vec<_> = self.sent().into_iter().map(|s| (s.flags, s.seq, s.ack, s.len)).collect();
        assert_eq!(sent, expected, "(flags, seq, ack, len)");
    }

    /// A listener, and a connection that the peer opened to it.
    #[track_caller]
    pub fn passive_open(&mut self) -> FlowId {
        self.host.engine.listen(self.local, 8).expect("listen");
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
