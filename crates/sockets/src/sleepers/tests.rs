//! The machine in a world of its own: what it does in each case, and at random whether it ever forgets anybody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use overfly_testing::{Random, seed};

use super::background::RELIEF;
use super::standby::{BUSY, TURNS};
use super::*;

mod random;

const MS: Duration = Duration::from_millis(1);

/// A world in which what is asked for is noted.
#[derive(Default)]
struct Plain {
    time_us: u64,
    looked_us: u64,
    /// What comes next on the link: the sockets that each frame is for.
    frames: VecDeque<SocketId>,
    armed: bool,
    /// A frame came while the links were armed.
    readable: bool,
    deadline_us: Option<u64>,
    news: bool,
    urgent: bool,
    ready: BTreeSet<u32>,
    awaited: BTreeSet<u32>,
    sets: Vec<Set>,
    signals: BTreeMap<i32, bool>,
    /// When the timers ring, and whether they have rung.
    rings_us: [Option<u64>; 2],
    rang: [bool; 2],
    background_woken: bool,
    /// Futexes that were woken.
    called: usize,
    no_signals: bool,
}

#[derive(Default)]
struct Set {
    sockets: BTreeSet<u32>,
    joined: bool,
    exposed: bool,
    shared: bool,
    signal: Option<i32>,
}

impl Plain {
    /// With so many sets, which the links have joined.
    fn new(sets: usize) -> (Sleepers, Self) {
        let mut world = Self { time_us: 1_000_000, ..Self::default() };
        let mut sleepers = Sleepers::new();
        for index in 0..sets {
            sleepers.opens(SetId(index as u32), index as u64 + 1);
            let signal = world.make_signal();
            world.sets.push(Set { joined: true, signal, ..Set::default() });
        }
        (sleepers, world)
    }

    fn pass(&mut self, time: Duration) {
        self.time_us += time.as_micros() as u64;
        for timer in 0..2 {
            if self.rings_us[timer].is_some_and(|rings_us| rings_us <= self.time_us) {
                self.rings_us[timer] = None;
                self.rang[timer] = true;
            }
        }
    }

    /// A frame for a socket comes.
    fn send(&mut self, socket: u32) {
        self.frames.push_back(SocketId(socket));
        self.readable |= core::mem::take(&mut self.armed);
    }

    /// Takes the frames, as a pump does. Returns how many there were.
    fn take_frames(&mut self) -> usize {
        self.looked_us = self.time_us;
        (self.armed, self.readable) = (false, false);
        if self.deadline_us.is_some_and(|deadline_us| deadline_us <= self.time_us) {
            self.deadline_us = None;
        }
        let frames = core::mem::take(&mut self.frames);
        for SocketId(socket) in &frames {
            self.ready.insert(*socket);
            self.awaited.remove(socket);
            self.news = true;
        }
        frames.len()
    }

    fn is_raised(&self, signal: i32) -> bool {
        self.signals[&signal]
    }

    fn is_raised_in(&self, set: SetId) -> bool {
        self.sets[set.0 as usize].signal.is_some_and(|signal| self.is_raised(signal))
    }
}

impl World for Plain {
    fn now(&self) -> Instant {
        Instant::from_micros(self.time_us)
    }

    fn looked(&self) -> Instant {
        Instant::from_micros(self.looked_us)
    }

    fn next_look(&self) -> Option<Instant> {
        self.deadline_us.map(Instant::from_micros)
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        self.frames.is_empty()
    }

    fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.news)
    }

    fn is_urgent(&self) -> bool {
        self.urgent
    }

    fn awaits(&mut self, socket: SocketId) {
        self.awaited.insert(socket.0);
    }

    fn is_awaited(&self, socket: SocketId) -> bool {
        self.awaited.contains(&socket.0)
    }

    fn is_ready(&self, set: SetId) -> bool {
        !self.sets[set.0 as usize].sockets.is_disjoint(&self.ready)
    }

    fn is_joined(&self, set: SetId) -> bool {
        self.sets[set.0 as usize].joined
    }

    fn is_exposed(&self, set: SetId) -> bool {
        self.sets[set.0 as usize].exposed
    }

    fn is_shared(&self, set: SetId) -> bool {
        self.sets[set.0 as usize].shared
    }

    fn signal_exposed(&mut self) {}

    fn signal_of(&self, set: SetId) -> Option<i32> {
        self.sets[set.0 as usize].signal
    }

    fn leaves(&mut self, signal: i32, set: SetId) {
        assert_eq!(self.signal_of(set), Some(signal));
    }

    fn make_signal(&mut self) -> Option<i32> {
        if self.no_signals {
            return None;
        }
        let signal = self.signals.len() as i32;
        self.signals.insert(signal, false);
        Some(signal)
    }

    fn raise(&mut self, signal: i32) {
        self.signals.insert(signal, true);
    }

    fn lower(&mut self, signal: i32) {
        self.signals.insert(signal, false);
    }

    fn call(&mut self, calls: &Calls) {
        self.called += calls.words().count();
    }

    fn ring(&mut self, timer: Timer, after: Duration) {
        self.rings_us[timer as usize] = Some(self.time_us + after.as_micros() as u64);
        self.rang[timer as usize] = false;
    }

    fn silence(&mut self, timer: Timer) {
        self.rang[timer as usize] = false;
        self.rings_us[timer as usize] = None;
    }

    fn wake_background(&mut self) {
        self.background_woken = true;
    }
}

/// A thread sleeps until there is news of some sockets.
fn sleeps(sleepers: &mut Sleepers, world: &mut Plain, sockets: &[u32]) -> Slept {
    let ids: Vec<SocketId> = sockets.iter().map(|&socket| SocketId(socket)).collect();
    sleepers.begin(world, For::Sockets(&ids), (false, false), None).1
}

fn sleeps_in(sleepers: &mut Sleepers, world: &mut Plain, set: u32) -> Slept {
    sleepers.begin(world, For::Set(SetId(set)), (true, false), None).1
}

/// The lock is released: how many threads that sleep on futexes are woken.
fn releases(sleepers: &mut Sleepers, world: &mut Plain) -> usize {
    if sleepers.are_forgotten(world.looked()) {
        sleepers.remember(world);
    }
    sleepers.take_calls().map_or(0, |calls| calls.words().count())
}

/// A thread looks for frames, and tells the others what it found.
fn pumps(sleepers: &mut Sleepers, world: &mut Plain) {
    let received = world.take_frames();
    sleepers.took_frames(received);
    sleepers.tell_news(world);
}

#[test]
fn one_of_those_beside_polls_the_links_and_the_others_a_futex_each() {
    let (mut sleepers, mut world) = Plain::new(0);
    let first = sleeps(&mut sleepers, &mut world, &[1]);
    let (signal, watches) = sleepers.polls(first);
    assert!(signal.is_some() && watches && sleepers.word(first).is_none() && world.armed);
    let second = sleeps(&mut sleepers, &mut world, &[2]);
    assert_eq!(sleepers.polls(second), (None, false));
    assert_eq!(sleepers.word(second).unwrap().load(Ordering::Relaxed), 0);
    // Whoever waits for frames looks itself.
    let (_, third) = sleepers.begin(&mut world, For::Frames, (false, false), None);
    assert!(sleepers.polls(third).1);
}

#[test]
fn news_wake_who_waits_for_them_and_nobody_else() {
    let (mut sleepers, mut world) = Plain::new(0);
    let slept = [1, 2, 3].map(|socket| sleeps(&mut sleepers, &mut world, &[socket]));
    world.send(2);
    pumps(&mut sleepers, &mut world);
    assert_eq!(releases(&mut sleepers, &mut world), 1);
    let woken =
        |sleepers: &Sleepers, index: usize| sleepers.word(slept[index]).unwrap().load(Ordering::Relaxed);
    assert_eq!((woken(&sleepers, 1), woken(&sleepers, 2)), (1, 0));
    assert!(!world.is_raised(sleepers.polls(slept[0]).0.unwrap()));
    // What concerns everybody does.
    (world.news, world.urgent) = (true, true);
    sleepers.tell(&mut world);
    assert_eq!((releases(&mut sleepers, &mut world), woken(&sleepers, 2)), (1, 1));
    assert!(world.is_raised(sleepers.polls(slept[0]).0.unwrap()));
}

