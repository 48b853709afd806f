//! Epoll sets at user level: which sockets they watch, and which of them are worth looking at.
//!
//! As in Linux, a set's ready list holds what *may* be ready: an event puts an interest on it, [`Interests::collect`]
//! asks the socket for its present state, reports it, and keeps level-triggered interests on the list.

use rustix::io::Errno;

/// No interest, or no set.
pub(crate) const NONE: u32 = u32::MAX;

/// The bits of `struct epoll_event.events` (include/uapi/linux/eventpoll.h).
#[allow(missing_docs, reason = "the kernel's names say it")]
pub mod bits {
    pub const IN: u32 = 0x1;
    pub const PRI: u32 = 0x2;
    pub const OUT: u32 = 0x4;
    pub const ERR: u32 = 0x8;
    pub const HUP: u32 = 0x10;
    pub const RDNORM: u32 = 0x40;
    pub const WRNORM: u32 = 0x100;
    pub const RDHUP: u32 = 0x2000;
    pub const EXCLUSIVE: u32 = 1 << 28;
    pub const ONESHOT: u32 = 1 << 30;
    pub const ET: u32 = 1 << 31;
}

/// Names a set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SetId(pub(crate) u32);

/// One (set, descriptor) pair.
#[derive(Clone, Copy)]
pub(crate) struct Interest {
    pub(crate) set: u32,
    pub(crate) socket: u32,
    pub(crate) descriptor: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// Neighbours on the set's ready list.
    before: u32,
    after: u32,
    listed: bool,
    /// A one-shot interest that has fired.
    disabled: bool,
    /// The kernel's entry of such a one says nothing any more.
    silent: bool,
    /// The kernel's set reports this one itself: the socket is not (yet) ours.
    pub(crate) in_kernel: bool,
    /// Next interest of the same socket; of a free one, the next free one.
    pub(crate) next: u32,
}

impl Interest {
    /// It has fired for its only time.
    pub(crate) const fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// What it waits for, as the kernel's sets have it: one that has fired for its only time waits for nothing.
    pub(crate) const fn armed(&self) -> u32 {
        if self.disabled { self.events & (bits::ONESHOT | bits::ET) } else { self.events }
    }
}

/// One set. `first` and `last` are the ends of its ready list.
#[derive(Clone, Copy)]
struct Set {
    first: u32,
    last: u32,
    listed: usize,
    /// Interests that are reported at user level.
    watching: usize,
    /// Something happened since [`Interests::take_news`].
    news: bool,
    /// Something was reported for its only time since [`Interests::take_fired`].
    fired: bool,
    free: bool,
}

impl Set {
    const NEW: Self =
        Self { first: NONE, last: NONE, listed: 0, watching: 0, news: false, fired: false, free: false };
}

/// All sets of the process and what they watch.
pub(crate) struct Interests {
    sets: Vec<Set>,
    free_sets: Vec<u32>,
    slots: Vec<Interest>,
    free: u32,
}

impl Interests {
    pub(crate) const fn new() -> Self {
        Self { sets: Vec::new(), free_sets: Vec::new(), slots: Vec::new(), free: NONE }
    }

    pub(crate) fn open_set(&mut self) -> SetId {
        match self.free_sets.pop() {
            Some(index) => {
                self.sets[index as usize] = Set::NEW;
                SetId(index)
            }
            None => {
                self.sets.push(Set::NEW);
                SetId(self.sets.len() as u32 - 1)
            }
        }
    }

    /// Makes room for a set that was opened in another context.
    pub(crate) fn make_room(&mut self, set: SetId) {
        if self.sets.len() <= set.0 as usize {
            self.sets.resize(set.0 as usize + 1, Set::NEW);
        }
    }

    /// The set goes; its interests must have been removed.
    pub(crate) fn close_set(&mut self, set: SetId) {
        self.sets[set.0 as usize].free = true;
        self.free_sets.push(set.0);
    }

    /// How many of the set's interests are reported at user level.
    pub(crate) fn watching(&self, set: SetId) -> usize {
        self.sets[set.0 as usize].watching
    }

