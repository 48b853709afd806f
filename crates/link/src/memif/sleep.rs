//! How the end that receives over a ring falls asleep, and the other one wakes it: no frame is shown to a sleeper that nobody
//! wakes. Of two that act at once, one sees what the other did: each writes first, then reads what the other writes, and a
//! fence stands in between (Dekker's way). loom tries the orders of it in the test below.

use core::sync::atomic::{AtomicU16, Ordering, fence};

/// `MEMIF_RING_FLAG_MASK_INT`: the consumer polls, it needs no interrupt.
pub(super) const POLLING: u16 = 1;

/// An atomic u16, here or in loom.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u16;
    fn store(&self, value: u16, order: Ordering);
    fn fence(order: Ordering);
}

impl Word for AtomicU16 {
    #[inline]
    fn load(&self, order: Ordering) -> u16 {
        AtomicU16::load(self, order)
    }

    #[inline]
    fn store(&self, value: u16, order: Ordering) {
        AtomicU16::store(self, value, order);
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Shows entries before `shown`, which are written. Returns whether the other end must be woken.
#[inline]
pub(super) fn show<W: Word>(index: &W, flags: &W, shown: u16) -> bool {
    index.store(shown, Ordering::Release);
    W::fence(Ordering::SeqCst);
    flags.load(Ordering::Relaxed) & POLLING == 0
}

/// Says that this end sleeps. Returns whether it may: whoever shows an entry after `taken` from now on wakes it.
#[inline]
pub(super) fn may_sleep<W: Word>(index: &W, flags: &W, taken: u16) -> bool {
    flags.store(0, Ordering::Relaxed);
    W::fence(Ordering::SeqCst);
    index.load(Ordering::Acquire) == taken
}

/// Says that this end looks for entries by itself.
#[inline]
pub(super) fn poll<W: Word>(flags: &W) {
    flags.store(POLLING, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex, atomic};
    use loom::thread;

    use super::*;

    impl Word for atomic::AtomicU16 {
        fn load(&self, order: Ordering) -> u16 {
            atomic::AtomicU16::load(self, order)
        }

        fn store(&self, value: u16, order: Ordering) {
            atomic::AtomicU16::store(self, value, order);
        }

        fn fence(order: Ordering) {
            atomic::fence(order);
        }
    }

    /// A ring of one entry, whose consumer polls at first. loom finds it out if both touch the entry at the same time.
    struct Ring {
        head: atomic::AtomicU16,
        tail: atomic::AtomicU16,
        flags: atomic::AtomicU16,
        entry: UnsafeCell<u16>,
        /// What an eventfd is: a wake-up that comes too early is not lost.
        doorbell: Mutex<bool>,
        rung: Condvar,
    }

    impl Ring {
        fn send(&self, frame: u16) {
            while self.tail.load(Ordering::Acquire) != frame {
                thread::yield_now();
            }
            // SAFETY: the entry is the producer's, since the consumer has given it back; loom watches.
            self.entry.with_mut(|entry| unsafe { *entry = 100 + frame });
            if show(&self.head, &self.flags, frame + 1) {
                *self.doorbell.lock().unwrap() = true;
                self.rung.notify_one();
            }
        }

        fn receive(&self, frame: u16) {
            while self.head.load(Ordering::Acquire) == frame {
                if may_sleep(&self.head, &self.flags, frame) {
                    let mut rung = self.doorbell.lock().unwrap();
                    while !*rung {
                        rung = self.rung.wait(rung).unwrap();
                    }
                    *rung = false;
                }
                poll(&self.flags);
            }
            // SAFETY: the entry is the consumer's, since the producer has shown it; loom watches.
            let read = self.entry.with(|entry| unsafe { *entry });
            assert_eq!(read, 100 + frame, "a torn or old entry");
            self.tail.store(frame + 1, Ordering::Release);
        }
    }

    /// loom fails if both sleep for ever, or if an entry is read while it is written.
    #[test]
    fn no_order_of_events_loses_a_wake_up_or_tears_an_entry() {
        let mut model = loom::model::Builder::new();
        // Bounds the search: orders with more forced switches of threads are not tried.
        model.preemption_bound = Some(3);
        model.check(|| {
            let ring = Arc::new(Ring {
                head: atomic::AtomicU16::new(0),
                tail: atomic::AtomicU16::new(0),
                flags: atomic::AtomicU16::new(POLLING),
                entry: UnsafeCell::new(0),
                doorbell: Mutex::new(false),
                rung: Condvar::new(),
            });
            let producer = ring.clone();
            let sends = thread::spawn(move || (0..2).for_each(|frame| producer.send(frame)));
            (0..2).for_each(|frame| ring.receive(frame));
            sends.join().unwrap();
        });
    }
}
