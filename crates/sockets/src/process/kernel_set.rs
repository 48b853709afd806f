//! The epoll sets of the program, as a context has them: which of the library's descriptors are in each, and who sleeps there.

use core::ops::{Index, IndexMut};
use core::sync::atomic::Ordering;

use overfly_engine::Instant;
use rustix::io::Errno;

use super::contexts::are_several;
use super::listening::listener_event;
use super::sets::Shared;
use super::tags::PRIVATE_STACK;
use super::{Process, has_in_common, sets, signal};
use crate::any_link::AnyLink;
use crate::interest::{SetId, bits};
use crate::stack::Stack;
use crate::sys;

/// One epoll set of the program.
#[derive(Clone, Copy)]
pub(crate) struct KernelSet {
    /// One of its descriptors.
    pub(crate) descriptor: i32,
    pub(crate) references: u32,
    /// The stack's descriptors are in it.
    pub(crate) prepared: bool,
    /// So were, or are, another process's: what the kernel says of the set is not for the program alone.
    pub(crate) tainted: bool,
    /// It was there before this process was forked: another one may wait for it.
    pub(crate) inherited: bool,
    /// It is watched as a descriptor, as other sets and poll() do: of the library's descriptors only `signal` is in it, and its
    /// threads sleep beside it.
    pub(crate) exposed: bool,
    /// An eventfd in it that is readable while the set has something at user level, or -1, and whether it is.
    pub(super) signal: i32,
    pub(super) signalled: bool,
    /// An eventfd in it, or -1, that wakes the threads that sleep in it.
    pub(super) kick: i32,
    /// The last wait found more than there was room for, or as much.
    pub(crate) full: bool,
    /// The kernel has an entry of a listener's or a UDP socket's that is new or changed: what it says of that is to be told together with what
    /// is so here. Who hears it once only (EPOLLET, EPOLLONESHOT) would hear one half.
    pub(crate) entered: bool,
    /// When the kernel's part was last looked at.
    pub(crate) looked: Instant,
    /// Where threads that look at several contexts begin.
    pub(crate) turn: u32,
}

impl KernelSet {
    /// No set: this context has nothing to do with it.
    const NONE: Self = Self { references: 0, ..Self::new(-1) };

    /// A new set.
    pub(super) const fn new(descriptor: i32) -> Self {
        Self {
            descriptor,
            references: 1,
            prepared: false,
            tainted: false,
            inherited: false,
            exposed: false,
            signal: -1,
            signalled: false,
            kick: -1,
            full: false,
            entered: false,
            looked: Instant::from_micros(0),
            turn: 0,
        }
    }

    /// One of the library's descriptors joins it; `data` tells which.
    pub(crate) fn join(&self, descriptor: i32, data: u64) -> Result<(), Errno> {
        let event = libc::epoll_event { events: bits::IN, u64: data };
        sys::epoll_control(self.descriptor, libc::EPOLL_CTL_ADD, descriptor, &raw const event)
    }

    /// One of the library's descriptors leaves it.
    pub(crate) fn leave(&self, descriptor: i32) {
        let _ = sys::epoll_control(self.descriptor, libc::EPOLL_CTL_DEL, descriptor, core::ptr::null());
    }

    /// Whoever watches it as a descriptor sees whether it is ready, and each of its `news`.
    fn tell(&mut self, ready: bool, news: bool) {
        if ready && (news || !self.signalled) {
            if self.signal < 0 {
                let Some(new) = signal::make() else { return };
                if self.join(new, PRIVATE_STACK).is_err() {
                    return signal::close(new);
                }
                self.signal = new;
            }
            signal::raise(self.signal);
        } else if self.signalled && !ready {
            signal::lower(self.signal);
        }
        self.signalled = ready;
    }

    /// It is closed, or another process's: its signals go.
    pub(super) fn conceal(&mut self) {
        for signal in [&mut self.signal, &mut self.kick] {
            let signal = core::mem::replace(signal, -1);
            if signal >= 0 {
                signal::close(signal);
            }
        }
    }
}

/// The epoll sets of the program, by their numbers; those that this context has nothing to do with have no references.
pub(crate) struct KernelSets {
    records: Vec<KernelSet>,
    /// How many there have been.
    opened: u64,
    /// Children may wait in them as well.
    pub(crate) shared: bool,
    /// One of them was exposed.
    any_exposed: bool,
}

impl KernelSets {
    pub(super) const fn new() -> Self {
        Self { records: Vec::new(), opened: 0, shared: false, any_exposed: false }
    }