    pub(crate) fn listed(&self, set: SetId) -> usize {
        self.sets[set.0 as usize].listed
    }

    pub(crate) fn at(&self, index: u32) -> &Interest {
        &self.slots[index as usize]
    }

    /// The interest of `set` in `descriptor` among the list that starts at `head`.
    pub(crate) fn find(&self, head: u32, set: SetId, descriptor: i32) -> Option<u32> {
        let mut index = head;
        while index != NONE {
            let interest = self.at(index);
            if interest.set == set.0 && interest.descriptor == descriptor {
                return Some(index);
            }
            index = interest.next;
        }
        None
    }

    /// Adds an interest to the list that starts at `head`.
    #[allow(clippy::too_many_arguments, reason = "the fields of one record")]
    pub(crate) fn add(
        &mut self,
        head: &mut u32,
        set: SetId,
        socket: u32,
        descriptor: i32,
        events: u32,
        data: u64,
        in_kernel: bool,
    ) -> Result<u32, Errno> {
        if self.find(*head, set, descriptor).is_some() {
            return Err(Errno::EXIST);
        }
        let interest = Interest {
            set: set.0,
            socket,
            descriptor,
            events,
            data,
            before: NONE,
            after: NONE,
            listed: false,
            disabled: false,
            silent: false,
            in_kernel,
            next: *head,
        };
        let index = self.free;
        let index = if index == NONE {
            self.slots.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            self.slots.push(interest);
            self.slots.len() as u32 - 1
        } else {
            self.free = self.slots[index as usize].next;
            self.slots[index as usize] = interest;
            index
        };
        *head = index;
        if !in_kernel {
            self.sets[set.0 as usize].watching += 1;
        }
        Ok(index)
    }

    /// EPOLL_CTL_MOD.
    pub(crate) fn modify(&mut self, index: u32, events: u32, data: u64) {
        let interest = &mut self.slots[index as usize];
        interest.events = events;
        interest.data = data;
        (interest.disabled, interest.silent) = (false, false);
    }

    /// Interests of a set that have fired for their only time since this was asked.
    pub(crate) fn take_fired(&mut self, set: SetId) -> Vec<Interest> {
        let mut fired = Vec::new();
        if !core::mem::take(&mut self.sets[set.0 as usize].fired) {
            return fired;
        }
        for interest in self.slots.iter_mut().filter(|interest| interest.set == set.0) {
            if interest.disabled && !interest.in_kernel && !core::mem::replace(&mut interest.silent, true) {
                fired.push(*interest);
            }
        }
        fired
    }

    /// It has fired for its only time.
    pub(crate) fn disable(&mut self, index: u32) {
        self.slots[index as usize].disabled = true;
    }

    /// The socket is ours from now on: the kernel's set no longer reports this interest.
    pub(crate) fn take_over(&mut self, index: u32) {
        let interest = &mut self.slots[index as usize];
        if interest.in_kernel {
            interest.in_kernel = false;
            self.sets[interest.set as usize].watching += 1;
        }
    }

    /// Removes an interest from its set and from the list that starts at `head`.
    pub(crate) fn remove(&mut self, head: &mut u32, index: u32) {
        self.unlist(index);
        let interest = self.slots[index as usize];
        if !interest.in_kernel {
            self.sets[interest.set as usize].watching -= 1;
        }
        if *head == index {
            *head = interest.next;
        } else {
            let mut before = *head;
            while before != NONE && self.slots[before as usize].next != index {
                before = self.slots[before as usize].next;
            }
            if before != NONE {
                self.slots[before as usize].next = interest.next;
            }
        }
        let slot = &mut self.slots[index as usize];
        slot.set = NONE;
        slot.next = self.free;
        self.free = index;
    }

