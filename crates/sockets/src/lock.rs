//! The lock around a stack, of which a thread holds one at a time, but for a fork and a connection that moves: a futex, and the promise that signal handlers do not run while it is held.
//!
//! Handlers that come while their thread holds the lock are deferred until it is released (see [`crate::signal`]), so a
//! handler may use sockets without meeting its own thread's lock, and may jump away.
//!
//! What takes long and needs nothing of the stack, the kick of a device, is the holder's deferred work: it is run when the lock is free.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;

use crate::sys;

/// Free; held; held, and somebody sleeps.
const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// How often a thread looks before it sleeps.
const SPINS: u32 = 100;

/// How often at most a thread lets the others go first.
const YIELDS: u32 = 100;

/// No deferred work is done; some is; some is, and more has come.
const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const AGAIN: u32 = 2;
/// How often in a row a thread runs the deferred work for others.
const ROUNDS: u32 = 4;

/// What a lock can guard.
pub(crate) trait Guarded {
    /// The lock was not free: several threads use it.
    fn contended(&mut self);
    /// What is left to do when the lock is free. Any number of them are done by one that begins later.
    type DeferredWork: Copy;
    /// Takes it.
    fn take_deferred_work(&mut self) -> Option<Self::DeferredWork>;
    /// Does it.
    fn run(deferred_work: Self::DeferredWork) -> Result<(), Errno>;
    /// Does it with the lock held, after it could not be done without, or not so soon that others must not wait for it.
    fn finish_deferred_work(&mut self, failure: Option<Errno>);
    /// Threads to wake when the lock is free: they will want it.
    type Calls;
    /// Takes them.
    fn take_calls(&mut self) -> Option<Self::Calls>;
    /// Wakes them.
    fn call(calls: Self::Calls);
}

/// Guards a `T`.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    deferred_work: AtomicU32,
    /// Threads that wait for it and have something to do.
    waiting: AtomicU32,
    /// Threads that sleep until it is released, or are about to.
    asleep: AtomicU32,
    /// Who holds it is a visitor.
    visited: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value. The value's raw pointers (into the rings that the
// process shares with the broker) are as valid in one thread as in another, so moving access between threads is sound
// although they make `T` itself neither Send nor Sync.
unsafe impl<T> Sync for Lock<T> {}

