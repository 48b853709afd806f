//! Segments of a peer that knows the numbers, into each state.

use overfly_engine::FlowId;
use overfly_testing::bytes::Bytes;
use overfly_wire::MacAddr;
use overfly_wire::tcp::{Flags, Options, Sacks, Timestamps};

use super::{limited, pass, transmit, wind_up, within_limits};
use crate::harness::script::{ACK, FIN, PSH, SYN, Script};
use crate::harness::{CLIENT, SERVER, config, pattern};
use std::time::Duration;

/// The first byte chooses a state, the next the options of the handshake; then segments follow, with time between them.
pub fn segments(data: &[u8]) {
    let mut bytes = Bytes(data);
    let (Some(state), Some(offer)) = (bytes.byte(), bytes.byte()) else { return };
    let mut s = Script::with(limited(config(SERVER)));
    s.options = Options {
        mss: (offer & 1 != 0).then_some([1460, 536, 1, 65_535][usize::from(offer >> 6)]),
        window_scale: (offer & 2 != 0).then_some(offer >> 4 & 15),
        sack_permitted: offer & 4 != 0,
        ..Options::NONE
    };
    s.peer_timestamp = (offer & 8 != 0).then_some(1000);
    let flow = enter(&mut s, state % 10);
    let name = flow.map(|flow| s.host.owner.streams[&flow].seed);
    let mut next_timestamp = 1000;
    while one(&mut s, &mut bytes, &mut next_timestamp).is_some() {}
    let owner = &s.host.owner;
    for stream in owner.streams.values().chain(&owner.past).filter(|stream| Some(stream.seed) == name) {
        let sound = stream.received.iter().enumerate().all(|(at, byte)| *byte == pattern(77, at as u64));
        assert!(sound, "other bytes were delivered than were sent");
    }
    s.host.owner.incoming.clear();
    wind_up(&mut s.host, s.now);
}

/// Brings one flow into a state, numbered as RFC 9293 section 3.3.2 lists them.
fn enter(s: &mut Script, state: u8) -> Option<FlowId> {
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    s.host.engine.listen(s.local, 4).expect("listen");
    match state {
        0 => return None,
        1 => {
            let flow = s.host.connect(s.now, s.local, s.peer);
            s.sent();
            return Some(flow);
        }
        2 => {
            s.inject(SYN, 0, 0, 0, 1000);
            s.sent();
            return None;
        }
        _ => {}
    }
    let flow = s.open(1000);
    s.host.send(flow, 3000);
    s.sent();
    if state == 3 {
        return Some(flow);
    }
    s.inject(ACK, 1, 3001, 0, 60_000);
    match state {
        4 | 5 | 7 | 9 => {
            s.host.engine.shutdown(flow);
            s.sent();
            match state {
                5 => s.inject(ACK, 1, 3002, 0, 60_000),
                7 => s.inject(FIN | ACK, 1, 3001, 0, 60_000),
                9 => s.inject(FIN | ACK, 1, 3002, 0, 60_000),
                _ => {}
            }
        }
        6 => s.inject(FIN | ACK, 1, 3001, 0, 60_000),
        _ => {
            s.inject(FIN | ACK, 1, 3001, 0, 60_000);
            s.sent();
            s.host.engine.shutdown(flow);
        }
    }
    s.sent();
    Some(flow)
}

/// One segment, or time. `None` when no bytes are left for another.
fn one(s: &mut Script, bytes: &mut Bytes<'_>, next_timestamp: &mut u32) -> Option<()> {
    let kind = bytes.byte()?;
    if kind >= 240 {
        let step = [1, 41, 250, 3000, 70_000, 2_000_000][bytes.below(6)?];
        let end = s.now + Duration::from_millis(step);
        pass(&mut s.host, s.now, end);
        s.now = end;
        s.host.outbox.frames.clear();
        return Some(());
    }
    let flags = match kind & 7 {
        0..=2 => ACK,
        3 => PSH | ACK,
        4 => FIN | ACK,
        5 => SYN,
        _ => Flags::from_bits(bytes.byte()?),
    };
    // Around the numbers that matter: the beginning, the window's edges, what was sent.
    let near = |bytes: &mut Bytes<'_>| -> Option<u32> {
        let base = [0, 1, 3001, 32_768, 65_536, 0x8000_0000][bytes.below(6)?];
        let delta = i32::from(bytes.word()? as i16) >> [0, 4, 8, 12][bytes.below(4)?];
        Some(u32::wrapping_add_signed(base, delta))
    };
    let opens = flags.contains(SYN) && s.host.owner.streams.values().any(|stream| !stream.connected);
    let seq = if opens {
        // The numbers of the stream begin here.
        0
    } else if kind & 8 == 0 {
        u32::from(bytes.byte()?) * 16 + 1
    } else {
        near(bytes)?
    };
    let ack = if kind & 16 == 0 { u32::from(bytes.byte()?) * 12 + 1 } else { near(bytes)? };
    let len = if kind & 32 == 0 { 0 } else { usize::from(bytes.word()? % 1461) };
    let win = bytes.word()?;
    let mut options = if flags.contains(SYN) { s.options } else { Options::NONE };
    if kind & 64 != 0 {
        let mut sack = Sacks::EMPTY;
        for _ in 0..bytes.below(4)? {
            sack.push(s.iss.wrapping_add(near(bytes)?), s.iss.wrapping_add(near(bytes)?));
        }
        options = Options { sack, ..Options::NONE };
    }
    if s.peer_timestamp.is_some() {
        *next_timestamp = next_timestamp.wrapping_add_signed(i32::from(bytes.byte()? as i8));
        s.peer_timestamp = None;
        let echo = u32::from(bytes.byte()?);
        options.timestamps = Some(Timestamps { value: *next_timestamp, echo });
    }
    // The byte with number n is always the same, whatever segment it comes in.
    let first = u64::from(seq.wrapping_sub(1));
    let data: Vec<u8> = (0..len as u64).map(|index| pattern(77, (first + index) & 0xffff_ffff)).collect();
    let had = options.timestamps.is_some();
    s.inject_bytes(flags, seq, ack, &data, win, options);
    s.peer_timestamp = had.then_some(*next_timestamp);
    within_limits(&s.host);
    for (flow, _) in s.host.owner.incoming.drain(..) {
        // One that has ended by now keeps no place.
        if s.host.owner.streams.contains_key(&flow) {
            s.host.engine.accepted(flow);
        }
    }
    if kind & 128 == 0 {
        transmit(&mut s.host, s.now);
        s.host.outbox.frames.clear();
    }
    Some(())
}
