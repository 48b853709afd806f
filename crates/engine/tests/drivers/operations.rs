//! What two owners do, between frames that the link loses, doubles, reorders, damages and forges: with connections, and with
//! datagrams.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use overfly_engine::{Algorithm, Ecn, FlowId, Instant, ListenerId, SendError, State, SynCookies};
use overfly_testing::bytes::Bytes;
use overfly_wire::ipv4;

use super::{limited, pass, transmit, wind_up, within_limits};
use crate::harness::{CLIENT, Host, SERVER, config, pattern};

const ADDRESS6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2), Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)];

/// Bytes that one flow promises at most.
const MOST_PROMISED: u64 = 200_000;

/// A datagram of so many bytes; no two lengths look alike.
fn said(length: u16) -> Vec<u8> {
    let length = length % 1600;
    (0..length).map(|at| pattern(u64::from(length), u64::from(at))).collect()
}

#[derive(Clone)]
struct Flying {
    frame: Vec<u8>,
    /// One bit is wrong: a second could hide it from the sums.
    damaged: bool,
}

struct World {
    hosts: [Host; 2],
    /// Frames on their way to each host.
    wires: [VecDeque<Flying>; 2],
    listeners: [Vec<ListenerId>; 2],
    /// Streams, by their seeds, whose owner promises no more.
    shut: [BTreeSet<u64>; 2],
    now: Instant,
    /// Somebody else sent segments: the streams are no longer what the other end sent.
    forged: bool,
    addresses: [IpAddr; 2],
    /// Larger packets vanish on their way.
    swallows: usize,
}

/// Decodes operations until the bytes end, then lets everything finish.
pub fn operations(data: &[u8]) {
    let mut bytes = Bytes(data);
    let (Some(start), Some(more), Some(extra)) = (bytes.byte(), bytes.byte(), bytes.byte()) else { return };
    let mut configs = [limited(config(CLIENT)), limited(config(SERVER))];
    for config in &mut configs {
        config.receive_window = [1024, 8192, 32_768, 1 << 20][usize::from(start & 3)];
        config.mtu = [576, 1500][usize::from(start >> 2 & 1)];
        if more & 1 != 0 {
            config.mtu = config.mtu.max(1280);
            config.address6 = Some(config.address.to_ipv6_mapped());
        }
        config.ecn = [Ecn::Accept, Ecn::Ask][usize::from(more >> 1 & 1)];
        config.congestion = [Algorithm::Cubic, Algorithm::Bbr][usize::from(more >> 2 & 1)];
        config.syn_cookies = [SynCookies::WhenFull, SynCookies::Off][usize::from(more >> 3 & 1)];
        config.sack = more & 16 == 0;
        config.timestamps = more & 32 == 0;
        config.fast_open_client = extra & 1 != 0;
        config.fast_open_server = extra & 1 != 0;
        config.max_fast_open = 2;
        config.mtu_probing = extra & 2 != 0;
        config.checksum_offload = extra & 4 != 0;
        config.segment_offload = [0, 8000, 65_435][usize::from(extra >> 3 & 3) % 3];
    }
    // The least that either family's paths take, or more than any frame.
    let swallows = [usize::MAX, if more & 1 != 0 { 1280 } else { 576 }][usize::from(extra >> 5 & 1)];
    configs[0].address6 = configs[0].address6.map(|_| ADDRESS6[0]);
    configs[1].address6 = configs[1].address6.map(|_| ADDRESS6[1]);
    let mut world = World {
        hosts: configs.map(Host::new),
        wires: <[VecDeque<Flying>; 2]>::default(),
        listeners: <[Vec<ListenerId>; 2]>::default(),
        shut: <[BTreeSet<u64>; 2]>::default(),
        // Also where ticks wrap.
        now: Instant::from_micros(if start & 8 == 0 { 1 } else { (0xffff_ff00_u64) << 10 }),
        forged: false,
        swallows,
        addresses: if more & 1 == 0 { [CLIENT.into(), SERVER.into()] } else { ADDRESS6.map(IpAddr::V6) },
    };
    for side in 0..2 {
        world.hosts[side].owner.hold = start & (16 << side) != 0;
    }
    world.listen(1, 0);
    world.connect(0, 0, false);
    while world.operate(&mut bytes).is_some() {
        for host in &world.hosts {
            within_limits(host);
        }
    }
    world.finish();
}

impl World {
    fn listen(&mut self, side: usize, port: u16) {
        let address = SocketAddr::new(self.addresses[side], 80 + port);
        if let Ok(listener) = self.hosts[side].engine.listen(address, 3) {
            self.listeners[side].push(listener);
        }
    }

