//! Stacks that are stopped or killed at any step of a turn on the fill ring, or of emptying the completion ring.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::FRAME_LEN;
use super::completion::{Busy, CompletionRing};
use super::fill::{Batch, FillRing, Journal, Outcome, Turn};

/// A pool's shared words, in ordinary memory.
struct Pool {
    turn: AtomicU64,
    reserve: AtomicU32,
    journals: Vec<Journal>,
    producer: AtomicU32,
    consumer: AtomicU32,
    slots: Vec<AtomicU64>,
    rx_frames: u32,
    low: u32,
}

impl Pool {
    /// `filled` frames are in the fill ring, from the first on; those from `reserve` on are in reserve.
    fn new(slots: usize, start: u32, filled: Range<u32>, reserve: u32, rx_frames: u32, low: u32) -> Pool {
        let pool = Pool {
            turn: AtomicU64::new(0),
            reserve: AtomicU32::new(reserve),
            journals: (0..4).map(|_| Journal::default()).collect(),
            producer: AtomicU32::new(start.wrapping_add(filled.len() as u32)),
            consumer: AtomicU32::new(start),
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            rx_frames,
            low,
        };
        for (offset, frame) in (0..).zip(filled) {
            pool.slot(start.wrapping_add(offset)).store(address(frame), Ordering::Relaxed);
        }
        let end = pool.producer.load(Ordering::Relaxed);
        pool.turn.store(Turn::free(end, 0, 0).word(), Ordering::Relaxed);
        pool
    }

    fn slot(&self, index: u32) -> &AtomicU64 {
        &self.slots[index as usize % self.slots.len()]
    }

    fn fill(&self) -> FillRing<'_> {
        FillRing {
            turn: &self.turn,
            reserve: &self.reserve,
            journals: &self.journals,
            producer: &self.producer,
            consumer: &self.consumer,
            slots: &self.slots,
            rx_frames: self.rx_frames,
            low: self.low,
        }
    }

    /// What the kernel does to receive: takes a frame off the fill ring.
    fn pop(&self) -> Option<u32> {
        let consumer = self.consumer.load(Ordering::Relaxed);
        if consumer == self.producer.load(Ordering::Acquire) {
            return None;
        }
        let address = self.slot(consumer).load(Ordering::Acquire);
        self.consumer.store(consumer.wrapping_add(1), Ordering::Release);
        Some((address / FRAME_LEN as u64) as u32)
    }

    fn filled(&self) -> Vec<u32> {
        let consumer = self.consumer.load(Ordering::Relaxed);
        let count = self.producer.load(Ordering::Relaxed).wrapping_sub(consumer);
        (0..count)
            .map(|offset| self.slot(consumer.wrapping_add(offset)).load(Ordering::Relaxed))
            .map(|address| (address / FRAME_LEN as u64) as u32)
            .collect()
    }

    /// Every frame is in the fill ring, in a receive ring or in reserve, and in one of them only.
    fn check(&self, stacks: &[&Stack], what: &dyn core::fmt::Debug) {
        let mut found = self.filled();
        for stack in stacks {
            found.extend(stack.waiting());
        }
        found.extend(self.reserve.load(Ordering::Relaxed)..self.rx_frames);
        found.sort_unstable();
        assert_eq!(found, (0..self.rx_frames).collect::<Vec<u32>>(), "{what:?}");
    }
}

fn address(frame: u32) -> u64 {
    u64::from(frame) * FRAME_LEN as u64
}

/// One stack's receive ring.
struct Stack {
    number: u16,
    producer: AtomicU32,
    consumer: AtomicU32,
    slots: Vec<AtomicU64>,
}

impl Stack {
    fn new(number: u16, slots: usize, start: u32, received: Range<u32>) -> Stack {
        let stack = Stack {
            number,
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        };
        for frame in received {
            assert!(stack.push(frame));
        }
        stack
    }

    /// What the kernel does: shows a frame in the ring, if there is room.
    fn push(&self, frame: u32) -> bool {
        let producer = self.producer.load(Ordering::Relaxed);
        if producer.wrapping_sub(self.consumer.load(Ordering::Acquire)) as usize == self.slots.len() {
            return false;
        }
        let slot = &self.slots[producer as usize % self.slots.len()];
        slot.store(address(frame) + 256, Ordering::Relaxed);
        self.producer.store(producer.wrapping_add(1), Ordering::Release);
        true
    }

    fn entry(&self, index: u32) -> u64 {
        self.slots[index as usize % self.slots.len()].load(Ordering::Relaxed)
    }

