//! The one lock around a process's stack: a futex, and the promise that signal handlers do not run while it is held.
//!
//! Handlers that come while their thread holds the lock are deferred until it is released (see [`crate::signal`]), so a
//! handler may use sockets without meeting its own thread's lock.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use crate::{signal, sys};

/// Free; held; held, and somebody sleeps.
const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Guards a `T`.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value. The value's raw pointers (into the rings that the
// process shares with the broker) are as valid in one thread as in another, so moving access between threads is sound
// although they make `T` itself neither Send nor Sync.
unsafe impl<T> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        sys::doze(|doze| doze.holding.store(true, Ordering::Relaxed));
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            if self.state.compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, CONTENDED, None);
        }
    }

    /// Releases the lock without a guard: in the child of a fork, whose parent's thread took it.
    ///
    /// # Safety
    /// This thread must hold the lock through a guard that was forgotten.
    pub(crate) unsafe fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
        let deferred = sys::doze(|doze| {
            doze.holding.store(false, Ordering::Relaxed);
            doze.deferred.load(Ordering::Relaxed)
        });
        if deferred != 0 {
            signal::run_deferred();
        }
    }

    /// The value, for a thread that holds the lock through a forgotten guard.
    pub(crate) fn pointer(&self) -> *mut T {
        self.value.get()
    }
}

/// Holds the lock.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock, so nobody else has a reference.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, so nobody else has a reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this guard holds the lock, and is gone after this.
        unsafe { self.lock.release() };
    }
}