impl<T: Guarded> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            deferred_work: AtomicU32::new(IDLE),
            waiting: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            visited: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.take_if_free().unwrap_or_else(|| {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let guard = self.wait(SPINS);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            guard
        })
    }

    #[inline]
    fn take_if_free(&self) -> Option<Guard<'_, T>> {
        sys::sleep_control(|sleep_control| sleep_control.holding.store(true, Ordering::Relaxed));
        let taken = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard { lock: self })
    }

    /// As [`Lock::lock`], for a thread that has nothing to do but to look, again and again: it would take the lock from others
    /// for as long as the kernel takes to wake them.
    #[inline]
    pub(crate) fn lock_last(&self) -> Guard<'_, T> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return self.take_if_free().unwrap_or_else(|| self.wait(SPINS));
        }
        self.let_others_go_first();
        // Not before those who sleep until it is free.
        self.take_if_free().unwrap_or_else(|| self.wait(0))
    }

    /// The lock if it is free, for a thread of the library's own, in which no handlers run. Who waits for it then does not take it that
    /// several of the program's threads use it.
    pub(crate) fn visit(&self) -> Option<Guard<'_, T>> {
        let guard = self.take_if_free();
        match &guard {
            Some(_) => self.visited.store(true, Ordering::Relaxed),
            None => sys::sleep_control(|sleep_control| sleep_control.holding.store(false, Ordering::Relaxed)),
        }
        guard
    }

    /// The lock if it is free, for a thread that holds another one: of the two it is released first, by [`Lock::release_one_of_several`].
    pub(crate) fn lock_beside(&self) -> Option<Guard<'_, T>> {
        let taken = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard { lock: self })
    }

    /// The visitor has left.
    pub(crate) fn visited(&self) {
        self.visited.store(false, Ordering::Relaxed);
    }

    /// While the lock is free, and those who wait for it are still to wake. One that is held may be held for long: then there is
    /// nothing to be let go first, and this thread waits as they do. Returns how often it has yielded.
    #[cold]
    fn let_others_go_first(&self) -> u32 {
        let are_to_wake =
            || self.waiting.load(Ordering::Relaxed) > 0 && self.state.load(Ordering::Relaxed) == FREE;
        (0..YIELDS).take_while(|_| are_to_wake()).map(|_| rustix::thread::sched_yield()).count() as u32
    }

    #[cold]
    fn wait(&self, spins: u32) -> Guard<'_, T> {
        let visited = self.visited.load(Ordering::Relaxed);
        let is_free = || {
            self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let soon = (0..spins).any(|_| {
            core::hint::spin_loop();
            is_free()
        });
        if !soon {
            self.sleep();
        }
        let mut guard = Guard { lock: self };
        if !visited {
            guard.contended();
        }
        guard
    }

    /// Sleeps until the lock is free, and takes it: as one that others may sleep at, since any of them may have done so meanwhile.
    #[cold]
    fn sleep(&self) {
        // Counted before the state says so: who reads the state from here on has the count as well.
        self.asleep.fetch_add(1, Ordering::Relaxed);
        while self.state.swap(CONTENDED, Ordering::AcqRel) != FREE {
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, CONTENDED, None);
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }

    /// In the child of a fork nobody waits.
    pub(crate) fn forget_threads(&self) {
        self.waiting.store(0, Ordering::Relaxed);
        self.asleep.store(0, Ordering::Relaxed);
        self.visited.store(false, Ordering::Relaxed);
    }

    /// Releases the lock without a guard: in the child of a fork, whose parent's thread took it.
    ///
    /// # Safety
    /// This thread must hold the lock through a guard that was forgotten.
    pub(crate) unsafe fn release(&self) {
        self.unlock();
        let_signals_in();
    }

    fn unlock(&self) {
        if self.leave_free() {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }

    /// The lock is free. Returns whether a thread sleeps that is to be told: the last one that slept leaves the state as if there were more.
    #[inline]
    fn leave_free(&self) -> bool {
        self.state.swap(FREE, Ordering::AcqRel) == CONTENDED && self.asleep.load(Ordering::Relaxed) > 0
    }

    /// Waits until no other thread runs deferred work, and as long as the caller holds the lock none will: what it was about may
    /// be closed, or the process forked.
    pub(crate) fn settle(&self) {
        while self.runs_errand() {
            rustix::thread::sched_yield();
        }
    }

    /// Another thread runs deferred work, or will run it once more. None that begins later is left out.
    #[inline]
    pub(crate) fn runs_errand(&self) -> bool {
        self.deferred_work.load(Ordering::Acquire) != IDLE
    }

    /// Before the lock is released: whether this thread is to run the deferred work. If another one does, it does it once more.
    fn takes_over(&self) -> bool {
        let next = |state| Some(if state == IDLE { RUNNING } else { AGAIN });
        self.deferred_work.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(IDLE)
    }

    /// After the lock was released, and before signal handlers run: one that ends the program must find it done.
    fn run(&self, deferred_work: T::DeferredWork) {
        let mut failure = None;
        for _ in 0..ROUNDS {
            failure = T::run(deferred_work).err();
            if failure.is_some() {
                break;
            }
            let last =
                self.deferred_work.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if last.is_ok() {
                return;
            }
            self.deferred_work.store(RUNNING, Ordering::Release);
        }
        // It cannot be finished, or the others always have something new. (Idle first: who settles has the lock.)
        self.deferred_work.store(IDLE, Ordering::Release);
        self.lock().finish_deferred_work(failure);
    }

    /// As [`Lock::release`], of one of several locks that the thread holds: handlers of signals go on to wait.
    ///
    /// # Safety
    /// As for [`Lock::release`], and another lock must be released after this one.
    pub(crate) unsafe fn release_one_of_several(&self) {
        self.unlock();
    }

    /// The value, for a thread that holds the lock through a forgotten guard.
    pub(crate) fn pointer(&self) -> *mut T {
        self.value.get()
    }
}

/// Handlers that came while the lock was held run now.
fn let_signals_in() {
    let deferred = sys::sleep_control(|sleep_control| {
        sleep_control.holding.store(false, Ordering::Relaxed);
        sleep_control.deferred.load(Ordering::Relaxed)
    });
    if deferred != 0 {
        let_in();
    }
}

#[cold]
fn let_in() {
    // Before they run: a handler may take the lock.
    let deferred = sys::sleep_control(|sleep_control| sleep_control.deferred.swap(0, Ordering::Relaxed));
    sys::unblock_signals(deferred);
}

/// Holds the lock.
pub(crate) struct Guard<'a, T: Guarded> {
    lock: &'a Lock<T>,
}