    /// One that this context has to do with.
    #[inline]
    pub(crate) fn get_mut(&mut self, set: SetId) -> Option<&mut KernelSet> {
        self.records.get_mut(set.0 as usize).filter(|record| record.references > 0)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut KernelSet> {
        self.records.iter_mut()
    }

    /// All numbers that there are, and have been.
    pub(super) fn numbers(&self) -> impl Iterator<Item = SetId> + use<> {
        (0..self.records.len()).map(|index| SetId(index as u32))
    }

    /// Those that the stack's descriptors are in.
    pub(super) fn prepared(&self) -> impl Iterator<Item = (SetId, &KernelSet)> {
        let records = self.records.iter().enumerate();
        records
            .filter(|(_, record)| record.prepared && record.references > 0)
            .map(|(index, record)| (SetId(index as u32), record))
    }

    /// A new one, of which `epoll` is a descriptor. Returns how many there have been.
    fn open(&mut self, set: SetId, epoll: i32) -> u64 {
        let index = set.0 as usize;
        if self.records.len() <= index {
            self.records.resize(index + 1, KernelSet::NONE);
        }
        self.records[index] = KernelSet::new(epoll);
        self.opened += 1;
        self.opened
    }

    /// As [`Process::signal_exposed`].
    pub(super) fn signal_exposed(&mut self, stack: &mut Stack<AnyLink>) {
        if !self.any_exposed {
            return;
        }
        self.any_exposed = false;
        let exposed = |record: &KernelSet| record.exposed && record.references > 0;
        for (index, record) in self.records.iter_mut().enumerate().filter(|(_, record)| exposed(record)) {
            self.any_exposed = true;
            let set = SetId(index as u32);
            let news = stack.take_news_of(set);
            // Others that have it would hear data that no program has given.
            let is_own = !sets::shared(set).is_passed_on();
            record.tell(is_own && stack.set_is_ready(set), news);
        }
    }
}

impl Index<SetId> for KernelSets {
    type Output = KernelSet;

    #[inline]
    fn index(&self, set: SetId) -> &KernelSet {
        &self.records[set.0 as usize]
    }
}

impl IndexMut<SetId> for KernelSets {
    #[inline]
    fn index_mut(&mut self, set: SetId) -> &mut KernelSet {
        &mut self.records[set.0 as usize]
    }
}

impl Process {
    /// What ends the sleep of threads in a set: its own signal, made at its first use.
    pub(crate) fn kick_of(&mut self, set: SetId) -> Option<i32> {
        let record = &mut self.sets[set];
        if record.kick < 0 {
            record.kick = signal::make()?;
        }
        Some(record.kick)
    }

    /// The stack has a new set: one of its descriptors is `epoll`.
    pub(crate) fn opens_set(&mut self, set: SetId, epoll: i32) {
        let opened = self.sets.open(set, epoll);
        self.sleepers.opens(set, opened);
    }

    /// A set is closed, or its last descriptor here.
    pub(crate) fn conceal_set(&mut self, set: SetId) {
        self.sleepers.closes(set);
        self.sets[set].conceal();
    }

    /// A set concerns this context from now on: one of its descriptors is `epoll`.
    #[inline]
    pub(crate) fn know_set(&mut self, set: SetId, epoll: i32) {
        if self.sets.get_mut(set).is_none() {
            self.stack.make_room(set);
            self.opens_set(set, epoll);
            self.sets[set].inherited = sets::shared(set).inherited.load(Ordering::Relaxed);
        }
    }

    /// A thread is about to wait in a set that concerns this context. Where there are several, one that joins the set wakes it by a
    /// signal of another one's, whether there is a stack yet or not.
    #[inline]
    pub(crate) fn attend(&mut self, set: SetId, shared: &Shared, epoll: i32) {
        self.know_set(set, epoll);
        if shared.exposed.load(Ordering::SeqCst) {
            self.expose(set);
            return;
        }
        if are_several()
            && self.sets[set].kick < 0
            && let Some(kick) = self.kick_of(set)
        {
            let _ = self.sets[set].join(kick, PRIVATE_STACK);
        }
        self.prepare(set);
    }

    /// The stack's descriptors leave a set of the program: none of its sockets is in it.
    pub(super) fn unprepare(&mut self, set: SetId) {
        let Some(record) = self.sets.get_mut(set) else { return };
        record.prepared = false;
        let record = *record;
        let own = self.broker_descriptor().into_iter().chain(self.watch_doorbell());
        own.chain(self.link_descriptors.iter().copied()).for_each(|descriptor| record.leave(descriptor));
        if record.kick >= 0 {
            record.leave(record.kick);
        }
    }

    /// A set is closed: this context has nothing to do with it any more.
    pub(crate) fn forget_set(&mut self, set: SetId) {
        if self.sets.get_mut(set).is_some() {
            self.conceal_set(set);
            self.stack.empty_set(set);
            self.sets[set] = KernelSet::NONE;
        }
    }