    fn waiting(&self) -> Vec<u32> {
        let consumer = self.consumer.load(Ordering::Relaxed);
        let count = self.producer.load(Ordering::Acquire).wrapping_sub(consumer);
        (0..count)
            .map(|offset| (self.entry(consumer.wrapping_add(offset)) / FRAME_LEN as u64) as u32)
            .collect()
    }

    /// Gives back up to `batch` frames that have been received; takes the turn from whoever has it after `patience` tries.
    /// Returns how often it lost its turn.
    fn give(&self, pool: &Pool, batch: u32, patience: u32, step: &mut impl FnMut()) -> u64 {
        let released = self.consumer.load(Ordering::Relaxed);
        let count = self.producer.load(Ordering::Acquire).wrapping_sub(released).min(batch);
        if count == 0 {
            return 0;
        }
        let batch = Batch { receive: &self.consumer, receive_target: released.wrapping_add(count), count };
        let fill = pool.fill();
        let (mut tries, mut lost) = (0, 0);
        loop {
            let held = match fill.take(self.number, step) {
                Ok(held) => held,
                Err(seen) if seen.is_held() && tries >= patience => match fill.take_from(seen, self.number) {
                    Ok(held) => held,
                    Err(_) => continue,
                },
                Err(_) => {
                    tries += 1;
                    std::thread::yield_now();
                    continue;
                }
            };
            step();
            let frame = |nth| self.entry(released.wrapping_add(nth));
            match fill.give(held, &batch, frame, step) {
                Outcome::Moved => return lost,
                Outcome::TakenOver => lost += 1,
                Outcome::Full => panic!("there is room for all frames"),
            }
        }
    }
}

/// Frames 0 to 3 have been received by the first stack, 4 to 6 by the second, 7 by the third; of 8 to 15, `reserved` are in
/// reserve and the others in the fill ring.
fn three_stacks(start: u32, reserved: u32) -> (Pool, [Stack; 3]) {
    let low = if reserved > 0 { 12 } else { 0 };
    let pool = Pool::new(32, start.wrapping_add(3), 8..16 - reserved, 16 - reserved, 16, low);
    let stacks =
        [Stack::new(0, 8, start, 0..4), Stack::new(1, 8, start, 4..7), Stack::new(2, 8, start, 7..8)];
    (pool, stacks)
}

/// The kernel receives: `count` frames go to `stack`.
fn receive(pool: &Pool, stack: &Stack, count: u32) {
    for _ in 0..count {
        if let Some(frame) = pool.pop() {
            assert!(stack.push(frame));
        }
    }
}

const STARTS: [u32; 2] = [0, u32::MAX - 1];
const RESERVED: [u32; 3] = [0, 8, 3];

/// The whole life of a batch with the process killed after every single step, and the others either still or not: afterwards
/// every frame is in one place, once.
#[test]
fn a_kill_at_any_step_neither_loses_nor_doubles_a_frame() {
    struct Killed;
    let mut kills = 0;
    for (start, reserved) in STARTS.into_iter().flat_map(|start| RESERVED.map(|reserved| (start, reserved))) {
        for (batch, others) in (1..=4).flat_map(|batch| [(batch, 0), (batch, 1), (batch, 3)]) {
            for kill_after in 0.. {
                let (pool, stacks) = three_stacks(start, reserved);
                let mut steps = 0;
                let killed = catch_unwind(AssertUnwindSafe(|| {
                    stacks[0].give(&pool, batch, 0, &mut || {
                        if steps == kill_after {
                            resume_unwind(Box::new(Killed));
                        }
                        steps += 1;
                    });
                }))
                .is_err();
                for _ in 0..others {
                    stacks[1].give(&pool, 2, 0, &mut || ());
                    receive(&pool, &stacks[1], 2);
                }
                if killed {
                    kills += 1;
                    pool.fill().recover(0, &stacks[0].consumer, 8).unwrap();
                }
                let [first, second, third] = &stacks;
                pool.check(&[first, second, third], &(start, reserved, batch, others, kill_after));
                // The others can go on.
                second.give(&pool, 8, u32::MAX, &mut || ());
                pool.check(&[first, second, third], &(start, reserved, batch, others, kill_after));
                if !killed {
                    assert!(kill_after > batch * 3 + 8, "every step was visited");
                    break;
                }
            }
        }
    }
    println!("{kills} kills");
}