    /// Every interest of `set`, for closing it.
    pub(crate) fn of_set(&self, set: SetId) -> impl Iterator<Item = u32> + '_ {
        self.slots
            .iter()
            .enumerate()
            .filter(move |(_, interest)| interest.set == set.0)
            .map(|(index, _)| index as u32)
    }

    /// Whether of the list that starts at `head` one hears of such news each time that they happen.
    pub(crate) fn hear_edges(&self, head: u32, news: u32) -> bool {
        let mut index = head;
        while index != NONE {
            let interest = self.at(index);
            if interest.events & bits::ET != 0 && interest.events & news != 0 {
                return true;
            }
            index = interest.next;
        }
        false
    }

    /// `news` happened to the socket whose interests start at `head`: those that asked for it go on their ready lists.
    /// Returns whether there were any.
    pub(crate) fn wake(&mut self, head: u32, news: u32) -> bool {
        let mut index = head;
        let mut woke = false;
        while index != NONE {
            let interest = &self.slots[index as usize];
            let next = interest.next;
            if !interest.in_kernel
                && !interest.disabled
                && (interest.events | bits::ERR | bits::HUP) & news != 0
            {
                self.list(index);
                woke = true;
            }
            index = next;
        }
        woke
    }

    /// Something happened that a set has to look at.
    pub(crate) fn list(&mut self, index: u32) {
        self.sets[self.slots[index as usize].set as usize].news = true;
        self.keep_listed(index);
    }

    /// Whether something happened in a set since this was asked: whoever watches the set as a descriptor sees an edge, though it
    /// was ready before (ep_poll_callback() in fs/eventpoll.c).
    pub(crate) fn take_news(&mut self, set: SetId) -> bool {
        core::mem::take(&mut self.sets[set.0 as usize].news)
    }

    fn keep_listed(&mut self, index: u32) {
        let interest = &mut self.slots[index as usize];
        if interest.listed {
            return;
        }
        let set = &mut self.sets[interest.set as usize];
        interest.listed = true;
        interest.before = set.last;
        interest.after = NONE;
        let last = set.last;
        set.last = index;
        set.listed += 1;
        if last == NONE {
            set.first = index;
        } else {
            self.slots[last as usize].after = index;
        }
    }

    fn unlist(&mut self, index: u32) {
        let interest = &mut self.slots[index as usize];
        if !interest.listed {
            return;
        }
        interest.listed = false;
        let (before, after) = (interest.before, interest.after);
        let set = &mut self.sets[interest.set as usize];
        set.listed -= 1;
        if before == NONE {
            set.first = after;
        } else {
            self.slots[before as usize].after = after;
        }
        let set = self.slots[index as usize].set as usize;
        if after == NONE {
            self.sets[set].last = before;
        } else {
            self.slots[after as usize].before = before;
        }
    }

    /// Reports what is ready in `set`, at most `max` interests: `level` gives the present state of a socket that is asked for
    /// such events, `report` takes
    /// the events and the program's data. Each listed interest is looked at once.
    pub(crate) fn collect(
        &mut self,
        set: SetId,
        max: usize,
        mut level: impl FnMut(u32, u32) -> u32,
        mut report: impl FnMut(u32, u64),
    ) -> usize {
        let mut left = self.listed(set);
        let mut reported = 0;
        while left > 0 && reported < max {
            left -= 1;
            let index = self.sets[set.0 as usize].first;
            if index == NONE {
                break;
            }
            self.unlist(index);
            let interest = &mut self.slots[index as usize];
            if interest.disabled || interest.in_kernel {
                continue;
            }
            let events = level(interest.socket, interest.events) & (interest.events | bits::ERR | bits::HUP);
            if events == 0 {
                continue;
            }
            report(events, interest.data);
            reported += 1;
            if interest.events & bits::ONESHOT != 0 {
                interest.disabled = true;
                self.sets[set.0 as usize].fired = true;
            } else if interest.events & bits::ET == 0 {
                self.keep_listed(index);
            }
        }
        reported
    }

    /// Whether [`Interests::collect`] would report anything.
    pub(crate) fn is_ready(&self, set: SetId, level: impl Fn(u32) -> u32) -> bool {
        let mut index = self.sets[set.0 as usize].first;
        while index != NONE {
            let interest = self.at(index);
            if !interest.disabled
                && !interest.in_kernel
                && level(interest.socket) & (interest.events | bits::ERR | bits::HUP) != 0
            {
                return true;
            }
            index = interest.after;
        }
        false
    }
}