    /// A set is watched as a descriptor, by another set or by poll(): the kernel must know what it has at user level, and of
    /// nothing else.
    pub(crate) fn expose(&mut self, set: SetId) {
        if has_in_common() {
            self.claim_watched(set);
        }
        if self.sets[set].exposed {
            return;
        }
        self.sets.any_exposed = true;
        self.watch_again(set);
        let record = &mut self.sets[set];
        (record.exposed, record.tainted) = (true, true);
        let was_prepared = core::mem::take(&mut record.prepared);
        self.silence_fired(set);
        self.wake_all_in(set);
        let record = &self.sets[set];
        if was_prepared {
            let own = self.broker_descriptor().into_iter().chain(self.watch_doorbell());
            own.chain(self.link_descriptors.iter().copied()).for_each(|descriptor| record.leave(descriptor));
        }
        // What wakes those who sleep in it still leaves when they do.
        if !self.sleepers.any_in(set) && record.kick >= 0 {
            record.leave(record.kick);
        }
    }

    /// In a set that is watched as a descriptor the kernel's sockets of listeners, and UDP sockets, show. Of one that was reported for its only
    /// time (EPOLLONESHOT) the kernel's entry, which is none, says nothing more.
    pub(crate) fn silence_fired(&mut self, set: SetId) {
        let KernelSet { exposed, descriptor: epoll, .. } = self.sets[set];
        if !exposed {
            return;
        }
        for (id, descriptor) in self.stack.take_fired(set) {
            let silent = listener_event(id, bits::ET);
            let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_MOD, descriptor, &raw const silent);
        }
    }

    /// Before the kernel is asked about sets: those that are exposed say what they have.
    #[inline]
    pub(crate) fn signal_exposed(&mut self) {
        self.sets.signal_exposed(&mut self.stack);
    }

    /// The stack's own descriptors join a set of the program, so that frames end its sleep. Where others watch the set as a
    /// descriptor they would see it readable for each frame: its threads sleep beside it ([`super::sleep`]).
    #[inline]
    pub(super) fn prepare(&mut self, set: SetId) {
        let record = &self.sets[set];
        if !record.prepared && !record.exposed && self.stack.is_running() {
            self.join_set(set);
        }
    }

    #[cold]
    fn join_set(&mut self, set: SetId) {
        self.sets[set].prepared = true;
        self.watch_links(set);
        let kick = self.kick_of(set);
        for descriptor in [kick, self.broker_descriptor(), self.watch_doorbell()].into_iter().flatten() {
            let _ = self.sets[set].join(descriptor, self.private_data(descriptor));
        }
    }

    /// Frames wake one of the threads that wait for them, each in a set of its own, and whoever it is tells the others. Not so where
    /// the link's descriptor is a set itself (epoll_ctl(2), EPOLLEXCLUSIVE), nor where it could be a child that is woken.
    pub(super) fn watch_links(&self, set: SetId) {
        let set = &self.sets[set];
        let alone = !self.sets.shared && !set.inherited;
        for &descriptor in self.link_descriptors() {
            let watch = |events| {
                let event = libc::epoll_event { events, u64: self.private_data(descriptor) };
                sys::epoll_control(set.descriptor, libc::EPOLL_CTL_ADD, descriptor, &raw const event)
            };
            if !alone || watch(bits::IN | bits::EXCLUSIVE) == Err(Errno::INVAL) {
                let _ = watch(bits::IN);
            }
        }
    }

    /// Sets that are watched already must hear of new links, too, and of what the broker and observers have to say.
    #[cold]
    pub(super) fn watch_new_links(&mut self) {
        self.watch_everywhere();
        for set in self.sets.numbers() {
            let record = &mut self.sets[set];
            if core::mem::take(&mut record.prepared) {
                record.tainted = true;
                self.prepare(set);
            } else if self.sleepers.any_in(set) {
                // Whoever sleeps there does so in the kernel's set, and wakes by what joins it now.
                self.prepare(set);
                self.wake_all_in(set);
            }
        }
        let (sleepers, mut world) = self.machine();
        sleepers.wake_beside(&mut world);
    }

    /// The links' descriptors leave the sets and join them again, behind all others.
    #[cold]
    pub(super) fn watch_links_again(&self) {
        for (set, record) in self.sets.prepared() {
            self.link_descriptors().iter().for_each(|&descriptor| record.leave(descriptor));
            self.watch_links(set);
        }
    }

    /// Before a fork: the child will have this process's sets, may wait in them, and cannot do anything about this one's frames.
    /// Every set must hear of them from now on.
    pub(super) fn share_sets(&mut self) {
        if !core::mem::replace(&mut self.sets.shared, true) {
            self.watch_everywhere();
            self.watch_links_again();
        }
    }
}
