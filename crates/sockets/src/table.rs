//! What each of the process's descriptors is: one word each, in a table that is as long as the descriptor limit and takes
//! memory only where it is used.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Resource;

use crate::interest::SetId;
use crate::socket::SocketId;

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// The kernel's business alone.
    Kernel,
    /// A TCP socket.
    Socket(SocketId),
    /// An epoll set.
    Set(SetId),
    /// Closed by the program, kept by a context for its next accept() or until a flow no longer needs its port.
    Cached(u32),
    /// The library's own.
    Internal,
}

impl Entry {
    const fn to_word(self) -> u64 {
        match self {
            Self::Kernel => 0,
            Self::Socket(SocketId(id)) => 1 << 32 | id as u64,
            Self::Set(SetId(id)) => 2 << 32 | id as u64,
            Self::Cached(context) => 3 << 32 | context as u64,
            Self::Internal => 4 << 32,
        }
    }

    const fn from_word(word: u64) -> Self {
        match word >> 32 {
            1 => Self::Socket(SocketId(word as u32)),
            2 => Self::Set(SetId(word as u32)),
            3 => Self::Cached(word as u32),
            4 => Self::Internal,
            _ => Self::Kernel,
        }
    }
}

/// Longest table, in descriptors.
const LONGEST: usize = 1 << 20;

static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// One past the largest descriptor that ever had an entry.
static USED: AtomicI32 = AtomicI32::new(0);

/// Makes the table, of `most` descriptors if that is not 0: the program's limit comes down to that. Without memory for it
/// there is none, and everything is the kernel's.
pub(crate) fn create(most: u64) {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if most != 0 {
        limit.maximum = Some(limit.maximum.map_or(most, |maximum| maximum.min(most)));
        limit.current = Some(limit.current.map_or(most, |current| current.min(most)));
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    }
    let length =
        limit.maximum.map_or(LONGEST, |maximum| usize::try_from(maximum).unwrap_or(LONGEST)).min(LONGEST);
    // SAFETY: a fresh private mapping, at an address of the kernel's choice.
    let mapping = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            length * size_of::<AtomicU64>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    if let Ok(mapping) = mapping {
        WORDS.store(mapping.cast(), Ordering::Release);
        LENGTH.store(length, Ordering::Release);
    }
}

#[inline]
fn word(descriptor: i32) -> Option<&'static AtomicU64> {
    let index = descriptor as u32 as usize;
    if index >= LENGTH.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the mapping has LENGTH words, is zero at first (a valid AtomicU64) and never goes away.
    Some(unsafe { &*WORDS.load(Ordering::Acquire).add(index) })
}

/// What a descriptor is.
#[inline]
pub(crate) fn lookup(descriptor: i32) -> Entry {
    word(descriptor).map_or(Entry::Kernel, |word| Entry::from_word(word.load(Ordering::Acquire)))
}

/// Whether a descriptor has an entry at all.
#[inline]
pub(crate) fn is_ours(descriptor: i32) -> bool {
    word(descriptor).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
}

/// Says what a descriptor is. Returns false if the table has no place for it.
pub(crate) fn enter(descriptor: i32, entry: Entry) -> bool {
    let Some(word) = word(descriptor) else { return false };
    word.store(entry.to_word(), Ordering::Release);
    if descriptor >= USED.load(Ordering::Relaxed) {
        USED.fetch_max(descriptor + 1, Ordering::Relaxed);
    }
    true
}

/// One past the last descriptor that may have an entry.
pub(crate) fn length() -> i32 {
    USED.load(Ordering::Relaxed)
}