    /// Opens a connection; with data in its SYN, if it may.
    fn connect(&mut self, side: usize, port: u16, fast: bool) {
        let local = SocketAddr::new(self.addresses[side], 40_000 + port / 4);
        let remote = SocketAddr::new(self.addresses[1 - side], 80 + port % 4);
        if let Ok(flow) = self.hosts[side].try_connect(self.now, local, remote)
            && fast
        {
            self.hosts[side].engine.set_fast_open(flow);
            self.hosts[side].send(flow, 100 * usize::from(port));
        }
    }

    /// A flow that the side's owner knows.
    fn flow(&self, side: usize, choice: u8) -> Option<FlowId> {
        let streams = &self.hosts[side].owner.streams;
        streams.keys().nth(usize::from(choice) % streams.len().max(1)).copied()
    }

    fn operate(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let choice = bytes.byte()?;
        let side = usize::from(choice & 1);
        let argument = bytes.byte()?;
        match choice >> 1 & 31 {
            0 => self.connect(side, u16::from(argument % 32), argument & 32 != 0),
            1 => self.listen(side, u16::from(argument % 4)),
            2 => {
                if argument & 15 == 0
                    && let Some(listener) = self.listeners[side].pop()
                {
                    self.hosts[side].engine.close_listener(listener);
                }
            }
            3..=19 => {
                let flow = self.flow(side, argument);
                if let Some(flow) = flow {
                    self.with_flow(side, flow, choice >> 1 & 31, bytes)?;
                }
            }
            20..=22 => self.exchange(side, argument),
            23..=25 => {
                self.collect(side);
                self.deliver(side, usize::from(argument % 8));
            }
            26 => {
                let step = [1_000, 41_000, 250_000, 2_000_000, 30_000_000, 100][usize::from(argument % 6)];
                let end = self.now + Duration::from_micros(step);
                for side in 0..2 {
                    pass(&mut self.hosts[side], self.now, end);
                    self.collect(side);
                }
                self.now = end;
            }
            27 => {
                // A link that fills up in the middle.
                let host = &mut self.hosts[side];
                host.outbox.room = usize::from(argument % 5);
                host.transmit(self.now);
                self.collect(side);
            }
            28 => self.datagram(side, argument, bytes)?,
            _ => self.tamper(side, argument, bytes)?,
        }
        Some(())
    }

    /// Opens, moves and closes UDP sockets, and sends from them.
    fn datagram(&mut self, side: usize, argument: u8, bytes: &mut Bytes<'_>) -> Option<()> {
        let now = self.now;
        let host = &mut self.hosts[side];
        let [own, other] = [side, 1 - side].map(|side| self.addresses[side]);
        let port = u16::from(argument >> 3 & 3);
        let peer = SocketAddr::new(other, 50 + port);
        let any = if own.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let sockets = &mut host.owner.sockets;
        let Some(&socket) = sockets.iter().nth(bytes.below(8)? % sockets.len().max(1)) else {
            // The first of a side; whoever answers may be there, or not.
            sockets.extend(host.engine.udp_open(SocketAddr::new(own, 50 + port), None));
            return Some(());
        };
        match argument & 7 {
            0 if sockets.len() < 8 => {
                let local = SocketAddr::new(if argument & 64 == 0 { own } else { any }, 50 + port);
                let remote = (argument & 128 != 0).then_some(peer);
                sockets.extend(host.engine.udp_open(local, remote));
            }
            1 => {
                sockets.remove(&socket);
                host.engine.udp_close(socket);
            }
            2 => {
                let (local, _) = host.engine.udp_ends(socket);
                let _ = host.engine.udp_connect(socket, SocketAddr::new(own, local.port()), peer);
            }
            3 => {
                let _ = host.engine.udp_disconnect(socket);
            }
            _ => {
                let payload = said(bytes.word()?);
                let to = (argument & 32 == 0).then_some(peer);
                let sent = host.engine.udp_send(now, socket, &mut host.outbox, None, to, &payload);
                if let Err(SendError::TooBig(mtu)) = sent {
                    assert!(
                        payload.len() + 48 > usize::from(mtu),
                        "{} bytes do not fit {mtu}",
                        payload.len()
                    );
                }
                self.collect(side);
            }
        }
        Some(())
    }

