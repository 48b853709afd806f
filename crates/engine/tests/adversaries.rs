//! What peers and strangers do that mean harm. Each test says what must survive.

use std::net::SocketAddrV4;
use std::time::Duration;

use crate::harness::script::{ACK, FIN, PSH, RST, SYN, Script, Seg};
use crate::harness::{CLIENT, Random, SERVER, config};
use overfly_engine::State;
use overfly_wire::MacAddr;
use overfly_wire::tcp::{Flags, Options, Sacks};

const MSS: usize = 1460;

fn seed(default: u64) -> u64 {
    std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(default)
}

/// The connection still carries data both ways: the peer's next byte is number `seq`, the engine's next is `ack`.
#[track_caller]
fn still_carries(s: &mut Script, flow: overfly_engine::FlowId, seq: u32, ack: u32) {
    let before = s.host.owner.streams[&flow].received_bytes;
    s.inject(PSH | ACK, seq, ack, 100, 65_535);
    assert_eq!(s.host.owner.streams[&flow].received_bytes, before + 100, "data in");
    s.host.send(flow, 50);
    s.wait_ms(1);
    let sent = s.sent();
    assert!(sent.iter().any(|s| s.len == 50 && s.ack == seq + 100), "data out: {sent:?}");
}

// --- a blind attacker, who knows the addresses and ports and not the numbers (RFC 5961) ---------------

#[test]
fn blind_resets_leave_the_connection_up() {
    // Ten thousand RSTs all over the sequence space, every one but the exact number.
    let seed = seed(1);
    let mut random = Random(seed);
    let mut s = Script::new();
    let flow = s.passive_open();
    for _ in 0..10_000 {
        let seq = match random.below(2) {
            0 => random.next() as u32,
            _ => 2 + random.below(300_000) as u32,
        };
        if seq != 1 {
            s.inject(RST, seq, 0, 0, 0);
        }
    }
    assert!(s.sent().len() <= 1, "seed {seed}: they arrived at once: one answer does");
    assert!(s.host.engine.counters().challenge_acks <= 1000, "RFC 5961 section 7");
    still_carries(&mut s, flow, 1, 1);
}

#[test]
fn blind_syns_leave_the_connection_up() {
    // In and out of the window, the exact number included (RFC 5961 section 4.2).
    let seed = seed(2);
    let mut random = Random(seed);
    let mut s = Script::new();
    let flow = s.passive_open();
    for round in 0..10_000_u32 {
        let seq = if round % 2 == 0 { random.next() as u32 } else { round / 2 };
        let flags = [SYN, SYN | ACK, SYN | FIN][random.below(3) as usize];
        s.inject(flags, seq, random.next() as u32, 0, 1000);
    }
    let sent = s.sent();
    assert!(sent.iter().all(|s| s.flags == ACK && s.seq == 1 && s.ack == 1), "seed {seed}: {sent:?}");
    assert_eq!(s.host.engine.flows(), 1);
    still_carries(&mut s, flow, 1, 1);
}

#[test]
fn blind_data_is_not_delivered() {
    // The sequence number is right (as after many tries), the acknowledgment a guess (RFC 5961 section 5.2).
    let seed = seed(3);
    let mut random = Random(seed);
    let mut s = Script::new();
    let flow = s.passive_open();
    for round in 0..10_000_u32 {
        let guess = random.next() as u32;
        let acceptable = 1_u32.wrapping_sub(guess) <= 65_535;
        let flags = if round % 3 == 0 { FIN | ACK } else { PSH | ACK };
        if !acceptable {
            s.inject_bytes(flags, 1, guess, b"forged", 1000, Options::NONE);
        }
        s.inject_bytes(PSH, 1, 0, b"without an acknowledgment", 1000, Options::NONE);
    }
    assert_eq!(s.host.owner.streams[&flow].received_bytes, 0, "seed {seed}");
    assert_eq!(s.state(flow), State::Established, "seed {seed}");
    s.sent();
    still_carries(&mut s, flow, 1, 1);
}

