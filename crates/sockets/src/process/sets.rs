//! What the contexts of a process know in common of each epoll set. A set is one number in all of them; each has its own record
//! of it, and its own descriptors in the kernel's set.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::contexts::are_several;
use crate::interest::SetId;
use crate::socket::CONTEXTS;

/// Of one set.
pub(crate) struct Shared {
    /// Contexts that have sockets in it, or threads that wait in it, by their bits.
    contexts: AtomicU64,
    /// It is watched as a descriptor.
    pub(crate) exposed: AtomicBool,
    /// Another process may wait in it.
    pub(crate) inherited: AtomicBool,
    /// Somebody has waited in it by a call that the library sees.
    waited: AtomicBool,
    /// It was passed on (SCM_RIGHTS): whoever has it hears of the kernel's sockets alone.
    passed_on: AtomicBool,
}

/// Sets of a chunk, and chunks: as many sets as there may be descriptors.
const LENGTH: usize = 256;
const MOST: usize = 4096;

/// The contexts that concern a set that watches other sets: whichever those watch.
const ALL: u64 = u64::MAX;

type Chunk = [Shared; LENGTH];

static CHUNKS: [AtomicPtr<Chunk>; MOST] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST];

/// That of a set.
pub(crate) fn shared(set: SetId) -> &'static Shared {
    let index = set.0 as usize;
    let place = &CHUNKS[index / LENGTH % MOST];
    let mut chunk = place.load(Ordering::Acquire);
    if chunk.is_null() {
        let new = || Shared {
            contexts: AtomicU64::new(0),
            exposed: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            waited: AtomicBool::new(false),
            passed_on: AtomicBool::new(false),
        };
        let made = Box::into_raw(Box::new(core::array::from_fn(|_| new())));
        let before = core::ptr::null_mut();
        chunk = match place.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(theirs) => {
                // SAFETY: it was made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                theirs
            }
        };
    }
    // SAFETY: a chunk is whole before it is put in its place, and never goes away.
    unsafe { &(*chunk)[index % LENGTH] }
}

/// Every set that was there before a fork is the parent's, too.
pub(super) fn inherit() {
    for chunk in &CHUNKS {
        let chunk = chunk.load(Ordering::Acquire);
        if !chunk.is_null() {
            // SAFETY: as in `shared`.
            unsafe { &*chunk }.iter().for_each(|shared| shared.inherited.store(true, Ordering::Relaxed));
        }
    }
}

/// The bits of all contexts: those of a `u32`.
const EVERY: u64 = (1 << CONTEXTS) - 1;
const _: () = assert!(EVERY == u32::MAX as u64);

/// Some of the contexts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contexts(u64);

impl Contexts {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn one(context: usize) -> Self {
        Self(1 << context)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// There is one alone.
    pub(crate) const fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }

    pub(crate) const fn has(self, context: usize) -> bool {
        self.0 >> context & 1 != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0 & EVERY;
        core::iter::from_fn(move || {
            let next = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (next < CONTEXTS).then_some(next)
        })
    }

    /// The same ones, those before the `first` after the others.
    pub(crate) fn iter_from(self, first: usize) -> impl Iterator<Item = usize> {
        let first = first % CONTEXTS;
        Self(u64::from((self.0 as u32).rotate_right(first as u32)))
            .iter()
            .map(move |next| (first + next) % CONTEXTS)
    }
}

impl Shared {
    /// A new set has this one's number. A process with one stack has one context.
    pub(crate) fn begin(&self) {
        self.contexts.store(if are_several() { 0 } else { 1 }, Ordering::SeqCst);
        self.exposed.store(false, Ordering::SeqCst);
        self.inherited.store(false, Ordering::SeqCst);
        self.waited.store(false, Ordering::SeqCst);
        self.passed_on.store(false, Ordering::SeqCst);
    }

    /// Others are about to have it: what it watches from now on is the kernel's.
    pub(crate) fn pass_on(&self) {
        self.passed_on.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_passed_on(&self) -> bool {
        self.passed_on.load(Ordering::SeqCst)
    }

    /// Somebody has waited in it by a call that the library sees. Until then it may be that who waits there makes the system call
    /// itself (Bun), which learns of nothing that only the stack knows.
    pub(crate) fn is_waited_in(&self) -> bool {
        self.waited.load(Ordering::SeqCst)
    }

    /// Somebody is about to wait in it, or for it. True if nobody has before.
    #[inline]
    pub(crate) fn begins_to_wait(&self) -> bool {
        !self.waited.load(Ordering::Relaxed) && !self.waited.swap(true, Ordering::SeqCst)
    }

    /// The contexts that whoever waits in it has to look at. In a process with one stack there is one alone, whatever the set watches.
    pub(crate) fn contexts(&self) -> Contexts {
        if are_several() { Contexts(self.contexts.load(Ordering::SeqCst)) } else { Contexts::one(0) }
    }

    /// A context is one of them from now on. Returns those that were before, if it was none of them.
    pub(crate) fn join(&self, context: usize) -> Option<Contexts> {
        if self.contexts().has(context) {
            return None;
        }
        Some(Contexts(self.contexts.fetch_or(1 << context, Ordering::SeqCst)))
    }

    /// A context, whose lock is held, is none of them any more. False if it must stay one: the set watches others.
    pub(crate) fn part(&self, context: usize) -> bool {
        let without = |contexts| (contexts != ALL).then_some(contexts & !(1 << context));
        self.contexts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, without).is_ok()
    }

    pub(crate) fn is_exposed(&self) -> bool {
        self.exposed.load(Ordering::SeqCst)
    }

    pub(crate) fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::SeqCst)
    }

    /// It watches other sets. Returns whether that concerns more contexts: not before the process divides, if it does.
    pub(crate) fn join_all(&self) -> bool {
        let before = self.contexts.swap(ALL, Ordering::SeqCst);
        are_several() && before != ALL
    }
}