    fn with_flow(&mut self, side: usize, flow: FlowId, what: u8, bytes: &mut Bytes<'_>) -> Option<()> {
        let now = self.now;
        let host = &mut self.hosts[side];
        let stream = host.owner.streams[&flow].seed;
        match what {
            3..=6 => {
                let amount = u64::from(bytes.word()?);
                let room = MOST_PROMISED.saturating_sub(host.owner.streams[&flow].promised);
                if !self.shut[side].contains(&stream) {
                    host.send(flow, amount.min(room) as usize);
                }
            }
            7..=9 => host.read_all(flow),
            10 => {
                let stream = host.owner.streams.get_mut(&flow).expect("a flow of ours");
                let part = stream.unread.min(usize::from(bytes.byte()?));
                stream.unread -= part;
                host.engine.consumed(flow, part);
            }
            11 => {
                self.shut[side].insert(stream);
                host.engine.shutdown(flow);
            }
            12 => {
                self.shut[side].insert(stream);
                host.engine.close(flow);
            }
            13 => {
                if bytes.byte()? & 3 == 0 {
                    self.shut[side].insert(stream);
                    host.engine.abort(flow);
                }
            }
            14 => host.engine.set_no_delay(flow, bytes.byte()? & 1 == 0),
            15 => host.engine.set_cork(flow, bytes.byte()? & 1 == 0),
            16 => {
                let interval = [None, Some(1), Some(7_200_000)][bytes.below(3)?];
                let keep_alive = interval
                    .map(Duration::from_millis)
                    .map(|interval| overfly_engine::KeepAlive { idle: interval, interval, probes: 9 });
                host.engine.set_keep_alive(now, flow, keep_alive);
            }
            17 => {
                let value = bytes.byte()?;
                match value & 7 {
                    0 => host.engine.set_user_timeout(flow, Duration::from_millis(u64::from(value) * 40)),
                    1 => host.engine.set_quick_ack(flow, value & 8 == 0),
                    2 => host.engine.set_receive_window(flow, 1024 << (value >> 5)),
                    3 => host.engine.set_max_segment(flow, u16::from(value) * 8),
                    4 => {
                        let algorithms = [Algorithm::Cubic, Algorithm::Reno, Algorithm::Bbr];
                        host.engine.set_congestion(flow, algorithms[usize::from(value >> 3) % 3]);
                    }
                    5 => host.engine.set_fast_open(flow),
                    6 => host.engine.set_syn_retries(flow, value >> 3),
                    _ => {}
                }
                let _ = (host.engine.info(flow), host.engine.tuple(flow));
            }
            _ => {
                for (flow, _) in host.owner.incoming.drain(..) {
                    if host.owner.streams.contains_key(&flow) {
                        host.engine.accepted(flow);
                    }
                }
            }
        }
        Some(())
    }

    /// What `side` has written goes onto the other's wire.
    fn collect(&mut self, side: usize) {
        let fits = |frame: &Vec<u8>| frame.len() <= self.swallows.saturating_add(14);
        let frames = self.hosts[side].outbox.frames.drain(..).filter(fits);
        self.wires[1 - side].extend(frames.map(|frame| Flying { frame, damaged: false }));
    }

    fn deliver(&mut self, side: usize, most: usize) {
        for _ in 0..most {
            let Some(Flying { frame, .. }) = self.wires[side].pop_front() else { break };
            let host = &mut self.hosts[side];
            host.engine.receive(self.now, &frame, &mut host.owner);
        }
    }

    /// Both send and receive some, with a little time in between.
    fn exchange(&mut self, side: usize, rounds: u8) {
        for _ in 0..=rounds % 4 {
            for side in [side, 1 - side] {
                transmit(&mut self.hosts[side], self.now);
                self.collect(side);
                self.deliver(1 - side, 64);
            }
            let end = self.now + Duration::from_micros(300);
            for side in 0..2 {
                pass(&mut self.hosts[side], self.now, end);
                self.collect(side);
            }
            self.now = end;
        }
    }

    /// Something befalls the frames that are on their way to `side`.
    fn tamper(&mut self, side: usize, argument: u8, bytes: &mut Bytes<'_>) -> Option<()> {
        let wire = &mut self.wires[side];
        let Some(last) = wire.len().checked_sub(1) else { return Some(()) };
        let at = usize::from(bytes.byte()?) % wire.len();
        match argument % 6 {
            0 => {
                wire.remove(at);
            }
            1 => {
                let frame = wire[at].clone();
                wire.push_back(frame);
            }
            2 => wire.swap(at, last),
            3 => {
                let flying = &mut wire[at];
                let position = 14 + usize::from(bytes.word()?) % (flying.frame.len() - 14);
                if !core::mem::replace(&mut flying.damaged, true) {
                    flying.frame[position] ^= 1 << (argument >> 5);
                }
            }
            4 => {
                // Old frames come again much later.
                let frame = wire[at].clone();
                wire.push_front(frame);
            }
            _ => {
                if argument & 0x30 == 0 {
                    self.forge(side, at, bytes)?;
                }
            }
        }
        Some(())
    }