#[test]
fn when_who_watched_goes_back_to_the_program_another_one_is_called() {
    let (mut sleepers, mut world) = Plain::new(0);
    let first = sleeps(&mut sleepers, &mut world, &[1]);
    let second = sleeps(&mut sleepers, &mut world, &[2]);
    world.send(1);
    assert!(world.readable);
    assert_eq!(sleepers.wakes(&mut world, first), None);
    pumps(&mut sleepers, &mut world);
    assert_eq!(releases(&mut sleepers, &mut world), 1);
    // Once, until it wakes and watches.
    assert_eq!(releases(&mut sleepers, &mut world), 0);
    assert_eq!(sleepers.wakes(&mut world, second), None);
    let second = sleeps(&mut sleepers, &mut world, &[2]);
    assert!(sleepers.polls(second).1 && world.armed);
}

#[test]
fn who_takes_frames_arms_the_links_for_those_who_watch() {
    let (mut sleepers, mut world) = Plain::new(1);
    sleeps_in(&mut sleepers, &mut world, 0);
    pumps(&mut sleepers, &mut world);
    assert!(!world.armed);
    releases(&mut sleepers, &mut world);
    assert!(world.armed && !world.is_raised_in(SetId(0)));
    // A frame that comes before that wakes who watches.
    pumps(&mut sleepers, &mut world);
    world.send(1);
    releases(&mut sleepers, &mut world);
    assert!(world.is_raised_in(SetId(0)));
}

#[test]
fn a_timer_that_is_earlier_than_who_watches_wakes_it() {
    let (mut sleepers, mut world) = Plain::new(0);
    world.deadline_us = Some(world.time_us + 5000);
    let deadline = Some(world.now() + 3 * MS);
    let (timeout_us, slept) = sleepers.begin(&mut world, For::News, (false, false), deadline);
    assert_eq!(timeout_us, Some(3000));
    let signal = sleepers.polls(slept).0.unwrap();
    sleepers.tell(&mut world);
    assert!(!world.is_raised(signal));
    world.deadline_us = Some(world.time_us + 2000);
    sleepers.tell(&mut world);
    assert!(world.is_raised(signal));
    // Its signal is down when it is awake.
    assert_eq!(sleepers.wakes(&mut world, slept), None);
    assert!(!world.is_raised(signal));
}

#[test]
fn all_who_sleep_in_a_set_are_woken_and_who_comes_later_is_not() {
    let (mut sleepers, mut world) = Plain::new(1);
    let set = SetId(0);
    let slept = [(); 3].map(|()| sleeps_in(&mut sleepers, &mut world, 0));
    sleepers.wake_all_in(&mut world, set);
    let late = sleeps_in(&mut sleepers, &mut world, 0);
    for (left, slept) in slept.into_iter().enumerate() {
        assert!(world.is_raised_in(set), "{left}");
        assert_eq!(sleepers.wakes(&mut world, slept), None);
    }
    assert!(!world.is_raised_in(set) && sleepers.any_in(set));
    assert_eq!(sleepers.wakes(&mut world, late), None);
    assert!(!sleepers.any_in(set) && !sleepers.any());
}

#[test]
fn who_leaves_some_of_what_a_set_has_wakes_another_one() {
    let (mut sleepers, mut world) = Plain::new(1);
    let set = SetId(0);
    world.sets[0].sockets = BTreeSet::from([1, 2]);
    let slept = [(); 2].map(|()| sleeps_in(&mut sleepers, &mut world, 0));
    [1, 2].into_iter().for_each(|socket| world.send(socket));
    pumps(&mut sleepers, &mut world);
    // One is woken for both.
    assert_eq!(sleepers.wakes(&mut world, slept[0]), None);
    assert!(!world.is_raised_in(set));
    world.ready.remove(&1);
    sleepers.leave_rest(&mut world, set);
    assert!(world.is_raised_in(set));
    assert_eq!(sleepers.wakes(&mut world, slept[1]), None);
    // Nobody sleeps there any more, whatever is left.
    sleepers.leave_rest(&mut world, set);
    assert!(!world.is_raised_in(set));
}