#[test]
fn a_blind_answer_to_a_syn_opens_and_refuses_nothing() {
    let seed = seed(4);
    let mut random = Random(seed);
    let mut s = Script::new();
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    let flow = s.host.connect(s.now, s.local, s.peer);
    s.expect(&[(SYN, 0, 0, 0)]);
    for _ in 0..3000 {
        let ack = random.next() as u32;
        let flags = [SYN | ACK, RST | ACK, ACK, RST, FIN | ACK][random.below(5) as usize];
        if ack != 1 {
            s.inject(flags, random.next() as u32, ack, 0, 1000);
        }
    }
    assert_eq!(s.state(flow), State::SynSent, "seed {seed}");
    s.sent();
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    assert!(s.host.owner.streams[&flow].connected, "seed {seed}");
}

// --- floods -----------------------------------------------------------------------------------------

#[test]
fn a_syn_flood_leaves_connections_and_memory_alone() {
    // 100,000 SYNs that nobody follows up: half-open flows stay within the listener's bound, a connection made before goes
    // on, and when the flood is over and its flows have timed out, a new one is made.
    let mut s = Script::new();
    s.host.engine.listen(s.local, 64).unwrap();
    let flow = s.open(65_535);
    let (peer, iss) = (s.peer, s.iss);
    for number in 0..100_000 {
        s.play(number);
        s.inject(SYN, 0, 0, 0, 1000);
        if number % 1000 == 0 {
            s.sent();
            s.wait_ms(1);
        }
    }
    s.sent();
    assert!(s.host.engine.flows() <= 1 + 256, "{} control blocks", s.host.engine.flows());
    (s.peer, s.iss) = (peer, iss);
    still_carries(&mut s, flow, 1, 1);
    s.inject(ACK, 101, 51, 0, 65_535);
    s.wait_ms(300_000);
    s.sent();
    assert_eq!(s.host.engine.flows(), 1, "the flood's flows are gone");
    s.play(200_000);
    s.open(65_535);
}

#[test]
fn during_a_syn_flood_an_honest_peer_gets_in() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    for number in 0..5000 {
        s.play(number);
        s.inject(SYN, 0, 0, 0, 1000);
        s.sent();
    }
    let half_open = s.host.engine.flows();
    assert!(half_open <= 256, "{half_open} control blocks");
    s.play(100_000);
    let flow = s.open(65_535);
    assert_eq!(s.state(flow), State::Established);
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.received(flow, 100);
}

#[test]
fn a_syn_is_answered_a_bounded_number_of_times() {
    // The engine reflects a forged SYN to its victim no more often than `syn_retries` says.
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 1000);
    let mut answers = s.sent().len();
    for _ in 0..1000 {
        s.wait_ms(1000);
        answers += s.sent().len();
    }
    assert!((1..=7).contains(&answers), "{answers}");
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn a_port_scan_makes_no_flows_and_a_bounded_queue() {
    // Every port, with the flags that scanners use: nothing is kept, answers that find the queue full are counted.
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    let mut answers = 0;
    for flags in [SYN, FIN, Flags::NONE, ACK, FIN | PSH | Flags::URG, SYN | ACK, SYN | FIN] {
        for port in 1..=65_535 {
            if port == 80 {
                continue;
            }
            s.local.set_port(port);
            s.inject(flags, 0, 0, 0, 1024);
            if port % 8192 == 0 {
                answers += s.sent().len();
            }
        }
    }
    answers += s.sent().len();
    let counters = *s.host.engine.counters();
    assert_eq!(s.host.engine.flows(), 0);
    assert_eq!(counters.drop_no_flow, 7 * 65_534);
    assert_eq!(answers as u64 + counters.drop_control_queue, 7 * 65_534, "sent or counted");
    assert!(counters.drop_control_queue > 0, "the queue of answers has an end");
}

