//! The observer's side. The process may write anything, at any time, also while it is read: every number is read once and bounded
//! before it is used, every loop has an end, and names are bytes of the process's choice, for the caller to escape.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::{AsRawFd, OwnedFd};

use zerocopy::FromBytes;

use super::area::Area;
use super::row::{Row, WORDS};
use super::{COUNTERS_MAX, MAGIC, NAME_LEN_MAX, NAMES, ROWS, ROWS_MAX, VALUES, now_us, word};
use crate::Error;

/// How long a process may take to show counters that it has put off: it may be busy with something else.
const PATIENCE: Duration = Duration::from_millis(20);

/// Somebody looks at a process.
pub struct View {
    pub(super) area: Area,
    doorbell: OwnedFd,
}

/// The sockets of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// How many there are.
    pub sockets: usize,
    /// The first of them.
    pub rows: Vec<Row>,
}

impl View {
    /// Takes what the broker handed over. Whoever was listening at its name may have: nothing of it can harm the caller.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is something else, or what the kernel said.
    pub fn open(memory: &OwnedFd, doorbell: OwnedFd) -> Result<View, Error> {
        if !is_eventfd(&doorbell) {
            return Err(Error::Protocol("a doorbell that is none"));
        }
        Ok(View { area: Area::open(memory)?, doorbell })
    }

    /// When the process showed its counters last, in microseconds of the monotonic clock.
    #[must_use]
    pub fn shown_us(&self) -> u64 {
        self.area.load(word::SHOWN_US)
    }

    /// Every counter with its name, of [`NAME_LEN_MAX`] bytes at most; none before the process has shown some. What it has put off it is
    /// asked for, and given [`PATIENCE`].
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        if self.area.word(word::MAGIC).load(Ordering::Acquire) != MAGIC {
            return Vec::new();
        }
        if self.area.load(word::PUT_OFF) != 0 {
            self.ask(word::COUNTERS_ASKED, word::COUNTERS_ANSWERED, PATIENCE);
        }
        self.area.steadily(word::NAMES_SEQUENCE, |area| {
            let length = area.load(word::NAMES_LEN).min(((VALUES - NAMES) * 8) as u64) as usize;
            let count = area.load(word::COUNTERS).min(COUNTERS_MAX as u64) as usize;
            let names = area.read(NAMES, length);
            let values = (VALUES..VALUES + count).map(|index| area.load(index));
            let names = names.split(|&byte| byte == b'\n').map(|name| &name[..name.len().min(NAME_LEN_MAX)]);
            let named = names.map(|name| String::from_utf8_lossy(name).into_owned()).zip(values);
            named.filter(|(name, _)| !name.is_empty()).collect()
        })
    }

    /// Asks for the sockets. `None` if the process does not answer for so long: it is busy with something else, or stopped.
    #[must_use]
    pub fn table(&self, patience: Duration) -> Option<Table> {
        self.ask(word::ASKED, word::ANSWERED, patience).then(|| self.table_as_it_is())
    }

    /// Counts one request more, and rings. Whether it was answered.
    fn ask(&self, asked: usize, answered: usize, patience: Duration) -> bool {
        let number = self.area.word(asked).fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.ring();
        let end = now_us().saturating_add(patience.as_micros() as u64);
        while self.area.word(answered).load(Ordering::Acquire).wrapping_sub(number) > u64::MAX / 2 {
            if now_us() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// The sockets as they were when somebody last asked.
    #[must_use]
    pub fn table_as_it_is(&self) -> Table {
        self.area.steadily(word::TABLE_SEQUENCE, |area| {
            let rows = area.load(word::ROWS).min(ROWS_MAX as u64) as usize;
            Table {
                sockets: usize::try_from(area.load(word::SOCKETS)).unwrap_or(rows),
                rows: (0..rows)
                    .filter_map(|row| Row::read_from_bytes(&area.read(ROWS + row * WORDS, WORDS * 8)).ok())
                    .collect(),
            }
        })
    }

    /// Wakes the process if it sleeps.
    pub(super) fn ring(&self) {
        // The process can fill it, and can make it one that waits for room: then the thread waits, not the caller.
        let Ok(doorbell) = self.doorbell.try_clone() else { return };
        let ring = move || _ = rustix::io::write(&doorbell, &1_u64.to_ne_bytes());
        let _ = std::thread::Builder::new().name("doorbell".to_owned()).spawn(ring);
    }
}

/// Whether writing to a descriptor that somebody else chose does no more than to count.
fn is_eventfd(descriptor: &OwnedFd) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Vec::new());
    link.is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]")
}

impl core::fmt::Debug for View {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("View").field("shown_us", &self.shown_us()).finish_non_exhaustive()
    }
}
