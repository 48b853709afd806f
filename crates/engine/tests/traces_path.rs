//! Whole transfers over paths that swallow large packets, with the peer played by hand: RFC 4821 and RFC 8899 without messages,
//! RFC 1191 and RFC 8201 with them; and the receive window as the peer sees it grow.

use crate::harness::script::{ACK, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Config, FlowId};

/// The peer's end of a stream, behind a path.
struct Peer {
    /// The largest packet that the path takes.
    path: usize,
    /// Routers say so.
    messages: bool,
    /// What arrived, in order: from, to.
    arrived: Vec<(u32, u32)>,
    /// One of so many packets is lost besides; 0: none.
    loss: u64,
    random: crate::harness::Random,
}

impl Peer {
    fn new(path: usize) -> Self {
        Self { path, messages: false, arrived: vec![(1, 1)], loss: 0, random: crate::harness::Random(7) }
    }

    /// Takes what the engine sent, and acknowledges it 20 ms later. False if there was nothing.
    fn carry(&mut self, s: &mut Script) -> bool {
        let segments = s.sent();
        let frames = s.frames.clone();
        let mut news = false;
        for (segment, frame) in segments.iter().zip(&frames) {
            let length = frame.len() - 14;
            if length > self.path {
                if self.messages {
                    s.too_big(self.path as u32, frame);
                }
                continue;
            }
            if self.loss > 0 && self.random.below(self.loss) == 0 {
                continue;
            }
            self.arrived.push((segment.seq, segment.seq + segment.len as u32));
            news = true;
        }
        self.arrived.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for &(from, to) in &self.arrived {
            match joined.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        self.arrived = joined;
        s.wait_ms(20);
        if news {
            let blocks: Vec<_> = self.arrived[1..].iter().rev().take(3).copied().collect();
            s.sack(self.arrived[0].1, &blocks);
        }
        news
    }

    /// Carries until everything arrived.
    #[track_caller]
    fn carry_all(&mut self, s: &mut Script, flow: FlowId) {
        let headers = if s.six { 60 } else { 40 };
        let mut found = false;
        for _ in 0..5000 {
            let info = s.host.engine.info(flow);
            let fits = usize::from(info.mss) + headers <= self.path;
            assert!(fits || !found, "a size that never arrived: {} of {}", info.mss, self.path);
            found |= fits;
            if info.unacknowledged == 0 {
                return;
            }
            if !self.carry(s) {
                s.wait_ms(200);
            }
        }
        panic!("it stands still: {:?}", s.host.engine.info(flow));
    }
}

fn script(six: bool, mtu: u16) -> (Script, FlowId) {
    let config = Config { mtu_probing: true, mtu, ..config(SERVER) };
    let mut s = if six { Script::six_with(config) } else { Script::with(config) };
    s.options.sack_permitted = true;
    s.options.mss = Some(mtu - if six { 60 } else { 40 });
    s.options.window_scale = Some(7);
    let flow = s.passive_open_over(20);
    (s, flow)
}

#[test]
fn a_transfer_finds_the_size_that_a_silent_path_takes() {
    for (six, path, found) in [
        (false, 1500, 1500),
        (false, 1492, 1492),
        (false, 1454, 1450),
        (false, 1400, 1400),
        (false, 1006, 1006),
        (false, 600, 576),
        (true, 1492, 1492),
        (true, 1300, 1280),
        (true, 1280, 1280),
    ] {
        for loss in [0, 30] {
            let (mut s, flow) = script(six, 1500);
            let mut peer = Peer { loss, ..Peer::new(path) };
            s.host.send(flow, 1_500_000);
            peer.carry_all(&mut s, flow);
            let size = s.host.engine.info(flow).mss + if six { 60 } else { 40 };
            assert!(usize::from(size) <= path, "a size that never arrived: {size} of {path}, loss {loss}");
            if loss == 0 {
                assert_eq!(size, found, "path {path}");
            }
        }
    }
}

#[test]
fn a_transfer_follows_what_routers_say() {
    for six in [false, true] {
        for (path, more) in [(1500, 0), (1400, 0), (1281, 600)] {
            let (mut s, flow) = script(six, 1500);
            let mut peer = Peer { messages: true, ..Peer::new(path) };
            for _ in 0..20 {
                s.host.send(flow, 30_000 + more);
                peer.carry_all(&mut s, flow);
            }
            let size = s.host.engine.info(flow).mss + if six { 60 } else { 40 };
            assert_eq!(usize::from(size), path);
            assert_eq!(s.host.engine.counters().timeouts, 0, "the path says what it takes");
        }
    }
}

#[test]
fn a_probe_that_was_lost_with_others_did_not_arrive() {
    // Sizes grow by steps as wide as the plateaus', on a link with jumbo frames; every tenth packet is lost.
    for path in [1500, 2002, 4352, 8166] {
        let (mut s, flow) = script(false, 9000);
        let mut peer = Peer { loss: 10, ..Peer::new(path) };
        s.host.send(flow, 3_000_000);
        peer.carry_all(&mut s, flow);
        let size = usize::from(s.host.engine.info(flow).mss) + 40;
        assert!(size <= path, "{size} of {path}");
    }
}

#[test]
fn a_probe_is_one_packet_also_where_the_link_cuts() {
    for path in [2002, 3000, 4352, 9000] {
        let mut config = Config { mtu_probing: true, mtu: 9000, ..config(SERVER) };
        config.checksum_offload = true;
        config.segment_offload = 65_435;
        let mut s = Script::with(config);
        s.options.sack_permitted = true;
        s.options.mss = Some(8960);
        s.options.window_scale = Some(7);
        let flow = s.passive_open_over(20);
        let mut peer = Peer::new(path);
        s.host.send(flow, 4_000_000);
        peer.carry_all(&mut s, flow);
        let size = usize::from(s.host.engine.info(flow).mss) + 40;
        assert!(size <= path, "{size} of {path}");
    }
}

#[test]
fn what_the_owner_set_holds_whatever_the_path_takes() {
    let (mut s, flow) = script(false, 1500);
    let mut peer = Peer::new(1006);
    s.host.send(flow, 200_000);
    peer.carry_all(&mut s, flow);
    s.host.engine.set_max_segment(flow, 500);
    peer.path = 1500;
    for _ in 0..3 {
        s.wait_ms(601_000);
        s.host.send(flow, 200_000);
        peer.carry_all(&mut s, flow);
    }
    assert!(s.host.engine.info(flow).mss <= 500);
}

#[test]
fn a_peer_is_offered_more_as_its_data_is_taken() {
    let mut config = config(SERVER);
    config.receive_window = 4 << 20;
    let mut s = Script::with(config);
    s.options.window_scale = Some(7);
    let flow = s.passive_open_over(50);
    let shift = s.host.engine.info(flow).window_shift.1;
    let (mut at, mut edge, mut offered) = (1, 1 + 65_535, Vec::new());
    for _ in 0..12 {
        // As much as it may, each round trip; what it hears meanwhile it hears at the end.
        let limit = edge;
        while at + 1460 <= limit {
            s.inject(ACK, at, 1, 1460, 60_000);
            at += 1460;
            for ack in s.sent() {
                let told = ack.ack + (u32::from(ack.win) << shift);
                assert!(told + (1 << shift) > edge, "the right edge moved left");
                edge = edge.max(told);
            }
        }
        s.wait_ms(50);
        for ack in s.sent() {
            edge = edge.max(ack.ack + (u32::from(ack.win) << shift));
        }
        offered.push(edge - at);
    }
    assert!(offered.last().is_some_and(|&last| last > 1 << 20), "{offered:?}");
    assert!(offered.iter().all(|&window| window <= 4 << 20));
}
