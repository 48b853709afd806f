//! Two engines on virtual time, with a link between them that has a bandwidth and a queue, and loses, marks, reorders,
//! duplicates, corrupts and delays, each direction as its own [`Faults`] say. Every random choice comes from one seed.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(unreachable_pub, missing_docs, reason = "a module of tests")]

pub mod script;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use overfly_engine::{
    Config, Datagram, Engine, Error, Event, Failure, FlowId, Instant, ListenerId, Owner, Report, UNWANTED,
    UdpId, Unreachable,
};
pub use overfly_testing::Random;
use overfly_wire::checksum::Sum;
use overfly_wire::tcp::{Segment, write_checksum};
use overfly_wire::{FrameSink, MacAddr, Unfinished, ethernet, ipv4};

/// What one direction of the link does to frames. Probabilities in per mille, delays in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Bits of frames a second; 0 sends at once.
    pub bandwidth_bps: u64,
    /// Bytes that wait for the bandwidth at most: a frame that does not fit is dropped (drop-tail). 0 has no end.
    pub queue_bytes: u64,
    /// Above so many waiting bytes a frame is marked (RFC 3168 section 5) or, where its sender cannot ECN, dropped.
    pub mark_bytes: Option<u64>,
    pub loss: u64,
    /// Losses that come together.
    pub bursts: Bursts,
    pub duplication: u64,
    pub corruption: u64,
    pub reordering: u64,
    pub delay_us: u64,
    pub jitter_us: u64,
}

/// Gilbert's model: a good and a bad state, every frame lost in the bad one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bursts {
    /// From good to bad, in per mille of the frames.
    pub enter: u64,
    /// From bad to good: a burst is 1000 / `leave` frames long on average.
    pub leave: u64,
}

/// A link that was silent for so long is good again. A burst is counted in frames: of acknowledgments that come one by one, each
/// later than the last, it would take minutes of them, more than TIME-WAIT answers for, and the connection would end in a reset.
const BURST_ENDS_AFTER: Duration = Duration::from_millis(500);

/// What became of the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub frames: u64,
    pub bytes: u64,
    pub lost: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    pub marked: u64,
    pub duplicated: u64,
    pub corrupted: u64,
    pub reordered: u64,
}

/// One direction of the link.
#[derive(Debug, Default)]
struct Direction {
    /// When the last frame that waits has left, in nanoseconds.
    busy_until_ns: u64,
    last_arrival: Instant,
    in_burst: bool,
    /// When the last frame was sent.
    last_sent: Instant,
    carried: Carried,
}

/// Sets CE where the sender said that it can ECN (RFC 3168 section 5). False where it did not.
fn mark_congestion(frame: &mut [u8]) -> bool {
    match frame {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, _, tos, ..] if *tos & 3 != 0 => {
            *tos |= 3;
            frame[24..26].fill(0);
            let sum = Sum::new().bytes(&frame[14..34]).finish();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            true
        }
        // The traffic class lies across the first two bytes (RFC 8200 section 3).
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, _, class, ..] if *class & 0x30 != 0 => {
            *class |= 0x30;
            true
        }
        _ => false,
    }
}

/// The byte at `offset` of the stream that the end named `seed` sends.
pub fn pattern(seed: u64, offset: u64) -> u8 {
    ((offset.wrapping_mul(0x9e37_79b9) ^ (offset >> 9) ^ seed.wrapping_mul(0x85eb_ca6b)) >> 3) as u8
}

/// A flow as its owner sees it.
#[derive(Debug, Default, Clone)]
pub struct Stream {
    /// Names the stream that this end sends.
    pub seed: u64,
    pub received: Vec<u8>,
    /// Bytes received, also where they are not kept.
    pub received_bytes: u64,
    pub unread: usize,
    pub acknowledged: u64,
    pub promised: u64,
    pub connected: bool,
    pub remote_closed: bool,
    pub failed: Option<Failure>,
    pub released: bool,
}