impl<T: Guarded> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock, so nobody else has a reference.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: Guarded> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, so nobody else has a reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: Guarded> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let deferred_work = self.take_deferred_work().filter(|_| self.lock.takes_over());
        let calls = self.take_calls();
        self.lock.unlock();
        if let Some(calls) = calls {
            T::call(calls);
        }
        if let Some(deferred_work) = deferred_work {
            self.lock.run(deferred_work);
        }
        let_signals_in();
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;

    /// Counts what it owes; every few kicks fail.
    struct Device {
        written: u64,
        owes: bool,
        shared: bool,
        shown: &'static AtomicU64,
        taken: &'static AtomicU64,
        kicks: &'static AtomicU64,
        failures: u64,
    }

    impl Guarded for Device {
        type DeferredWork = (&'static AtomicU64, &'static AtomicU64, &'static AtomicU64);

        fn contended(&mut self) {
            self.shared = true;
        }

        type Calls = ();

        fn take_calls(&mut self) -> Option<()> {
            None
        }

        fn call((): ()) {}

        fn take_deferred_work(&mut self) -> Option<Self::DeferredWork> {
            core::mem::take(&mut self.owes).then_some((self.shown, self.taken, self.kicks))
        }

        fn run((shown, taken, kicks): Self::DeferredWork) -> Result<(), Errno> {
            if kicks.fetch_add(1, Ordering::Relaxed) % 17 == 16 {
                return Err(Errno::BUSY);
            }
            let all = shown.load(Ordering::Acquire);
            if all % 5 == 0 {
                thread::yield_now();
            }
            taken.fetch_max(all, Ordering::Release);
            Ok(())
        }

        fn finish_deferred_work(&mut self, failure: Option<Errno>) {
            self.failures += u64::from(failure.is_some());
            self.taken.store(self.shown.load(Ordering::Acquire), Ordering::Release);
        }
    }

    fn device() -> Lock<Device> {
        let counter = || -> &'static AtomicU64 { Box::leak(Box::default()) };
        Lock::new(Device {
            written: 0,
            owes: false,
            shared: false,
            shown: counter(),
            taken: counter(),
            kicks: counter(),
            failures: 0,
        })
    }

    fn write(lock: &Lock<Device>) {
        let mut device = lock.lock();
        device.written += 1;
        device.shown.store(device.written, Ordering::Release);
        device.owes = true;
    }

    #[test]
    fn what_one_thread_owes_is_done_when_the_lock_is_free() {
        let lock = device();
        for count in 1..=100 {
            write(&lock);
            assert_eq!(lock.lock().taken.load(Ordering::Acquire), count);
        }
        let device = lock.lock();
        assert_eq!((device.failures, device.shared), (5, false));
    }

    #[test]
    fn what_many_threads_owe_is_done_in_the_end() {
        let lock = device();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| write(&lock)));
            }
        });
        let device = lock.lock();
        assert_eq!((device.written, device.taken.load(Ordering::Acquire)), (80_000, 80_000));
        assert!(device.failures > 0);
        lock.settle();
    }

    #[test]
    fn who_only_looks_does_not_yield_again_and_again_while_the_lock_is_held() {
        let lock = device();
        thread::scope(|scope| {
            let device = lock.lock();
            let waiter = scope.spawn(|| drop(lock.lock()));
            while lock.state.load(Ordering::Relaxed) != CONTENDED {
                thread::yield_now();
            }
            assert_eq!((lock.waiting.load(Ordering::Relaxed), lock.let_others_go_first()), (1, 0));
            drop(device);
            waiter.join().expect("it has the lock, and leaves it");
        });
        assert_eq!(lock.let_others_go_first(), 0);
        // It is free, and who waits for it has not woken yet.
        lock.waiting.store(1, Ordering::Relaxed);
        assert_eq!(lock.let_others_go_first(), YIELDS);
        lock.forget_threads();
    }

    #[test]
    fn only_who_sleeps_is_woken() {
        let lock = device();
        core::mem::forget(lock.lock());
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| core::mem::forget(lock.lock()));
            while lock.state.load(Ordering::Relaxed) != CONTENDED {
                thread::yield_now();
            }
            // SAFETY: the guard was forgotten.
            unsafe { lock.release() };
            sleeper.join().expect("it has been woken");
        });
        // The one that slept has it, and nobody else sleeps.
        assert_eq!(lock.state.load(Ordering::Relaxed), CONTENDED);
        assert!(!lock.leave_free());
        core::mem::forget(lock.lock());
        assert!(!lock.leave_free());
    }

    #[test]
    fn nobody_runs_an_errand_while_the_lock_is_held_and_settled() {
        let lock = device();
        thread::scope(|scope| {
            let writers = [(); 3].map(|()| scope.spawn(|| (0..5_000).for_each(|_| write(&lock))));
            while writers.iter().any(|writer| !writer.is_finished()) {
                let device = lock.lock();
                lock.settle();
                let before = device.kicks.load(Ordering::Acquire);
                (0..100).for_each(|_| core::hint::spin_loop());
                assert_eq!(device.kicks.load(Ordering::Acquire), before);
            }
        });
    }
}