#[test]
fn a_peer_that_never_opens_its_window_cannot_hold_closed_flows() {
    // Sockstress: the owner has closed, the peer acknowledges every probe with a closed window. The flows end all the same.
    let mut s = Script::new();
    s.host.engine.listen(s.local, 200).unwrap();
    let peers: Vec<(SocketAddrV4, u32)> = (0..100)
        .map(|number| {
            s.play(number);
            let flow = s.open(0);
            s.host.send(flow, 1000);
            s.host.engine.close(flow);
            (s.peer, s.iss)
        })
        .collect();
    for _ in 0..600 {
        s.wait_ms(1000);
        if s.sent().is_empty() {
            continue;
        }
        for &(peer, iss) in &peers {
            (s.peer, s.iss) = (peer, iss);
            s.inject(ACK, 1, 1, 0, 0);
        }
    }
    assert_eq!(s.host.engine.flows(), 0, "control blocks are held");
    assert!(s.host.owner.streams.is_empty());
}

// --- a peer that lies about its window ----------------------------------------------------------------

#[test]
fn a_window_that_shrinks_and_closes_stops_nothing() {
    // The peer acknowledges honestly and advertises whatever it likes. No new byte leaves the widest window it ever
    // offered, everything arrives once the window stays open, and no burst answers a segment.
    for seed in seed(0)..seed(0) + 50 {
        let mut random = Random(seed);
        let mut s = Script::new();
        let flow = s.passive_open();
        s.host.send(flow, 200_000);
        let (mut next, mut edge) = (1_u32, 1 + 65_535_u32);
        let mut frames = 0;
        for round in 0..20_000_u32 {
            let sent = s.sent();
            frames += sent.len();
            for Seg { seq, len, .. } in sent {
                assert!(len == 0 || seq + len as u32 <= edge + 1, "seed {seed}: beyond the window");
                if seq <= next {
                    next = next.max(seq + len as u32);
                }
            }
            if next == 200_001 {
                break;
            }
            let window = match random.below(4) {
                _ if round > 5000 => 65_535,
                0 => 0,
                1 => random.below(10) as u16,
                2 => random.below(3000) as u16,
                _ => random.next() as u16,
            };
            edge = edge.max(next + u32::from(window));
            s.inject(ACK, 1, next, 0, window);
            s.wait_ms(random.below(if round > 5000 { 1000 } else { 50 }));
        }
        assert_eq!(next, 200_001, "seed {seed}: stuck in {:?}", s.host.engine.info(flow));
        assert!(frames < 60_000, "seed {seed}: {frames} frames for 137 segments");
    }
}

#[test]
fn a_window_of_one_byte_brings_no_storm_of_one_byte_segments() {
    // Silly windows (RFC 9293 section 3.8.6.2.1): a byte at a time goes only when the persist timer says so.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 1_000_000);
    let mut next = s.sent().iter().map(|s| s.seq + s.len as u32).max().unwrap();
    let mut frames = 0;
    s.inject(ACK, 1, next, 0, 1);
    for _ in 0..10_000 {
        s.wait_ms(1);
        for Seg { seq, len, .. } in s.sent() {
            frames += 1;
            next = next.max(seq + len as u32);
            s.inject(ACK, 1, next, 0, 1);
        }
    }
    assert!(frames <= 55, "{frames} frames in 10 s: at most one each 200 ms");
}

// --- a peer that lies about what it received ------------------------------------------------------------

#[test]
fn an_acknowledgment_of_unsent_data_moves_nothing() {
    // Optimistic acknowledgments end at SND.MAX.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 1_000_000);
    let flight: u32 = s.sent().iter().map(|s| s.len as u32).sum();
    let before = s.host.engine.info(flow);
    for beyond in 1..2000 {
        s.inject(ACK, 1, 1 + flight + beyond * 97, 0, 65_535);
    }
    let after = s.host.engine.info(flow);
    assert_eq!(
        (before.congestion_window, before.acknowledged),
        (after.congestion_window, after.acknowledged)
    );
    assert!(s.sent().iter().all(|s| s.len == 0), "no data is let go");
}

