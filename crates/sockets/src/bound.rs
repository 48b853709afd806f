//! What the buffers of all connections of the process hold together, and its bound: net.ipv4.tcp_mem's meaning, with its three
//! numbers (tcp(7); sk_mem_raise_allocated() in net/core/sock.c). What other processes on the interface hold counts too, as they said
//! a moment ago.
//!
//! Above the second number there is pressure, until they hold less than the first: a buffer grows only as far as an equal share of the
//! third, what is empty is given back, and what is closed keeps no buffers. Above the third none grows, but to its first few
//! kilobytes. What a full buffer cannot take is not acknowledged, or must wait to be written.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A buffer may always have so much (SK_MEM_QUANTUM in Linux).
pub(crate) const ALWAYS: usize = 4096;

static HELD: AtomicUsize = AtomicUsize::new(0);
/// Buffers that hold something.
static BUFFERS: AtomicUsize = AtomicUsize::new(0);
/// Times that a connection got a first buffer, or one after it had none.
static FIRST: AtomicUsize = AtomicUsize::new(0);
static LOW: AtomicUsize = AtomicUsize::new(usize::MAX);
static PRESSURE: AtomicUsize = AtomicUsize::new(usize::MAX);
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
static PRESSED: AtomicBool = AtomicBool::new(false);
static PRESSURES: AtomicUsize = AtomicUsize::new(0);
static REFUSALS: AtomicUsize = AtomicUsize::new(0);
/// The context that tells other processes, and one.
static SPEAKER: AtomicUsize = AtomicUsize::new(NOBODY);
const NOBODY: usize = 0;
/// What other processes hold.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// Sets the three numbers, in bytes.
pub(crate) fn set(numbers: [usize; 3]) {
    for (to, bytes) in [&LOW, &PRESSURE, &MOST].into_iter().zip(numbers) {
        to.store(bytes, Ordering::Relaxed);
    }
}

/// The numbers for a bound of `most` bytes, in the proportions that Linux chooses (tcp_init_mem() in net/ipv4/tcp.c).
pub(crate) const fn of_most(most: usize) -> [usize; 3] {
    [most / 2, most / 3 * 2, most]
}

/// Buffers are given back as soon as they are empty.
#[inline]
pub(crate) fn is_pressed() -> bool {
    PRESSED.load(Ordering::Relaxed)
}

/// A buffer of `before` bytes is to have `after`. False if it must stay as it is.
pub(crate) fn grow(before: usize, after: usize) -> bool {
    let more = after - before;
    let held = HELD.fetch_add(more, Ordering::Relaxed) + more;
    let buffers = BUFFERS.fetch_add(usize::from(before == 0), Ordering::Relaxed) + usize::from(before == 0);
    FIRST.fetch_add(usize::from(before == 0), Ordering::Relaxed);
    let others = OTHERS.load(Ordering::Relaxed);
    let (pressure, most) = (PRESSURE.load(Ordering::Relaxed), MOST.load(Ordering::Relaxed));
    let (pressure, most) = (pressure.saturating_sub(others), most.saturating_sub(others));
    if held > pressure && !PRESSED.swap(true, Ordering::Relaxed) {
        PRESSURES.fetch_add(1, Ordering::Relaxed);
    }
    let may = after <= ALWAYS
        || held <= pressure
        || (held <= most && after.checked_mul(buffers).is_some_and(|all| all <= most));
    if !may {
        REFUSALS.fetch_add(1, Ordering::Relaxed);
        shrink(after, before);
    }
    may
}

/// A number that changes when a connection that had no buffer gets one.
#[inline]
pub(crate) fn first_buffers() -> usize {
    FIRST.load(Ordering::Relaxed)
}

/// A buffer of `before` bytes has `after` now.
pub(crate) fn shrink(before: usize, after: usize) {
    if before == after {
        return;
    }
    let held = HELD.fetch_sub(before - after, Ordering::Relaxed) - (before - after);
    BUFFERS.fetch_sub(usize::from(after == 0), Ordering::Relaxed);
    relieve(held);
}

/// There is no pressure any more if little enough is held.
fn relieve(held: usize) {
    if is_pressed() && held.saturating_add(OTHERS.load(Ordering::Relaxed)) < LOW.load(Ordering::Relaxed) {
        PRESSED.store(false, Ordering::Relaxed);
    }
}

/// Whether a context is the one of the process's that tells others, which it is from then on if nobody is.
pub(crate) fn is_said_by(context: usize) -> bool {
    let own = context + 1;
    match SPEAKER.compare_exchange(NOBODY, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(speaker) => speaker == own,
    }
}

/// A context has no stack any more.
pub(crate) fn falls_silent(context: usize) {
    let _ = SPEAKER.compare_exchange(context + 1, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
    set_others(0);
}

/// What the process holds, in bytes.
pub(crate) fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// What other processes hold now, in bytes.
pub(crate) fn set_others(bytes: usize) {
    OTHERS.store(bytes, Ordering::Relaxed);
    relieve(held());
}

/// What observers see: bytes that are held, how often there was pressure, and how often a buffer could not grow.
pub(crate) fn counters() -> [u64; 3] {
    [&HELD, &PRESSURES, &REFUSALS].map(|counter| counter.load(Ordering::Relaxed) as u64)
}