    /// A frame with another header, and sums that hold.
    fn forge(&mut self, side: usize, at: usize, bytes: &mut Bytes<'_>) -> Option<()> {
        let mut frame = self.wires[side][at].frame.clone();
        if frame.len() < 54 || frame[12..14] != [8, 0] || frame[23] != ipv4::PROTOCOL_TCP {
            return Some(());
        }
        self.forged = true;
        for _ in 0..=bytes.below(3)? {
            let position = 34 + usize::from(bytes.byte()?) % (frame.len() - 34).min(40);
            // Not the data offset, that would only be malformed.
            if position != 46 {
                frame[position] = bytes.byte()?;
            }
        }
        let frame = crate::harness::extended(&frame, 0);
        self.wires[side].push_front(Flying { frame, damaged: false });
        Some(())
    }

    /// The link is good from now on; what the ends still want to say arrives. Then they let go.
    fn finish(&mut self) {
        for _ in 0..20 {
            self.exchange(0, 3);
            for side in 0..2 {
                let flows: Vec<_> = self.hosts[side].owner.streams.keys().copied().collect();
                for flow in flows {
                    self.hosts[side].read_all(flow);
                }
            }
        }
        for host in &self.hosts {
            for datagram in &host.owner.datagrams {
                let length = datagram.len() as u16;
                assert_eq!(*datagram, said(length), "a datagram that nobody sent");
            }
        }
        if !self.forged {
            for side in 0..2 {
                self.is_what_was_sent(side);
            }
            self.arrives();
        }
        for side in 0..2 {
            for listener in core::mem::take(&mut self.listeners[side]) {
                self.hosts[side].engine.close_listener(listener);
            }
            wind_up(&mut self.hosts[side], self.now);
        }
    }

    /// The link is good and owners read: whatever was promised arrives, or its flow fails.
    fn arrives(&mut self) {
        for side in 0..2 {
            for flow in self.flows(side) {
                let engine = &mut self.hosts[side].engine;
                engine.set_cork(flow, false);
                engine.set_keep_alive(self.now, flow, None);
            }
        }
        let end = self.now + Duration::from_secs(1500);
        for _ in 0..20_000 {
            for side in 0..2 {
                transmit(&mut self.hosts[side], self.now);
                self.collect(side);
            }
            for side in 0..2 {
                self.deliver(side, usize::MAX);
                for flow in self.flows(side) {
                    self.hosts[side].read_all(flow);
                }
            }
            if self.hosts.iter().any(|host| host.engine.has_output()) {
                continue;
            }
            let next = self.hosts.iter().filter_map(|host| host.engine.next_deadline()).min();
            let Some(next) = next.filter(|&next| next < end) else { break };
            self.now = self.now.max(next);
            for host in &mut self.hosts {
                host.engine.advance(self.now, &mut host.owner);
            }
        }
        for side in 0..2 {
            for flow in self.flows(side) {
                let info = self.hosts[side].engine.info(flow);
                let done = match info.state {
                    State::Established | State::CloseWait | State::FinWait2 => {
                        info.unacknowledged == 0 && !self.shut_and_unsent(side, flow, info.state)
                    }
                    State::Closed | State::TimeWait => true,
                    _ => false,
                };
                assert!(done, "it stands still: {info:?}");
            }
        }
    }

    /// The owner wants a FIN that was not sent.
    fn shut_and_unsent(&self, side: usize, flow: FlowId, state: State) -> bool {
        state != State::FinWait2 && self.shut[side].contains(&self.hosts[side].owner.streams[&flow].seed)
    }

    fn flows(&self, side: usize) -> Vec<FlowId> {
        self.hosts[side].owner.streams.keys().copied().collect()
    }

    /// Every stream that `side` received is the beginning of one that the other side sends.
    fn is_what_was_sent(&self, side: usize) {
        let of = |side: usize| {
            let owner = &self.hosts[side].owner;
            owner.streams.values().chain(&owner.past)
        };
        for stream in of(side) {
            if stream.received.len() < 16 {
                continue;
            }
            let known = of(1 - side).any(|other| {
                stream.received.iter().enumerate().all(|(at, byte)| *byte == pattern(other.seed, at as u64))
            });
            assert!(known, "{} bytes arrived that nobody sent", stream.received.len());
        }
    }
}