#[test]
fn optimistic_acknowledgments_get_no_more_than_the_window() {
    // Savage 1999: everything is acknowledged before it can have arrived. What is in flight stays within the window that the
    // peer offers, one acknowledgment lets no more than a bounded burst go, and nothing is kept for what is acknowledged.
    let mut s = Script::new();
    s.options = Options { mss: Some(1460), window_scale: Some(10), sack_permitted: true, ..Options::NONE };
    s.host.engine.listen(s.local, 8).unwrap();
    let flow = s.open(1000);
    let window = 1000 << 10;
    s.host.send(flow, 100_000_000);
    let mut last = 1;
    for _ in 0..200 {
        let sent = s.sent();
        let Some(end) = sent.iter().map(|segment| segment.seq + segment.len as u32).max() else { break };
        assert!(s.host.engine.info(flow).flight <= window);
        assert!(sent.len() <= window as usize / MSS + 1);
        last = end;
        s.inject(ACK, 1, end, 0, 1000);
    }
    assert!(last > 10 * window, "the transfer goes on: {last}");
    assert!(s.host.engine.info(flow).congestion_window <= 1 << 30);
    assert_eq!(s.host.engine.counters().drop_bad_ack, 0);
    // What was not sent at all is no acknowledgment.
    s.inject(ACK, 1, last + 100_000_000, 0, 1000);
    assert_eq!(s.host.engine.counters().drop_bad_ack, 1);
}

#[test]
fn acknowledgments_of_single_bytes_open_the_window_by_bytes() {
    // Savage 1999, "ACK division": growth goes by bytes (RFC 5681 section 3.1), not by acknowledgments.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 1_000_000);
    s.sent();
    let before = s.host.engine.info(flow).congestion_window;
    for ack in 2..=1 + MSS as u32 {
        s.inject(ACK, 1, ack, 0, 65_535);
    }
    let after = s.host.engine.info(flow).congestion_window;
    assert!(after <= before + MSS as u32, "{before} grew to {after} by one segment's worth");
}

/// What an honest receiver of `next` could say and a lying one does.
fn lies(random: &mut Random, next: u32, sent: u32) -> Sacks {
    let mut sacks = Sacks::EMPTY;
    for _ in 0..1 + random.below(4) {
        let (left, right) = match random.below(6) {
            // Beyond what was sent, below what was acknowledged, reversed, empty, everything, and what may be true.
            0 => (sent + random.below(100_000) as u32, sent + 100_000 + random.below(100_000) as u32),
            1 => (next.wrapping_sub(50_000), next.wrapping_sub(random.below(50_000) as u32)),
            2 => (next + 3000, next + 1),
            3 => (next + 10, next + 10),
            4 => (next, sent),
            _ => {
                let left = next + random.below(20_000) as u32;
                (left, left + random.below(5000) as u32)
            }
        };
        sacks.push(left, right);
    }
    sacks
}