/// A stack is stopped after every single step, others go on (for more than one lap of the ring, too), and it goes on as well:
/// every frame is in one place, once.
#[test]
fn a_stop_at_any_step_harms_nobody() {
    for (start, reserved) in STARTS.into_iter().flat_map(|start| RESERVED.map(|reserved| (start, reserved))) {
        for (batch, others) in (1..=4).flat_map(|batch| [1, 2, 3, 40].map(|others| (batch, others))) {
            for stop_after in 0.. {
                let what = (start, reserved, batch, others, stop_after);
                let (pool, stacks) = three_stacks(start, reserved);
                let [first, second, third] = &stacks;
                let mut steps = 0;
                first.give(&pool, batch, 0, &mut || {
                    if steps == stop_after {
                        for _ in 0..others {
                            second.give(&pool, 3, 0, &mut || ());
                            receive(&pool, second, 3);
                        }
                    }
                    steps += 1;
                });
                pool.check(&[first, second, third], &what);
                assert_eq!(first.waiting().len() as u32, 4 - batch, "{what:?}: it has given its frames");
                first.give(&pool, 8, u32::MAX, &mut || ());
                third.give(&pool, 8, u32::MAX, &mut || ());
                pool.check(&[first, second, third], &what);
                if steps <= stop_after {
                    break;
                }
            }
        }
    }
}

/// Two stacks are stopped, the second while it has the first one's turn, both after every single step.
#[test]
fn two_stops_at_any_steps_harm_nobody() {
    for reserved in RESERVED {
        for first_stop in 0.. {
            let mut first_was_stopped = false;
            for second_stop in 0.. {
                let (pool, stacks) = three_stacks(u32::MAX - 1, reserved);
                let [first, second, third] = &stacks;
                let (mut first_steps, mut second_steps) = (0, 0);
                first.give(&pool, 3, 0, &mut || {
                    if first_steps == first_stop {
                        first_was_stopped = true;
                        second.give(&pool, 2, 0, &mut || {
                            if second_steps == second_stop {
                                third.give(&pool, 8, 0, &mut || ());
                                receive(&pool, third, 5);
                                third.give(&pool, 8, 0, &mut || ());
                            }
                            second_steps += 1;
                        });
                    }
                    first_steps += 1;
                });
                pool.check(&[first, second, third], &(reserved, first_stop, second_stop));
                if second_steps <= second_stop {
                    break;
                }
            }
            if !first_was_stopped {
                break;
            }
        }
    }
}

/// Tells the other threads that there is nothing more to do, also when this one panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn seed() -> u64 {
    let seed = std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("OVERFLY_SEED={seed}");
    seed
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Three threads give frames back as a fourth, the kernel, hands them out; each of them is held up at random steps, for long
/// enough that others take its turn.
#[test]
fn threads_that_are_held_up_at_random_neither_lose_nor_double_a_frame() {
    const ROUNDS: u32 = 15_000;
    let seed = seed();
    let (pool, stacks) = three_stacks(u32::MAX - 5000, 3);
    let (done, taken_over) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for stack in &stacks {
            let (pool, done, taken_over) = (&pool, &done, &taken_over);
            let mut state = seed.wrapping_add(u64::from(stack.number) << 32) | 1;
            scope.spawn(move || {
                let _done = Done(done);
                while !done.load(Ordering::Relaxed) {
                    let batch = 1 + (random(&mut state) % 4) as u32;
                    let patience = (random(&mut state) % 8) as u32;
                    let lost = stack.give(pool, batch, patience, &mut || {
                        if random(&mut state).is_multiple_of(64) {
                            for _ in 0..random(&mut state) % 64 {
                                std::thread::yield_now();
                            }
                        }
                    });
                    taken_over.fetch_add(lost, Ordering::Relaxed);
                }
            });
        }
        let end = Done(&done);
        // A frame that comes off the fill ring has been handed out since it last came, or has never come.
        let mut in_hand = BTreeMap::new();
        let mut state = seed;
        let mut handed = 0;
        while handed < ROUNDS && !done.load(Ordering::Relaxed) {
            let stack = &stacks[(random(&mut state) % 3) as usize];
            match pool.pop() {
                Some(frame) => assert!(in_hand.insert(frame, ()).is_none(), "frame {frame} came twice"),
                None => std::thread::yield_now(),
            }
            if let Some((&frame, ())) = in_hand.iter().next()
                && stack.push(frame)
            {
                in_hand.remove(&frame);
                handed += 1;
            }
        }
        drop(end);
        for frame in in_hand.into_keys() {
            // There is room for all frames in the receive rings together.
            assert!(stacks.iter().any(|stack| stack.push(frame)));
        }
    });
    let [first, second, third] = &stacks;
    pool.check(&[first, second, third], &"at the end");
    println!("{taken_over:?} turns were taken over");
    assert!(taken_over.into_inner() > 0);
}