/// An owner that remembers everything.
#[derive(Default)]
pub struct Recorder {
    pub streams: BTreeMap<FlowId, Stream>,
    pub incoming: VecDeque<(FlowId, ListenerId)>,
    /// Finished flows whose ids may come again.
    pub past: Vec<Stream>,
    /// Deliveries are consumed at once, or held until the test reads them.
    pub hold: bool,
    /// Nothing more is read, of whatever flow.
    pub unwanted: bool,
    /// Peers of which nothing was heard.
    pub unheard: Vec<IpAddr>,
    /// Segments with urgent data are somebody else's.
    pub leaves_urgent: bool,
    /// Payload is neither made nor kept, only counted: for measurements of many bytes.
    pub count_only: bool,
    /// Payload of this many bytes or more is read from here by the link.
    pub promises_from: Option<usize>,
    /// The UDP sockets that are open; others must not be heard of.
    pub sockets: BTreeSet<UdpId>,
    /// Payloads of datagrams that arrived.
    pub datagrams: Vec<Vec<u8>>,
    /// Datagrams that are known not to have arrived.
    pub datagrams_failed: usize,
    pub next_seed: u64,
}

impl Owner for Recorder {
    fn unheard(&mut self, remote: IpAddr) {
        self.unheard.push(remote);
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        if let Event::Incoming { listener } = event {
            self.next_seed += 1;
            let stream = Stream { seed: self.next_seed, connected: true, ..Stream::default() };
            assert!(self.streams.insert(flow, stream).is_none(), "{flow:?} comes while it is in use");
            self.incoming.push_back((flow, listener));
            return;
        }
        let stream = self.streams.get_mut(&flow).unwrap_or_else(|| panic!("{event:?} for unknown {flow:?}"));
        assert!(!stream.released, "{event:?} after Released");
        match event {
            Event::Incoming { .. } => {}
            Event::Connected => stream.connected = true,
            Event::Acknowledged { offset } => {
                assert!(offset > stream.acknowledged && offset <= stream.promised, "{offset} of {stream:?}");
                stream.acknowledged = offset;
            }
            Event::RemoteClosed => {
                assert!(!stream.remote_closed, "two FINs");
                stream.remote_closed = true;
            }
            Event::Failed(failure) => stream.failed = Some(failure),
            Event::Released => {
                stream.released = true;
                if let Some(stream) = self.streams.remove(&flow) {
                    self.past.push(stream);
                }
            }
        }
    }

    fn urgent(&mut self, _flow: FlowId) -> bool {
        self.leaves_urgent
    }

    fn is_unread(&self, flow: FlowId) -> bool {
        self.streams.get(&flow).is_some_and(|stream| stream.unread > 0)
    }

    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let stream = self.streams.get_mut(&flow).expect("a flow that this owner knows");
        assert!(!stream.remote_closed && !stream.released, "data after the end");
        if self.unwanted {
            return UNWANTED;
        }
        stream.received_bytes += data.len() as u64;
        if !self.count_only {
            stream.received.extend_from_slice(data);
        }
        if self.hold {
            stream.unread += data.len();
            0
        } else {
            data.len()
        }
    }

    fn promise(&mut self, _flow: FlowId, _offset: u64, length: usize) -> bool {
        self.promises_from.is_some_and(|least| length >= least)
    }

    fn fill(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) {
        let stream = &self.streams[&flow];
        assert!(offset >= stream.acknowledged, "acknowledged bytes are asked for again");
        assert!(offset + buffer.len() as u64 <= stream.promised, "bytes are asked for that nobody promised");
        if self.count_only {
            return;
        }
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern(stream.seed, offset + index as u64);
        }
    }

    fn datagram(&mut self, socket: UdpId, datagram: Datagram<'_>) {
        assert!(self.sockets.contains(&socket), "a datagram for {socket:?}, which is closed");
        self.datagrams.push(datagram.payload.to_vec());
    }

    fn datagram_failed(&mut self, socket: UdpId, remote: SocketAddr, why: Unreachable, _: &Report<'_>) {
        assert!(self.sockets.contains(&socket), "{why:?} of {remote} for {socket:?}, which is closed");
        self.datagrams_failed += 1;
    }

    /// Every other piece is summed here.
    fn fill_and_sum(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) -> Option<Sum> {
        self.fill(flow, offset, buffer);
        offset.is_multiple_of(2).then(|| Sum::new().bytes(buffer))
    }
}