#[test]
fn lies_in_sack_blocks_lose_no_data_and_start_no_storm() {
    // Blocks that overlap, are reversed, lie outside the window, claim unsent data, or are taken back (RFC 2018 section 8):
    // what was not acknowledged cumulatively is sent until it is, at no more than a bounded number of frames.
    for seed in seed(0)..seed(0) + 30 {
        let mut random = Random(seed);
        let mut s = Script::new();
        s.options = Options { mss: Some(1460), window_scale: Some(3), sack_permitted: true, ..Options::NONE };
        s.host.engine.listen(s.local, 8).unwrap();
        let flow = s.open(65_535);
        let iss = s.iss;
        s.host.send(flow, 200_000);
        let (mut next, mut highest) = (1_u32, 1_u32);
        let mut frames = 0;
        for _ in 0..20_000 {
            let sent = s.sent();
            frames += sent.len();
            for Seg { seq, len, .. } in &sent {
                highest = highest.max(seq + *len as u32);
                // A third is lost on the way.
                if *seq <= next && random.chance(667) {
                    next = next.max(seq + *len as u32);
                }
            }
            if next == 200_001 {
                break;
            }
            if sent.is_empty() {
                s.wait_ms(100);
                continue;
            }
            let absolute = |relative: u32| iss.wrapping_add(relative);
            let mut sack = Sacks::EMPTY;
            for &(left, right) in lies(&mut random, next, highest).as_slice() {
                sack.push(absolute(left), absolute(right));
            }
            s.inject_with(ACK, 1, next, 0, 65_535, Options { sack, ..Options::NONE });
            s.wait_ms(random.below(30));
        }
        assert_eq!(next, 200_001, "seed {seed}: stuck in {:?}", s.host.engine.info(flow));
        assert!(frames < 5000, "seed {seed}: {frames} frames for 137 segments");
        let told = s.host.owner.streams[&flow].acknowledged;
        assert!(told <= 200_000, "seed {seed}: {told}");
    }
}

// --- tiny, overlapping and misplaced segments -----------------------------------------------------------

#[test]
fn a_peer_that_asks_for_tiny_segments_gets_small_ones() {
    // MSS 1 (CVE-2019-11479): not every byte becomes a segment.
    let mut s = Script::new();
    s.options = Options { mss: Some(1), ..Options::NONE };
    let flow = s.passive_open();
    s.host.send(flow, 5_000);
    let sent = s.sent();
    assert!(sent.iter().all(|s| s.len >= 48), "{:?}", sent.first());
}

#[test]
fn out_of_order_data_stays_within_its_budget_and_gives_it_back() {
    // Peers who never fill the gap take all of the budget: order goes on without it, and when they go it returns.
    let mut config = config(SERVER);
    config.reassembly_budget = 100_000;
    let mut s = Script::with(config);
    s.host.engine.listen(s.local, 64).unwrap();
    let mut greedy = Vec::new();
    for number in 0..16 {
        s.play(number);
        s.open(65_535);
        for segment in 0..30 {
            s.inject(ACK, 11 + segment * MSS as u32, 1, MSS, 65_535);
        }
        greedy.push((s.peer, s.iss));
    }
    let held = s.host.engine.counters().out_of_order as usize * MSS;
    assert!(held <= 100_000, "{held} bytes are held");
    assert!(s.host.engine.counters().drop_reassembly_budget > 0);
    s.play(100);
    let flow = s.open(65_535);
    still_carries(&mut s, flow, 1, 1);
    let honest = (s.peer, s.iss);
    for (peer, iss) in greedy {
        (s.peer, s.iss) = (peer, iss);
        s.inject(RST, 1, 0, 0, 0);
    }
    (s.peer, s.iss) = honest;
    let before = s.host.engine.counters().out_of_order;
    for segment in 0..30 {
        s.inject(ACK, 201 + segment * MSS as u32, 51, MSS, 65_535);
    }
    assert_eq!(s.host.engine.counters().out_of_order, before + 30, "the budget is back");
}

#[test]
fn of_overlapping_data_out_of_order_the_first_wins() {
    let mut s = Script::new();
    let flow = s.passive_open();
    let put = |s: &mut Script, seq: u32, len: usize, byte: u8| {
        s.inject_bytes(ACK, seq, 1, &vec![byte; len], 65_535, Options::NONE);
    };
    put(&mut s, 11, 10, b'a');
    put(&mut s, 6, 20, b'b');
    put(&mut s, 11, 10, b'c');
    put(&mut s, 1, 5, b'd');
    assert_eq!(s.host.owner.streams[&flow].received, b"dddddbbbbbaaaaaaaaaabbbbb");
}

