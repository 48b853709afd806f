//! Threads of a program, the library's own, and a link, in an order of a seed's: nobody may be forgotten.

use super::*;

/// How long a frame, or the stack's clock, may wait while somebody sleeps or the library has a thread of its own.
const PATIENCE: Duration = Duration::from_millis(5);
const SOCKETS: u64 = 6;
const SETS: u64 = 3;

/// What a thread waits for.
#[derive(Clone)]
enum Wants {
    Set(SetId),
    Sockets(Vec<SocketId>),
    News,
}

/// Where a thread of the program is.
enum Thread {
    /// Not in the library.
    Elsewhere,
    /// It has released the lock and comes back at once.
    Away {
        wants: Wants,
        spins: bool,
    },
    Asleep {
        wants: Wants,
        slept: Slept,
        until_us: Option<u64>,
    },
}

struct Run {
    random: Random,
    sleepers: Sleepers,
    world: Plain,
    threads: Vec<Thread>,
    /// When the library's own thread looks again.
    background_us: Option<u64>,
    /// Since when there is something on the link, or the stack's clock has rung.
    waits_since_us: Option<u64>,
    taken: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let (mut sleepers, mut world) = Plain::new(SETS as usize);
        for set in &mut world.sets {
            set.sockets = (0..SOCKETS as u32).filter(|_| random.chance(400)).collect();
            set.shared = random.chance(200);
        }
        sleepers.background.is_there = random.chance(500);
        let threads = (0..=random.below(5)).map(|_| Thread::Elsewhere).collect();
        Self { random, sleepers, world, threads, background_us: None, waits_since_us: None, taken: 0 }
    }

    /// One thing happens, and whatever follows of it without time.
    fn step(&mut self) {
        match self.random.below(10) {
            0..=3 => {
                self.world.send(self.random.below(SOCKETS) as u32);
                if self.random.chance(300) {
                    self.world.send(self.random.below(SOCKETS) as u32);
                }
            }
            4 | 5 => self.enter(),
            6 => self.interrupt(),
            7 if self.random.chance(100) => self.expose(),
            7 => {
                // A call has sent something.
                self.world.deadline_us = Some(self.world.time_us + self.random.below(4000));
                self.sleepers.tell(&mut self.world);
                self.release();
            }
            _ => {
                let time_us = if self.random.chance(100) { 12_000 } else { self.random.below(700) };
                self.world.pass(Duration::from_micros(time_us.min(self.until_next_us())));
            }
        }
        self.settle();
        self.check();
    }

    /// How far the clock may go at once: no timer is overslept.
    fn until_next_us(&self) -> u64 {
        let asleep = self.threads.iter().filter_map(|thread| match thread {
            Thread::Asleep { until_us, .. } => *until_us,
            _ => None,
        });
        let timers = self.world.rings_us.iter().copied().flatten();
        let next = asleep.chain(timers).chain(self.background_us).chain(self.world.deadline_us);
        next.map(|next_us| next_us.saturating_sub(self.world.time_us).max(1)).min().unwrap_or(u64::MAX)
    }

    /// Who can run does, one after the other, until nobody can.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "they wake each other for ever");
            let background = self.background_may_run();
            let mut able: Vec<usize> = (0..self.threads.len()).filter(|&index| self.may_run(index)).collect();
            if background {
                able.push(usize::MAX);
            }
            if able.is_empty() {
                return;
            }
            match self.random.one_of(&able) {
                usize::MAX => self.run_background(),
                index => self.run(index),
            }
        }
    }

    fn may_run(&self, index: usize) -> bool {
        let world = &self.world;
        match &self.threads[index] {
            Thread::Elsewhere => false,
            Thread::Away { .. } => true,
            Thread::Asleep { slept, until_us, .. } => {
                let (signal, polls_links) = self.sleepers.polls(*slept);
                let word = self.sleepers.word(*slept);
                let (in_set, links) = match slept.at {
                    At::Set(set, ..) => (world.is_raised_in(set), self.sleepers.watches(world, set)),
                    At::Beside(_) => (false, polls_links),
                };
                until_us.is_some_and(|until_us| until_us <= world.time_us)
                    || word.is_some_and(|word| word.load(Ordering::Relaxed) == 1)
                    || signal.is_some_and(|signal| world.is_raised(signal))
                    || in_set
                    || (links && world.readable)
                    || (slept.stands_by && world.rang[Timer::Alarm as usize])
            }
        }
    }

    fn background_may_run(&self) -> bool {
        self.sleepers.background.is_there
            && (self.world.rang[Timer::Background as usize]
                || self.world.background_woken
                || self
                    .background_us
                    .is_some_and(|background_us| background_us <= self.world.time_us || self.world.readable))
    }

    fn release(&mut self) {
        releases(&mut self.sleepers, &mut self.world);
    }

    fn pump(&mut self) -> usize {
        let received = self.world.take_frames();
        self.sleepers.took_frames(received);
        self.taken += received as u64;
        if self.sleepers.any() {
            self.sleepers.tell_news(&mut self.world);
        }
        received
    }

    /// A thread of the program's calls the library.
    fn enter(&mut self) {
        let elsewhere = |index: &usize| matches!(self.threads[*index], Thread::Elsewhere);
        let Some(index) = (0..self.threads.len()).find(elsewhere) else { return };
        let wants = match self.random.below(4) {
            0 | 1 => Wants::Set(SetId(self.random.below(SETS) as u32)),
            2 => {
                let some = 1 + self.random.below(2);
                Wants::Sockets((0..some).map(|_| SocketId(self.random.below(SOCKETS) as u32)).collect())
            }
            _ => Wants::News,
        };
        self.look(index, wants, false);
    }

    /// A signal's handler runs in a thread that sleeps.
    fn interrupt(&mut self) {
        let asleep = |index: &usize| matches!(self.threads[*index], Thread::Asleep { .. });
        if let Some(index) = (0..self.threads.len()).find(asleep) {
            self.run(index);
        }
    }

    /// A thread that waits without the lock takes it, and looks again.
    fn run(&mut self, index: usize) {
        match core::mem::replace(&mut self.threads[index], Thread::Elsewhere) {
            Thread::Elsewhere => unreachable!("it waits"),
            Thread::Away { wants, spins } => {
                self.sleepers.comes_back(spins);
                self.look(index, wants, false);
            }
            Thread::Asleep { wants, slept, .. } => {
                let turn = self.sleepers.wakes(&mut self.world, slept);
                self.take_turn(turn);
                self.look(index, wants, true);
            }
        }
    }

    fn take_turn(&mut self, turn: Option<Turn>) {
        match turn {
            None => {}
            Some(Turn::StandBy(set)) => {
                assert!(!self.world.is_shared(set));
                // Not where the links are not in it: it is watched as a descriptor.
                if self.sleepers.watches(&self.world, set) {
                    self.sleepers.stands_by(&mut self.world, set);
                }
            }
            Some(Turn::Watch(set)) => assert!(self.sleepers.watches_again(&mut self.world, set)),
        }
    }

    /// A thread has the lock: it takes what it waits for, or waits.
    fn look(&mut self, index: usize, wants: Wants, slept: bool) {
        self.pump();
        let ready =
            |sockets: &BTreeSet<u32>, world: &Plain| sockets.intersection(&world.ready).next().copied();
        let found = match &wants {
            Wants::Set(set) => ready(&self.world.sets[set.0 as usize].sockets, &self.world),
            Wants::Sockets(ids) => ready(&ids.iter().map(|id| id.0).collect(), &self.world),
            Wants::News => self.world.ready.first().copied(),
        };
        if let Some(socket) = found {
            self.world.ready.remove(&socket);
        }
        if let (Wants::Set(set), true) = (&wants, slept) {
            let turn = self.sleepers.count_turn(&self.world, *set, found.is_some());
            self.take_turn(turn);
        }
        if found.is_some() {
            if let Wants::Set(set) = wants {
                self.sleepers.leave_rest(&mut self.world, set);
                let time = self.world.now();
                self.sleepers.serves(set, time);
            }
        } else if slept && self.random.chance(200) {
            // Its time is over, or a handler ran.
        } else if self.random.chance(200) && self.sleepers.may_spin(|| 2) {
            self.sleepers.goes_away(true);
            self.threads[index] = Thread::Away { wants, spins: true };
        } else if self.random.chance(100) {
            self.sleepers.goes_away(false);
            self.threads[index] = Thread::Away { wants, spins: false };
        } else {
            self.sleep(index, wants);
        }
        self.release();
    }

    fn sleep(&mut self, index: usize, wants: Wants) {
        let deadline = self
            .random
            .chance(300)
            .then(|| self.world.now() + Duration::from_micros(self.random.below(9000)));
        let polls = matches!(wants, Wants::Set(_)) || self.random.chance(300);
        let what = match &wants {
            Wants::Set(set) => For::Set(*set),
            Wants::Sockets(ids) => For::Sockets(ids),
            Wants::News => For::News,
        };
        let (timeout_us, slept) = self.sleepers.begin(&mut self.world, what, (polls, false), deadline);
        let until_us = timeout_us.map(|timeout_us| self.world.time_us + timeout_us);
        self.threads[index] = Thread::Asleep { wants, slept, until_us };
    }

    /// The library's own thread looks.
    fn run_background(&mut self) {
        (self.world.background_woken, self.background_us) = (false, None);
        if !self.sleepers.attend(&mut self.world) {
            return self.release();
        }
        self.pump();
        self.sleepers.tell(&mut self.world);
        let at_once = !self.sleepers.arm(&mut self.world);
        let until_us = self.world.deadline_us.unwrap_or(u64::MAX);
        self.background_us = Some(if at_once { self.world.time_us } else { until_us });
        let looked = self.world.looked();
        self.sleepers.has_attended(looked);
        self.release();
    }

    /// A set is watched as a descriptor from now on.
    fn expose(&mut self) {
        let set = SetId(self.random.below(SETS) as u32);
        if self.world.is_exposed(set) {
            return;
        }
        self.sleepers.watches_again(&mut self.world, set);
        let record = &mut self.world.sets[set.0 as usize];
        (record.exposed, record.joined) = (true, false);
        if self.sleepers.any_in(set) {
            self.sleepers.wake_all_in(&mut self.world, set);
        }
        self.release();
    }

    /// Nobody can run: whatever there is to do, somebody will do soon.
    fn check(&mut self) {
        let asleep: Vec<_> = (self.threads.iter())
            .filter_map(|thread| match thread {
                Thread::Asleep { wants, slept, .. } => Some((wants, slept)),
                _ => None,
            })
            .collect();
        let count = |is: fn(&Slept) -> bool| asleep.iter().filter(|(_, slept)| is(slept)).count() as u32;
        let Sleepers { asleep: all, ref watching, standing_by, beside, away, spinning, .. } = self.sleepers;
        assert_eq!((all, away, spinning), (asleep.len() as u32, 0, 0));
        assert_eq!(watching.len() as u32, count(|slept| slept.watches));
        assert_eq!(standing_by, count(|slept| slept.stands_by));
        assert_eq!(beside, count(|slept| matches!(slept.at, At::Beside(_))));
        for (wants, slept) in &asleep {
            let ready = match wants {
                Wants::Set(set) => self.world.is_ready(*set),
                Wants::Sockets(ids) => ids.iter().any(|id| self.world.ready.contains(&id.0)),
                Wants::News => !self.world.ready.is_empty(),
            };
            assert!(!ready, "what it waits for is there, and it sleeps: {slept:?}");
        }
        let due = self.world.deadline_us.is_some_and(|deadline_us| deadline_us <= self.world.time_us);
        let served = !asleep.is_empty() || self.sleepers.background.is_there && self.world.looked_us > 0;
        if (self.world.frames.is_empty() && !due) || !served {
            self.waits_since_us = None;
            return;
        }
        let since_us = *self.waits_since_us.get_or_insert(self.world.time_us);
        let waited = Duration::from_micros(self.world.time_us - since_us);
        assert!(waited <= PATIENCE, "frames, or the stack's clock, wait for {waited:?}");
    }
}

#[test]
fn nobody_is_forgotten_whatever_the_order() {
    let first = seed(1);
    let mut taken = 0;
    for seed in first..first + 2000 {
        let ran = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            (0..400).for_each(|_| run.step());
            run.taken
        });
        taken += ran.unwrap_or_else(|_| panic!("OVERFLY_SEED={seed} finds it first"));
    }
    println!("{taken} frames taken");
    assert!(taken > 100_000);
}