/// Whatever a stack wrote into its journal, recovery refuses it or leaves sane indices.
#[test]
fn a_corrupted_journal_is_refused() {
    let (pool, stacks) = three_stacks(0, 0);
    stacks[0].give(&pool, 1, 0, &mut || ());
    let committed = pool.turn.load(Ordering::Relaxed);
    pool.journals[0].corrupt(committed, 100);
    assert!(pool.fill().recover(0, &stacks[0].consumer, 8).is_err());
    // A turn of a stack that there is not.
    pool.turn.store(Turn::free(77, 99, 3).word(), Ordering::Relaxed);
    pool.fill().recover(1, &stacks[1].consumer, 8).unwrap();
}

/// The completion ring of a pool with two stacks of four frames each (0 to 3, 4 to 7), 3 frames to receive into before them.
struct Sending {
    producer: AtomicU32,
    consumer: AtomicU32,
    slots: Vec<AtomicU64>,
    busy: Vec<Busy>,
}

impl Sending {
    fn new(start: u32) -> Sending {
        Sending {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            slots: (0..8).map(|_| AtomicU64::new(0)).collect(),
            busy: (0..8).map(|_| Busy::default()).collect(),
        }
    }

    fn ring(&self) -> CompletionRing<'_> {
        CompletionRing {
            producer: &self.producer,
            consumer: &self.consumer,
            slots: &self.slots,
            busy: &self.busy,
            rx_frames: 3,
        }
    }

    fn send(&self, frame: u32) {
        let busy = &self.busy[frame as usize];
        assert!(busy.is_free(), "{frame}");
        busy.begin();
    }

    fn complete(&self, frame: u32) {
        let producer = self.producer.load(Ordering::Relaxed);
        let filled = producer.wrapping_sub(self.consumer.load(Ordering::Acquire));
        assert!(filled < 8, "a frame is freed before its entry is");
        self.slots[producer as usize % 8].store(address(3 + frame) + 7, Ordering::Relaxed);
        self.producer.store(producer.wrapping_add(1), Ordering::Release);
    }

    fn is_free(&self, frame: u32) -> bool {
        self.busy[frame as usize].is_free()
    }
}

/// A stack that empties the ring is stopped after every single step. The other goes on with all of its frames but one at
/// most; a frame that is in use again is not freed when the first goes on.
#[test]
fn a_stop_while_completions_are_taken_harms_nobody() {
    for start in STARTS {
        for completed in [[0, 1, 4, 5], [4, 0, 5, 1], [4, 5, 6, 7], [0, 1, 2, 3]] {
            for stop_after in 0.. {
                let what = (start, completed, stop_after);
                let sending = Sending::new(start);
                for frame in completed {
                    sending.send(frame);
                    sending.complete(frame);
                }
                let (mut steps, mut again) = (0, Vec::new());
                let first = sending.ring().reap(&(0..4), &mut || {
                    if steps == stop_after {
                        sending.ring().reap(&(4..8), &mut || ());
                        let missing = (4..8).filter(|&frame| !sending.is_free(frame)).count();
                        assert!(missing <= 1, "{what:?}: {missing}");
                        // Its frames are in use again, and some are in the ring.
                        for frame in (4..8).filter(|&frame| sending.is_free(frame)) {
                            sending.send(frame);
                            again.push(frame);
                        }
                    }
                    steps += 1;
                });
                assert_eq!(first.invalid, 0);
                for frame in 0..8 {
                    assert_eq!(sending.is_free(frame), !again.contains(&frame), "{what:?}: {frame}");
                }
                for frame in again {
                    sending.complete(frame);
                }
                sending.ring().reap(&(0..4), &mut || ());
                assert!((0..8).all(|frame| sending.is_free(frame)), "{what:?}");
                if steps <= stop_after {
                    break;
                }
            }
        }
    }
}

#[test]
fn addresses_that_are_no_frames_to_send_are_counted() {
    let sending = Sending::new(0);
    for (slot, address) in sending.slots.iter().zip([0, 2 * 2048 + 9, 11 * 2048, u64::MAX, 3 * 2048]) {
        slot.store(address, Ordering::Relaxed);
    }
    sending.producer.store(5, Ordering::Relaxed);
    let reaped = sending.ring().reap(&(0..4), &mut || ());
    assert_eq!((reaped.freed, reaped.invalid, reaped.missed), (1, 4, 0));
}