#[test]
fn data_in_order_wins_over_what_was_held_and_what_was_delivered_over_both() {
    let mut s = Script::new();
    let flow = s.passive_open();
    let put = |s: &mut Script, seq: u32, len: usize, byte: u8| {
        s.inject_bytes(ACK, seq, 1, &vec![byte; len], 65_535, Options::NONE);
    };
    put(&mut s, 11, 10, b'a');
    put(&mut s, 1, 15, b'b');
    assert_eq!(s.host.owner.streams[&flow].received, b"bbbbbbbbbbbbbbbaaaaa");
    put(&mut s, 1, 25, b'c');
    assert_eq!(s.host.owner.streams[&flow].received, b"bbbbbbbbbbbbbbbaaaaaccccc");
}

#[test]
fn random_overlaps_deliver_every_position_once_from_somebody_who_sent_it() {
    // Segments of three liars and an honest peer over the same hundred bytes.
    for seed in seed(0)..seed(0) + 300 {
        let mut random = Random(seed);
        let mut s = Script::new();
        let flow = s.passive_open();
        for _ in 0..200 {
            let from = random.below(100) as u32;
            let len = 1 + random.below(u64::from(100 - from)) as usize;
            let liar = random.below(4) as u8;
            let data: Vec<u8> = (0..len as u32).map(|i| (from + i) as u8 * 2 + liar % 2).collect();
            s.inject_bytes(ACK, 1 + from, 1, &data, 65_535, Options::NONE);
        }
        let received = &s.host.owner.streams[&flow].received;
        assert!(received.len() <= 100, "seed {seed}");
        assert!(received.iter().enumerate().all(|(at, byte)| byte / 2 == at as u8), "seed {seed}");
    }
}

#[test]
fn a_fin_inside_held_data_gives_the_budget_back() {
    // Data beyond the stream's end, then the end, then what leads up to it: what lay beyond is dropped and accounted for.
    let mut config = config(SERVER);
    config.reassembly_budget = 64 * 1024;
    let mut s = Script::with(config);
    s.host.engine.listen(s.local, 64).unwrap();
    for number in 0..100 {
        s.play(number);
        let flow = s.open(65_535);
        for segment in 0..8 {
            s.inject(ACK, 1001 + segment * MSS as u32, 1, MSS, 65_535);
        }
        s.inject(FIN | ACK, 501, 1, 0, 65_535);
        s.inject(PSH | ACK, 1, 1, 500, 65_535);
        s.host.engine.abort(flow);
        s.sent();
    }
    assert_eq!(s.host.engine.counters().drop_reassembly_budget, 0, "the budget leaks");
}

#[test]
fn forged_duplicate_acknowledgments_let_go_no_more_than_was_in_flight() {
    // Savage 1999, "DupACK spoofing": each of 10,000 duplicates pretends that a segment has left the network. Those that
    // could have left are known (RFC 5681 section 3.2, last paragraph).
    let mut s = Script::new();
    s.options = Options { mss: Some(1460), window_scale: Some(10), sack_permitted: true, ..Options::NONE };
    s.host.engine.listen(s.local, 8).unwrap();
    let flow = s.open(65_535);
    s.host.send(flow, 100_000_000);
    let flight = s.sent().len();
    let mut frames = 0;
    for _ in 0..10_000 {
        s.inject(ACK, 1, 1, 0, 65_535);
        frames += s.sent().len();
    }
    assert!(frames <= flight + 10, "{frames} segments for a flight of {flight}");
}

#[test]
fn single_bytes_out_of_order_cannot_eat_more_than_the_budget() {
    // Each costs a segment's bookkeeping (at least 32 bytes), which counts against the budget too.
    let mut config = config(SERVER);
    config.reassembly_budget = 64 * 1024;
    let mut s = Script::with(config);
    s.host.engine.listen(s.local, 64).unwrap();
    for number in 0..16 {
        s.play(number);
        s.open(65_535);
        for byte in 0..1000 {
            s.inject(ACK, 3 + 2 * byte, 1, 1, 65_535);
        }
    }
    let held = s.host.engine.counters().out_of_order;
    assert!(held * 32 <= 64 * 1024, "{held} segments of one byte are held");
}

