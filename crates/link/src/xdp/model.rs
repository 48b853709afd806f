//! The fill ring's turns and the completion ring under loom, which tries the interleavings of two stacks and what their memory
//! orderings allow each to see. A stack that is stopped is one that loom does not schedule; the others take its turn at once.

#[allow(dead_code, clippy::duplicate_mod, reason = "the same code, with loom's atomics")]
#[path = "completion.rs"]
mod completion;
#[allow(dead_code, clippy::duplicate_mod, reason = "the same code, with loom's atomics")]
#[path = "fill.rs"]
mod fill;

mod atomic {
    pub(super) use core::sync::atomic::Ordering;
    pub(super) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
}

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::sync::Arc;

use super::FRAME_LEN;
use atomic::{AtomicU32, AtomicU64, Ordering};
use completion::{Busy, CompletionRing};
use fill::{Batch, FillRing, Journal, Outcome, Turn};

/// Interleavings with more switches than that (other than those where a thread waits) are left out.
const PREEMPTIONS: usize = 3;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// A fill ring of four entries with one frame of the reserve to come, and stacks that have one frame each: 0 and 1.
struct Pool {
    turn: AtomicU64,
    reserve: AtomicU32,
    journals: [Journal; 2],
    producer: AtomicU32,
    consumer: AtomicU32,
    slots: [AtomicU64; 4],
    receive: [AtomicU32; 2],
}

impl Pool {
    fn new() -> Pool {
        Pool {
            turn: AtomicU64::new(Turn::free(7, 0, 5).word()),
            reserve: AtomicU32::new(2),
            journals: Default::default(),
            producer: AtomicU32::new(7),
            consumer: AtomicU32::new(7),
            slots: [const { FRAME_LEN as u64 * 99 }; 4].map(AtomicU64::new),
            receive: Default::default(),
        }
    }

    fn fill(&self) -> FillRing<'_> {
        FillRing {
            turn: &self.turn,
            reserve: &self.reserve,
            journals: &self.journals,
            producer: &self.producer,
            consumer: &self.consumer,
            slots: &self.slots,
            rx_frames: 3,
            low: 2,
        }
    }

    /// Gives the stack's frame back. Takes the turn from whoever has it, but not for ever.
    fn give(&self, stack: u16, step: &mut impl FnMut()) -> bool {
        let fill = self.fill();
        let batch = Batch { receive: &self.receive[usize::from(stack)], receive_target: 1, count: 1 };
        for _ in 0..2 {
            let held = match fill.take(stack, step) {
                Ok(held) => held,
                Err(seen) if seen.is_held() => match fill.take_from(seen, stack) {
                    Ok(held) => held,
                    Err(_) => continue,
                },
                Err(_) => continue,
            };
            let frame = |_| u64::from(stack) * FRAME_LEN as u64 + 256;
            match fill.give(held, &batch, frame, step) {
                Outcome::Moved => return true,
                Outcome::TakenOver => {}
                Outcome::Full => panic!("there is room"),
            }
        }
        false
    }

    /// Every frame is in the fill ring, in a receive ring or in reserve, and in one of them only.
    fn check(&self) {
        let (first, end) = (self.consumer.load(Ordering::Acquire), self.producer.load(Ordering::Acquire));
        let mut found: Vec<u64> = (first..end)
            .map(|index| self.slots[index as usize % 4].load(Ordering::Acquire) / FRAME_LEN as u64)
            .collect();
        for (stack, receive) in (0..).zip(&self.receive) {
            if receive.load(Ordering::Acquire) == 0 {
                found.push(stack);
            }
        }
        found.extend(u64::from(self.reserve.load(Ordering::Acquire))..3);
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2]);
    }
}

#[test]
fn two_stacks_that_take_each_others_turns() {
    explore(|| {
        let pool = Arc::new(Pool::new());
        let other = {
            let pool = Arc::clone(&pool);
            loom::thread::spawn(move || pool.give(1, &mut || ()))
        };
        let given = [pool.give(0, &mut || ()), other.join().unwrap()];
        assert!(given[0] || given[1]);
        for (receive, given) in pool.receive.iter().zip(given) {
            assert_eq!(receive.load(Ordering::Relaxed) == 1, given);
        }
        pool.check();
    });
}

/// One stack is killed at each of its steps while the other is at work; the broker takes back what it had.
#[test]
fn one_of_two_stacks_is_killed() {
    struct Killed;
    for kill_after in 0..18 {
        explore(move || {
            let pool = Arc::new(Pool::new());
            let other = {
                let pool = Arc::clone(&pool);
                loom::thread::spawn(move || pool.give(1, &mut || ()))
            };
            let mut steps = 0;
            let killed = catch_unwind(AssertUnwindSafe(|| {
                pool.give(0, &mut || {
                    if steps == kill_after {
                        resume_unwind(Box::new(Killed));
                    }
                    steps += 1;
                })
            }))
            .is_err();
            if killed {
                pool.fill().recover(0, &pool.receive[0], 1).unwrap();
            }
            other.join().unwrap();
            pool.check();
        });
    }
}

/// Two stacks empty the completion ring, in which a frame of each is; both use theirs again as soon as it is free. Neither is
/// freed twice.
#[test]
fn two_stacks_empty_the_completion_ring() {
    struct Sending {
        producer: AtomicU32,
        consumer: AtomicU32,
        slots: [AtomicU64; 4],
        busy: [Busy; 2],
    }
    fn empty(sending: &Sending, stack: u32) -> (u32, bool) {
        let ring = CompletionRing {
            producer: &sending.producer,
            consumer: &sending.consumer,
            slots: &sending.slots,
            busy: &sending.busy,
            rx_frames: 0,
        };
        let freed = ring.reap(&(stack..stack + 1), &mut || ()).freed;
        let busy = &sending.busy[stack as usize];
        let again = busy.is_free();
        if again {
            busy.begin();
        }
        (freed, again)
    }
    explore(|| {
        let sending = Arc::new(Sending {
            producer: AtomicU32::new(2),
            consumer: AtomicU32::new(0),
            slots: [0, FRAME_LEN as u64, 0, 0].map(AtomicU64::new),
            busy: Default::default(),
        });
        for busy in &sending.busy {
            busy.begin();
        }
        let other = {
            let sending = Arc::clone(&sending);
            loom::thread::spawn(move || empty(&sending, 1))
        };
        let (first, second) = (empty(&sending, 0), other.join().unwrap());
        assert_eq!(first.0 + second.0, 2);
        for (busy, again) in sending.busy.iter().zip([first.1, second.1]) {
            assert_eq!(busy.is_free(), !again);
        }
    });
}