#[test]
fn who_slept_in_a_closed_set_is_not_counted_in_the_one_that_has_its_number() {
    let (mut sleepers, mut world) = Plain::new(1);
    let set = SetId(0);
    let old = sleeps_in(&mut sleepers, &mut world, 0);
    sleepers.closes(set);
    sleepers.opens(set, 2);
    let new = sleeps_in(&mut sleepers, &mut world, 0);
    assert_eq!(sleepers.wakes(&mut world, old), None);
    assert!(sleepers.any_in(set));
    assert_eq!(sleepers.wakes(&mut world, new), None);
    assert!(!sleepers.any_in(set) && !sleepers.any());
}

#[test]
fn a_set_whose_threads_are_woken_for_others_stands_by_until_nobody_else_looks() {
    let (mut sleepers, mut world) = Plain::new(2);
    let (accepts, serves) = (SetId(0), SetId(1));
    for turn in 1..=TURNS {
        let slept = sleeps_in(&mut sleepers, &mut world, 0);
        pumps(&mut sleepers, &mut world);
        sleepers.serves(serves, world.now());
        assert_eq!(sleepers.wakes(&mut world, slept), None);
        let said = sleepers.count_turn(&world, accepts, false);
        assert_eq!(said, (turn == TURNS).then_some(Turn::StandBy(accepts)), "{turn}");
    }
    sleepers.stands_by(&mut world, accepts);
    assert!(!sleepers.watches(&world, accepts) && sleepers.watches(&world, serves));
    // Nobody watches: the alarm wakes it a millisecond after the last one went back, and eight times in a row it was needed.
    for turn in 1..=TURNS {
        let slept = sleeps_in(&mut sleepers, &mut world, 0);
        releases(&mut sleepers, &mut world);
        world.pass(MS);
        assert!(world.rang[Timer::Alarm as usize]);
        let said = sleepers.wakes(&mut world, slept);
        assert_eq!(said, (turn == TURNS).then_some(Turn::Watch(accepts)), "{turn}");
        assert!(!world.rang[Timer::Alarm as usize]);
    }
    // Who sleeps there is counted as one who watches from then on.
    sleeps_in(&mut sleepers, &mut world, 0);
    assert!(sleepers.watches_again(&mut world, accepts) && world.is_raised_in(accepts));
    assert!(sleepers.watches(&world, accepts) && !sleepers.watches_again(&mut world, accepts));
}

#[test]
fn who_leaves_wakes_no_other_that_sees_the_next_frame_and_the_clock() {
    let (mut sleepers, mut world) = Plain::new(2);
    world.deadline_us = Some(world.time_us + 5_000);
    sleeps_in(&mut sleepers, &mut world, 1);
    let soon = Some(world.now() + MS);
    let (_, slept) = sleepers.begin(&mut world, For::Set(SetId(0)), (true, false), soon);
    world.pass(MS);
    assert_eq!(sleepers.wakes(&mut world, slept), None);
    pumps(&mut sleepers, &mut world);
    assert!(releases(&mut sleepers, &mut world) == 0 && !world.is_raised_in(SetId(1)) && world.armed);
    world.deadline_us = Some(world.time_us + 1_000);
    sleepers.remember(&mut world);
    assert!(world.is_raised_in(SetId(1)), "an earlier timer");
}

#[test]
fn a_set_does_not_stand_by_where_nobody_else_is_busy_or_a_child_could_wait() {
    for (shared, idle) in [(true, false), (false, true)] {
        let (mut sleepers, mut world) = Plain::new(2);
        sleepers.serves(SetId(1), world.now());
        world.sets[0].shared = shared;
        if idle {
            world.pass(BUSY);
        }
        pumps(&mut sleepers, &mut world);
        assert!((0..3 * TURNS).all(|_| sleepers.count_turn(&world, SetId(0), false).is_none()));
    }
}