#[test]
fn two_ends_that_challenge_each_other_fall_silent() {
    // Forged data that both ends accept: now each acknowledges what the other never sent, and challenges what it gets
    // (an ACK storm). The link must not stay busy with it.
    let mut network = crate::harness::Network::new(seed(5));
    let service = SocketAddrV4::new(SERVER, 80);
    network.server.engine.listen(service, 1).unwrap();
    let flow = network.client.connect(network.now, SocketAddrV4::new(CLIENT, 40_000), service);
    assert!(network.run_until(Duration::from_secs(5), |n| !n.server.owner.incoming.is_empty()));
    let (peer, _) = network.server.owner.incoming.pop_front().unwrap();
    network.server.engine.accepted(peer);
    network.client.send(flow, 100);
    network.server.send(peer, 100);
    // What each sent, with other payload behind it: 100 forged bytes more than the sender knows of.
    let forge = |frames: &std::collections::VecDeque<Vec<u8>>| {
        crate::harness::extended(frames.back().expect("a frame"), 100)
    };
    network.client.transmit(network.now);
    network.server.transmit(network.now);
    let forged = [forge(&network.client.outbox.frames), forge(&network.server.outbox.frames)];
    network.inject(true, &forged[0]);
    network.inject(false, &forged[1]);
    network.run_for(Duration::from_secs(2));
    let before = network.carried(true).frames + network.carried(false).frames;
    network.run_for(Duration::from_secs(10));
    let frames = network.carried(true).frames + network.carried(false).frames - before;
    assert!(frames <= 100, "{frames} frames in 10 s between two ends that can say nothing new");
}

#[test]
fn a_segment_from_ourselves_makes_no_flow() {
    // "Land": source and destination are the engine's own address and port.
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    s.peer = s.local;
    s.inject(SYN, 0, 0, 0, 1000);
    assert_eq!(s.host.engine.flows(), 0);
    assert!(s.sent().is_empty());
}

#[test]
fn a_syn_to_or_from_many_is_ignored() {
    // RFC 1122 section 4.2.3.10: broadcast and multicast addresses open nothing and get no answer.
    let mut s = Script::new();
    let any = SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 80);
    s.host.engine.listen(any, 8).unwrap();
    let own = s.local;
    let bad = ["255.255.255.255", "10.77.255.255", "224.0.0.1", "0.0.0.0"];
    for address in bad {
        let address: std::net::Ipv4Addr = address.parse().unwrap();
        for port in [80, 81] {
            (s.local, s.peer) = (SocketAddrV4::new(*own.ip(), port), SocketAddrV4::new(address, 4000));
            s.inject(SYN, 0, 0, 0, 1000);
            assert!(s.sent().is_empty(), "from {address}");
            (s.local, s.peer) = (SocketAddrV4::new(address, port), SocketAddrV4::new(CLIENT, 4000));
            s.inject(SYN, 0, 0, 0, 1000);
            assert!(s.sent().is_empty(), "to {address}");
        }
    }
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn a_promise_of_gigabytes_is_kept() {
    // Not the network's harm but the owner's: sequence numbers wrap, promises do not.
    for promise in [(1_usize << 31) + 5, (1 << 32) + 5, 5_000_000_000] {
        let mut s = Script::new();
        let flow = s.passive_open();
        s.host.send(flow, promise);
        s.host.engine.shutdown(flow);
        let sent = s.sent();
        let bytes: usize = sent.iter().map(|s| s.len).sum();
        assert!(bytes >= 10 * MSS, "{bytes} bytes of {promise}");
        assert!(sent.iter().all(|s| !s.flags.contains(FIN)), "{promise}: the end comes early");
    }
}
