//! Fuzz drivers: any bytes become frames, segments into each state, or what owners do between segments. They run from a
//! seed in `fuzz_drivers.rs` and under cargo-fuzz in the folder `fuzz`.
//!
//! A driver panics when the engine breaks a promise: it panics itself, calls back out of order (the [`Recorder`]'s
//! assertions), keeps more flows than configured, wants to be called for ever, never stops sending, writes a frame that no
//! parser takes, delivers other bytes than were sent, or holds on to something when everything is over.
//!
//! [`Recorder`]: crate::harness::Recorder

#![allow(dead_code, reason = "each user takes its part")]
#![allow(unreachable_pub, missing_docs, reason = "a module of tests")]

mod operations;
mod segments;
mod wire;

use std::time::Duration;

use overfly_engine::{Config, Instant};
use overfly_wire::tcp::Segment;
use overfly_wire::{Malformed, ethernet, ipv4, udp};

use crate::harness::Host;

pub use operations::operations;
pub use segments::segments;
pub use wire::{frames, tcp_options};

/// Takes any bytes.
pub type Driver = fn(&[u8]);

/// Every driver, with the name of its fuzz target.
pub const DRIVERS: [(&str, Driver); 4] =
    [("frames", frames), ("tcp_options", tcp_options), ("segments", segments), ("operations", operations)];

/// Frames that one call of `transmit` writes at most here: more is a loop.
const MOST_FRAMES: usize = 100_000;
const MAX_FLOWS: u32 = 48;
const MAX_TIME_WAIT: u32 = 8;

/// Limits low enough to be reached.
fn limited(mut config: Config) -> Config {
    config.max_flows = MAX_FLOWS;
    config.max_time_wait = MAX_TIME_WAIT;
    config.reassembly_budget = 20_000;
    config.receive_window = 32 * 1024;
    config.hash_key = [7; 16];
    config
}

fn within_limits(host: &Host) {
    assert!(host.engine.flows() <= MAX_FLOWS as usize, "{} control blocks", host.engine.flows());
    assert!(host.engine.time_wait_flows() <= MAX_TIME_WAIT as usize, "TIME-WAIT is bounded");
}

/// Lets the host send all it wants to.
fn transmit(host: &mut Host, now: Instant) {
    let before = host.outbox.frames.len();
    host.outbox.room = before + MOST_FRAMES;
    host.transmit(now);
    let written = host.outbox.frames.len() - before;
    assert!(written < MOST_FRAMES, "transmit does not end");
    for frame in host.outbox.frames.iter().skip(before) {
        is_sound(frame);
    }
}

/// What an engine writes, a parser takes.
fn is_sound(frame: &[u8]) {
    let (header, packet) = ethernet::Header::parse(frame).expect("an Ethernet frame");
    if header.ethertype != ethernet::ETHERTYPE_IPV4 {
        return;
    }
    let packet = ipv4::Packet::parse(packet).expect("an IPv4 packet");
    assert!(frame.len() <= 14 + 1500, "longer than the MTU");
    if packet.protocol() == ipv4::PROTOCOL_TCP {
        let segment = Segment::parse(packet.payload()).expect("a TCP segment");
        assert!(segment.checksum_holds(packet.source(), packet.destination()), "the checksum");
        let options: Result<_, Malformed> = segment.options();
        options.expect("TCP options");
    }
    if packet.protocol() == ipv4::PROTOCOL_UDP {
        let parsed = udp::Header::parse(packet.payload(), packet.source(), packet.destination(), false);
        parsed.expect("a UDP datagram");
    }
}

/// Runs the host's timers up to `end`, each when it is due. `room` is what it may send each time.
fn pass(host: &mut Host, now: Instant, end: Instant) {
    let mut at = now;
    let mut stalls = 0;
    while let Some(next) = host.engine.next_deadline() {
        if next > end {
            break;
        }
        stalls = if next > at { 0 } else { stalls + 1 };
        assert!(stalls < 1000, "time stands still at {at:?}: the engine wants to be called for nothing");
        at = at.max(next);
        host.engine.advance(at, &mut host.owner);
        transmit(host, at);
    }
    host.engine.advance(end, &mut host.owner);
    transmit(host, end);
}

/// The owner lets everything go; nobody answers. In the end nothing is left.
fn wind_up(host: &mut Host, mut now: Instant) {
    for socket in core::mem::take(&mut host.owner.sockets) {
        host.engine.udp_close(socket);
    }
    let flows: Vec<_> = host.owner.streams.keys().copied().collect();
    for (index, flow) in flows.into_iter().enumerate() {
        if index % 2 == 0 {
            host.engine.abort(flow);
        } else {
            host.engine.close(flow);
        }
    }
    transmit(host, now);
    for _ in 0..200 {
        let end = now + Duration::from_secs(60);
        pass(host, now, end);
        now = end;
        host.outbox.frames.clear();
        if host.engine.next_deadline().is_none() {
            break;
        }
    }
    assert_eq!(host.engine.flows(), 0, "control blocks are left");
    assert_eq!(host.engine.time_wait_flows(), 0, "TIME-WAIT is left");
    assert_eq!(host.engine.next_deadline(), None, "timers are left");
    assert!(!host.engine.has_output(), "output is left");
    assert!(host.owner.streams.is_empty(), "flows were never released");
}