#[test]
fn more_threads_than_are_called_at_once_are_all_called() {
    let (mut sleepers, mut world) = Plain::new(0);
    for _ in 0..40 {
        sleeps(&mut sleepers, &mut world, &[7]);
    }
    world.send(7);
    pumps(&mut sleepers, &mut world);
    // The first one polls.
    let last = releases(&mut sleepers, &mut world);
    assert_eq!(world.called + last, 39);
}

#[test]
fn who_cannot_be_woken_looks_every_millisecond() {
    let (mut sleepers, mut world) = Plain::new(0);
    world.no_signals = true;
    let (timeout_us, _) = sleepers.begin(&mut world, For::News, (true, false), None);
    assert_eq!(timeout_us, Some(1000));
}

#[test]
fn one_thread_spins_or_all_that_have_a_processor() {
    let (mut sleepers, mut world) = Plain::new(0);
    let cores = || 2;
    assert!(sleepers.may_spin(cores));
    sleepers.goes_away(true);
    assert!(sleepers.may_spin(cores));
    sleepers.goes_away(true);
    assert!(!sleepers.may_spin(cores));
    sleepers.comes_back(true);
    let slept = sleeps(&mut sleepers, &mut world, &[1]);
    // Who spins looks at the links for it.
    assert!(!sleepers.may_spin(cores) && !sleepers.polls(slept).1);
    sleepers.comes_back(true);
    assert!(sleepers.may_spin(cores));
    assert_eq!(releases(&mut sleepers, &mut world), 1);
}

#[test]
fn where_nobody_sleeps_a_thread_takes_the_programs_place_after_a_while() {
    let (mut sleepers, mut world) = Plain::new(1);
    sleepers.background.is_there = true;
    let timer = Timer::Background as usize;
    pumps(&mut sleepers, &mut world);
    releases(&mut sleepers, &mut world);
    let rings_us = world.rings_us[timer];
    assert_eq!(rings_us, Some(world.time_us + RELIEF.as_micros() as u64));
    // Who leaves soon after sets no other.
    pumps(&mut sleepers, &mut world);
    releases(&mut sleepers, &mut world);
    assert_eq!(world.rings_us[timer], rings_us);
    world.pass(RELIEF / 4);
    pumps(&mut sleepers, &mut world);
    releases(&mut sleepers, &mut world);
    // It is early for that one, and set again.
    world.pass(RELIEF * 3 / 4);
    assert!(world.rang[timer] && !sleepers.attend(&mut world) && world.rings_us[timer].is_some());
    world.pass(RELIEF / 4);
    assert!(world.rang[timer] && sleepers.attend(&mut world));
    sleepers.has_attended(world.looked());
    releases(&mut sleepers, &mut world);
    assert!(!world.background_woken && world.rings_us[timer].is_none());
    // Who comes and leaves takes its place, and sets the timer.
    pumps(&mut sleepers, &mut world);
    releases(&mut sleepers, &mut world);
    assert!(world.background_woken && world.rings_us[timer].is_some() && !sleepers.attend(&mut world));
    // So does who sleeps, and sets none.
    world.pass(RELIEF);
    assert!(sleepers.attend(&mut world));
    world.background_woken = false;
    sleeps_in(&mut sleepers, &mut world, 0);
    assert!(world.background_woken && world.rings_us[timer].is_none() && !sleepers.attend(&mut world));
}

#[test]
fn the_child_of_a_fork_has_no_sleepers_and_closes_its_parents_signals() {
    let (mut sleepers, mut world) = Plain::new(1);
    sleeps(&mut sleepers, &mut world, &[1]);
    sleeps_in(&mut sleepers, &mut world, 0);
    sleepers.empty_sets();
    assert_eq!(sleepers.forget().len(), 1);
    assert!(!sleepers.any() && !sleepers.any_in(SetId(0)) && !sleepers.anybody());
}