/// Frames that one side wrote.
pub struct Outbox {
    frame: Vec<u8>,
    pub frames: VecDeque<Vec<u8>>,
    pub room: usize,
}

impl Outbox {
    pub fn new() -> Self {
        Self { frame: vec![0xa5; 65_600], frames: VecDeque::new(), room: usize::MAX }
    }
}

impl FrameSink for Outbox {
    fn frame(&mut self) -> Option<&mut [u8]> {
        (self.frames.len() < self.room).then_some(&mut self.frame[..])
    }

    fn commit(&mut self, length: usize) {
        self.frames.push_back(self.frame[..length].to_vec());
    }

    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        if left.checksum_from == 0 {
            self.commit(length);
        } else {
            self.frames.extend(finished(&self.frame[..length], left));
        }
    }
}

/// What a device with offloads makes of a frame with a TCP segment: segments whose sums hold.
pub fn finished(frame: &[u8], left: Unfinished) -> Vec<Vec<u8>> {
    let tcp = usize::from(left.checksum_from);
    let headers = tcp + usize::from(frame[tcp + 12] >> 4) * 4;
    assert!(left.segment_len == 0 || headers == usize::from(left.headers_len), "where the payload begins");
    let payload = &frame[headers..];
    let most = if left.segment_len == 0 { payload.len() } else { usize::from(left.segment_len) };
    let count = payload.len().div_ceil(most.max(1)).max(1);
    let segments = (0..count).map(|index| {
        let piece = &payload[index * most..payload.len().min((index + 1) * most)];
        let mut cut = [&frame[..headers], piece].concat();
        let number = u32::from_be_bytes([cut[tcp + 4], cut[tcp + 5], cut[tcp + 6], cut[tcp + 7]]);
        cut[tcp + 4..tcp + 8].copy_from_slice(&number.wrapping_add((index * most) as u32).to_be_bytes());
        if index + 1 < count {
            // FIN and PSH are the last segment's.
            cut[tcp + 13] &= !0x09;
        }
        if index > 0 {
            // CWR is the first one's.
            cut[tcp + 13] &= !0x80;
        }
        if cut[12..14] == [8, 0] {
            return extended(&cut, 0);
        }
        let length = (cut.len() - 54) as u16;
        cut[18..20].copy_from_slice(&length.to_be_bytes());
        let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&cut[at..at + 16]).expect("16 bytes"));
        let (source, destination) = (address(22), address(38));
        write_checksum(&mut cut[54..], source, destination);
        cut
    });
    segments.collect()
}

/// One line about a frame, as packet scripts have it: for messages of failing tests.
pub fn describe(frame: &[u8]) -> String {
    let Ok((_, packet)) = ethernet::Header::parse(frame) else { return "not Ethernet".into() };
    let Ok(packet) = ipv4::Packet::parse(packet) else { return "not IPv4".into() };
    let Ok(segment) = Segment::parse(packet.payload()) else { return "not TCP".into() };
    let (sequence, length) = (segment.sequence(), segment.payload().len());
    let flags = segment.flags();
    format!(
        "{}>{} {flags:?} {sequence}:{}({length}) ack {} win {}",
        segment.source_port(),
        segment.destination_port(),
        sequence.wrapping_add(length as u32),
        segment.acknowledgment(),
        segment.window(),
    )
}

