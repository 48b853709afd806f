//! Frames that no honest peer sends, thrown at both sides of a whole run: counted, and survived.

use overfly_wire::FrameSink;

use super::*;
use crate::astf::wire::HasEnd;
use crate::random::SplitMix;

/// Frames that were on the way, damaged, cut, sent again, turned round, or made up.
struct Thrower {
    random: SplitMix,
    seen: Vec<Vec<u8>>,
}

impl Thrower {
    /// Takes some of what `end` is about to pass on, and adds to it.
    fn throw(&mut self, end: &mut End) {
        let copies: Vec<Vec<u8>> = end.sent().map(<[u8]>::to_vec).collect();
        for frame in copies {
            if self.seen.len() < 512 {
                self.seen.push(frame);
            } else {
                let at = self.random.below(512) as usize;
                self.seen[at] = frame;
            }
        }
        for _ in 0..self.random.below(4) {
            let frame = self.make();
            if let Some(place) = end.frame() {
                let length = frame.len().min(place.len());
                place[..length].copy_from_slice(&frame[..length]);
                end.commit(length);
            }
        }
    }

    fn make(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let mut frame = match self.seen.len() as u64 {
            0 => Vec::new(),
            count => self.seen[random.below(count) as usize].clone(),
        };
        match random.below(8) {
            0 => frame = (0..random.below(1600)).map(|_| random.next() as u8).collect(),
            1 => frame.truncate(random.below(frame.len() as u64 + 1) as usize),
            2 => frame.extend((0..random.below(300)).map(|_| random.next() as u8)),
            // Sent again, as it was.
            3 => {}
            4 if frame.len() > 54 => {
                // Any flags, sequence and acknowledgment: of a connection that is there, or was.
                frame[38..48].fill_with(|| random.next() as u8);
                frame[47] &= 0x3f;
            }
            5 if frame.len() > 54 => {
                // Options at random, as long as the header says.
                frame[46] = (random.next() as u8) << 4;
                let last = frame.len().min(94);
                frame[54..last].fill_with(|| random.next() as u8);
            }
            _ => {
                for _ in 0..=random.below(6) {
                    if let Some(byte) = {
                        let at = random.below(frame.len().max(1) as u64) as usize;
                        frame.get_mut(at)
                    } {
                        *byte ^= 1 << random.below(8);
                    }
                }
            }
        }
        frame
    }
}

fn under_fire(name: &str, seed: u64) {
    println!("{name}, seed {seed}");
    let mut case = Case::of(name, None, 20.0, 1);
    let mut thrower = Thrower { random: SplitMix::new(seed), seen: Vec::new() };
    let wires = |case: &mut Case, thrower: &mut Thrower| {
        thrower.throw(case.pair.client.stack.wire.end());
        thrower.throw(case.pair.server.stack.wire.end());
    };
    while case.now_ns.get() < 1_000_000_000 {
        let now_ns = case.now_ns.get();
        case.pair.pace(now_ns, 20.0, false);
        case.pair.begin(now_ns, 20.0);
        case.turn();
        wires(&mut case, &mut thrower);
    }
    case.pair.end();
    // Time for whatever was left half done, then the end of the run.
    for _ in 0..20_000 {
        case.turn();
    }
    case.pair.reset_all(case.now_ns.get());
    for _ in 0..1000 {
        case.turn();
    }
    for role in [Role::Client, Role::Server] {
        let tally = case.tally(role);
        let refused = [
            Counter::err_len_err,
            Counter::err_no_tcp_udp,
            Counter::err_cwf,
            Counter::err_no_syn,
            Counter::tcps_rcvbadsum,
            Counter::tcps_rcvduppack,
            Counter::tcps_pawsdrop,
        ];
        let refused: u64 = refused.iter().map(|counter| tally.counts.at(*counter)).sum();
        assert!(refused > 100, "{role:?}: {refused}");
        assert_eq!((tally.active, tally.established), (0, 0), "{role:?}");
    }
    assert!(case.at(Role::Client, Counter::flows_total) >= 20);
}

#[test]
fn frames_of_all_kinds_are_counted_and_survived() {
    for seed in 1..=3 {
        under_fire("http_by_program.py", seed);
        under_fire("udp.py", seed);
        under_fire("ipv6.py", seed);
        under_fire("tunnel.py", seed);
        under_fire("path.py", seed);
    }
}
