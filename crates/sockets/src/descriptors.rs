//! Descriptors that the program has closed and that a context keeps: for its next accept(), which then needs no system call, or
//! until a flow that is not over needs its port no more.

use rustix::io::Errno;

use crate::sys;
use crate::table::{self, Entry};

/// What one context keeps. To the program its descriptors are closed.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    /// Whose they are.
    context: u32,
    /// For the next accept(), by [`kind`].
    ready: [Vec<i32>; 4],
    /// Of each kind at most.
    limit: usize,
    /// How many hold a port.
    held: usize,
}

/// Those that survive exec and those that do not, of each family.
fn kind(v6: bool, close_on_exec: bool) -> usize {
    usize::from(v6) << 1 | usize::from(close_on_exec)
}

/// Closes one that was not the program's.
pub(crate) fn close(descriptor: i32) {
    table::enter(descriptor, Entry::Kernel);
    sys::close(descriptor);
}

impl Descriptors {
    pub(crate) const fn new() -> Self {
        Self { context: 0, ready: [const { Vec::new() }; 4], limit: 0, held: 0 }
    }

    /// Before there are any.
    pub(crate) fn belong_to(&mut self, context: usize) {
        self.context = context as u32;
    }

    pub(crate) fn bound(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    const fn entry(&self) -> Entry {
        Entry::Cached(self.context)
    }

    /// One for an accepted connection: kept, or new by `make`, for which the others make room if there are too many.
    pub(crate) fn take(
        &mut self,
        v6: bool,
        close_on_exec: bool,
        make: impl Fn(bool, bool) -> Result<i32, Errno>,
    ) -> Result<i32, Errno> {
        if let Some(descriptor) = self.ready[kind(v6, close_on_exec)].pop() {
            return Ok(descriptor);
        }
        match make(v6, close_on_exec) {
            Err(Errno::MFILE | Errno::NFILE) if self.give_back() => make(v6, close_on_exec),
            outcome => outcome,
        }
    }

    /// A closed connection's serves the next one. Returns whether it is kept.
    pub(crate) fn keep(&mut self, descriptor: i32, v6: bool, close_on_exec: bool) -> bool {
        let entry = self.entry();
        let ready = &mut self.ready[kind(v6, close_on_exec)];
        if ready.len() >= self.limit || !table::enter(descriptor, entry) {
            return false;
        }
        ready.push(descriptor);
        true
    }

    /// It holds the port of a flow that is not over; `least` may at any rate. Returns whether it is kept.
    pub(crate) fn hold(&mut self, descriptor: i32, least: usize) -> bool {
        let keeps = self.held < self.limit.max(least) && table::enter(descriptor, self.entry());
        self.held += usize::from(keeps);
        keeps
    }

    /// Its flow is over. The program may have put something else at its number.
    pub(crate) fn release(&mut self, descriptor: i32) {
        if table::lookup(descriptor) == self.entry() {
            close(descriptor);
            self.held = self.held.saturating_sub(1);
        }
    }

    /// The kernel gets all back that wait for an accept(). Returns whether there were any.
    pub(crate) fn give_back(&mut self) -> bool {
        let mut any = false;
        for ready in &mut self.ready {
            for descriptor in ready.drain(..) {
                close(descriptor);
                any = true;
            }
        }
        any
    }

    /// The program puts something else at its number.
    pub(crate) fn give_up(&mut self, descriptor: i32) {
        let place = |ready: &Vec<i32>| ready.iter().position(|&kept| kept == descriptor);
        let found = self.ready.iter_mut().find_map(|ready| place(ready).map(|place| ready.remove(place)));
        if found.is_none() && table::lookup(descriptor) == self.entry() {
            self.held = self.held.saturating_sub(1);
        }
        table::enter(descriptor, Entry::Kernel);
    }

    /// The kernel gets all back, those that hold a port as well: the flows are another process's.
    pub(crate) fn forget(&mut self) {
        self.give_back();
        for descriptor in 0..if self.held > 0 { table::length() } else { 0 } {
            if table::lookup(descriptor) == self.entry() {
                close(descriptor);
            }
        }
        self.held = 0;
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicI32, Ordering};
    use std::os::fd::IntoRawFd;
    use std::sync::Once;

    use super::*;

    /// A descriptor of a number that no other test gets, not even once it is closed.
    fn some() -> i32 {
        static TABLE: Once = Once::new();
        static NEXT: AtomicI32 = AtomicI32::new(800);
        TABLE.call_once(|| table::create(0));
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let moved = rustix::io::fcntl_dupfd_cloexec(&event, number).unwrap().into_raw_fd();
        assert_eq!(moved, number);
        moved
    }

    fn is_open(descriptor: i32) -> bool {
        // SAFETY: the number is looked at for one call, and what is there stays open.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
        rustix::io::fcntl_getfd(borrowed).is_ok()
    }

    fn of(context: usize, limit: usize) -> Descriptors {
        let mut descriptors = Descriptors::new();
        descriptors.belong_to(context);
        descriptors.bound(limit);
        descriptors
    }

    const NONE_LEFT: fn(bool, bool) -> Result<i32, Errno> = |_, _| Err(Errno::MFILE);

    #[test]
    fn each_kind_is_kept_apart_and_within_its_limit() {
        let mut kept = of(20, 2);
        let kinds = [(false, false), (false, true), (true, false), (true, true)];
        let descriptors: Vec<_> = kinds.iter().map(|_| [some(), some(), some()]).collect();
        for (&(v6, exec), three) in kinds.iter().zip(&descriptors) {
            let [first, second, third] = *three;
            assert!(kept.keep(first, v6, exec) && kept.keep(second, v6, exec));
            assert!(!kept.keep(third, v6, exec), "a third one");
            assert_eq!([first, third].map(table::lookup), [Entry::Cached(20), Entry::Kernel]);
        }
        for (&(v6, exec), three) in kinds.iter().zip(&descriptors) {
            assert_eq!(kept.take(v6, exec, NONE_LEFT), Ok(three[1]), "the last is the first");
            assert_eq!(kept.take(v6, exec, NONE_LEFT), Ok(three[0]));
            assert_eq!(kept.take(v6, exec, |_, _| Ok(-7)), Ok(-7), "then new ones");
        }
        descriptors.into_iter().flatten().for_each(close);
    }

    #[test]
    fn who_has_too_many_gets_room_once() {
        let mut kept = of(21, 4);
        let one = some();
        assert!(kept.keep(one, false, true));
        let tries = core::cell::Cell::new(0);
        let make = |_, _| {
            tries.set(tries.get() + 1);
            if is_open(one) { Err(Errno::MFILE) } else { Ok(-7) }
        };
        assert_eq!(kept.take(true, true, make), Ok(-7));
        assert_eq!((tries.get(), table::lookup(one)), (2, Entry::Kernel));
        assert_eq!(kept.take(true, true, NONE_LEFT), Err(Errno::MFILE), "nothing is left to give back");
        assert!(!kept.give_back());
    }

    #[test]
    fn what_holds_a_port_is_closed_when_its_flow_is_over() {
        let mut kept = of(22, 0);
        let [first, second, third] = [some(), some(), some()];
        assert!(kept.hold(first, 1));
        assert!(!kept.hold(second, 1), "one at most");
        assert!(!kept.give_back() && is_open(first), "it waits for no accept()");
        // The program dup2()s something to that number: it is the program's.
        kept.give_up(first);
        kept.release(first);
        assert!(is_open(first));
        assert!(kept.hold(third, 1), "there is room for another one");
        kept.release(third);
        assert!(!is_open(third));
        assert_eq!(table::lookup(third), Entry::Kernel);
        [first, second].into_iter().for_each(close);
    }

    #[test]
    fn a_child_closes_what_its_context_kept_and_nothing_else() {
        let (mut kept, mut others) = (of(23, 1), of(24, 1));
        let [ready, held, another] = [some(), some(), some()];
        assert!(kept.keep(ready, false, false) && kept.hold(held, 1) && others.hold(another, 1));
        kept.forget();
        assert_eq!([ready, held, another].map(is_open), [false, false, true]);
        assert_eq!(table::lookup(another), Entry::Cached(24));
        kept.forget();
        others.forget();
        assert!(!is_open(another));
    }
}