/// A TCP frame over IPv4 with `more` bytes of payload behind its own, and sums that hold.
pub fn extended(frame: &[u8], more: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.resize(frame.len() + more, b'X');
    let length = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame[24..26].fill(0);
    let sum = Sum::new().bytes(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let address = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    let (source, destination) = (address(26), address(30));
    write_checksum(&mut frame[34..], source, destination);
    frame
}

/// One engine with its owner.
pub struct Host {
    pub engine: Engine,
    pub owner: Recorder,
    pub outbox: Outbox,
}

impl Host {
    pub fn new(config: Config) -> Self {
        let next_seed = u64::from(config.address.to_bits()) << 20;
        Self {
            engine: Engine::new(config).expect("a valid configuration"),
            owner: Recorder { next_seed, ..Recorder::default() },
            outbox: Outbox::new(),
        }
    }

    pub fn connect(
        &mut self,
        now: Instant,
        local: impl Into<SocketAddr>,
        remote: impl Into<SocketAddr>,
    ) -> FlowId {
        self.try_connect(now, local, remote).expect("connect")
    }

    pub fn try_connect(
        &mut self,
        now: Instant,
        local: impl Into<SocketAddr>,
        remote: impl Into<SocketAddr>,
    ) -> Result<FlowId, Error> {
        let flow = self.engine.connect(now, local, remote)?;
        self.owner.next_seed += 1;
        let stream = Stream { seed: self.owner.next_seed, ..Stream::default() };
        assert!(self.owner.streams.insert(flow, stream).is_none(), "{flow:?} is in use");
        Ok(flow)
    }

    pub fn send(&mut self, flow: FlowId, bytes: usize) {
        self.owner.streams.get_mut(&flow).expect("a flow of ours").promised += bytes as u64;
        self.engine.send(flow, bytes);
    }

    pub fn read_all(&mut self, flow: FlowId) {
        let stream = self.owner.streams.get_mut(&flow).expect("a flow of ours");
        let bytes = core::mem::take(&mut stream.unread);
        if bytes > 0 {
            self.engine.consumed(flow, bytes);
        }
    }

    pub fn transmit(&mut self, now: Instant) {
        self.engine.transmit(now, &mut self.owner, &mut self.outbox);
    }
}

pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

pub fn config(address: Ipv4Addr) -> Config {
    let last = address.octets()[3];
    let mut config = Config::new(MacAddr([2, 0, 0, 0, 0, last]), address, 16);
    config.alone = true;
    config.max_flows = 4096;
    config.hash_key = [last; 16];
    config
}

/// Two hosts and the link between them.
pub struct Network {
    pub client: Host,
    pub server: Host,
    pub now: Instant,
    pub random: Random,
    pub to_server: Faults,
    pub to_client: Faults,
    /// Frames on their way: when they arrive, a tie breaker, to the server or not.
    flying: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
    serial: u64,
    /// To the client, and to the server.
    directions: [Direction; 2],
    stalls: u32,
    /// Print every frame.
    pub trace: bool,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, config(CLIENT), config(SERVER))
    }

    pub fn with(seed: u64, client: Config, server: Config) -> Self {
        let mut random = Random(seed);
        let faults = Faults { delay_us: 50, ..Faults::default() };
        Self {
            client: Host::new(client),
            server: Host::new(server),
            // Anywhere, also where ticks wrap.
            now: Instant::from_micros(random.below(1 << 44)),
            random,
            to_server: faults,
            to_client: faults,
            flying: BTreeMap::new(),
            serial: 0,
            directions: <[Direction; 2]>::default(),
            stalls: 0,
            trace: std::env::var_os("OVERFLY_TRACE").is_some(),
        }
    }

    /// The same in both directions.
    pub fn set_faults(&mut self, faults: Faults) {
        (self.to_server, self.to_client) = (faults, faults);
    }

    /// What became of the frames that were sent to the server, or to the client.
    pub fn carried(&self, to_server: bool) -> Carried {
        self.directions[usize::from(to_server)].carried
    }

    /// A frame from a third party, that arrives now.
    pub fn inject(&mut self, to_server: bool, frame: &[u8]) {
        let host = if to_server { &mut self.server } else { &mut self.client };
        host.engine.receive(self.now, frame, &mut host.owner);
    }

    fn launch(&mut self, to_server: bool, mut frame: Vec<u8>) {
        if self.trace {
            let arrow = if to_server { "->" } else { "<-" };
            eprintln!("{:>12} {arrow} {}", self.now.as_micros(), describe(&frame));
        }
        let faults = if to_server { self.to_server } else { self.to_client };
        let direction = &mut self.directions[usize::from(to_server)];
        let carried = &mut direction.carried;
        carried.frames += 1;
        carried.bytes += frame.len() as u64;
        // The queue comes first, the wire behind it loses.
        let now_ns = self.now.as_micros() * 1000;
        let mut wait_us = 0;
        if faults.bandwidth_bps > 0 {
            let backlog_ns = direction.busy_until_ns.saturating_sub(now_ns);
            let waiting = (u128::from(backlog_ns) * u128::from(faults.bandwidth_bps) / 8_000_000_000) as u64;
            if faults.queue_bytes > 0 && waiting + frame.len() as u64 > faults.queue_bytes {
                carried.overflowed += 1;
                return;
            }
            if faults.mark_bytes.is_some_and(|bytes| waiting > bytes) {
                if !mark_congestion(&mut frame) {
                    carried.overflowed += 1;
                    return;
                }
                carried.marked += 1;
            }
            let time_ns = frame.len() as u64 * 8_000_000_000 / faults.bandwidth_bps;
            direction.busy_until_ns = direction.busy_until_ns.max(now_ns) + time_ns;
            wait_us = (direction.busy_until_ns - now_ns).div_ceil(1000);
        }
        let turn = if direction.in_burst { faults.bursts.leave } else { faults.bursts.enter };
        if turn > 0 && self.random.chance(turn) {
            direction.in_burst = !direction.in_burst;
        }
        direction.in_burst &= faults.bursts.leave > 0 && self.now - direction.last_sent < BURST_ENDS_AFTER;
        direction.last_sent = self.now;
        if direction.in_burst || self.random.chance(faults.loss) {
            carried.lost += 1;
            return;
        }
        if self.random.chance(faults.corruption) {
            // Behind the Ethernet header: nothing protects that one here (no FCS).
            let at = 14 + self.random.below(frame.len() as u64 - 14) as usize;
            frame[at] ^= 1 << self.random.below(8);
            carried.corrupted += 1;
        }
        let copies = 1 + u64::from(self.random.chance(faults.duplication));
        carried.duplicated += copies - 1;
        for _ in 0..copies {
            let mut delay = wait_us + faults.delay_us + self.random.below(faults.jitter_us + 1);
            let reorder = self.random.chance(faults.reordering);
            if reorder {
                delay += faults.delay_us + self.random.below(3 * faults.delay_us + 100);
                carried.reordered += 1;
            }
            let mut arrival = self.now + Duration::from_micros(delay);
            if !reorder {
                arrival = arrival.max(direction.last_arrival);
                direction.last_arrival = arrival;
            }
            self.serial += 1;
            self.flying.insert((arrival, self.serial), (to_server, frame.clone()));
        }
    }

    /// Lets both sides send what they have.
    pub fn transmit(&mut self) {
        for to_server in [true, false] {
            let now = self.now;
            let host = if to_server { &mut self.client } else { &mut self.server };
            host.transmit(now);
            while let Some(frame) =
                if to_server { &mut self.client } else { &mut self.server }.outbox.frames.pop_front()
            {
                self.launch(to_server, frame);
            }
        }
    }

    /// Goes on to whatever happens next, and lets it happen. False when nothing will.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.flying.keys().next().map(|&(at, _)| at);
        let timers = [self.client.engine.next_deadline(), self.server.engine.next_deadline()];
        let Some(next) = timers.into_iter().flatten().chain(arrival).min() else { return false };
        if next <= self.now {
            self.stalls += 1;
            assert!(
                self.stalls < 1000,
                "time stands still at {next:?}: an engine wants to be called for nothing"
            );
        } else {
            self.stalls = 0;
        }
        self.now = self.now.max(next);
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to_server, frame) = entry.remove();
            let host = if to_server { &mut self.server } else { &mut self.client };
            host.engine.receive(self.now, &frame, &mut host.owner);
        }
        for host in [&mut self.client, &mut self.server] {
            host.engine.advance(self.now, &mut host.owner);
        }
        self.transmit();
        true
    }

    /// Steps until `done`, for at most `limit` of virtual time.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            if self.now > end || !self.step() {
                return done(self);
            }
        }
        true
    }

    /// Steps for `time` of virtual time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.step() {}
        self.now = self.now.max(end);
    }
}
