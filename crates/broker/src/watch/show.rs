//! The stack's side.

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use zerocopy::IntoBytes;

use super::area::Area;
use super::row::{Row, WORDS};
use super::{COUNTERS_MAX, MAGIC, NAMES, ROWS, ROWS_MAX, VALUES, word};
use crate::Error;

/// A process shows itself.
pub struct Show {
    pub(super) area: Area,
    doorbell: OwnedFd,
    /// Words written to the ring of frames.
    pub(super) written: u64,
    pub(super) dropped: u64,
}

impl Show {
    /// Takes what the broker made.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is something else, or what the kernel said.
    pub fn open(memory: &OwnedFd, doorbell: OwnedFd) -> Result<Show, Error> {
        Ok(Show { area: Area::open(memory)?, doorbell, written: 0, dropped: 0 })
    }

    /// Readable when an observer wants an answer.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Makes the doorbell quiet again.
    pub fn silence_doorbell(&self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0_u8; 8]);
    }

    /// What the counters are called from now on: names without newlines, as many as [`Show::count`] gives values.
    pub fn name<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let mut text = String::new();
        let mut count = 0;
        for name in names.take(COUNTERS_MAX) {
            text.push_str(name);
            text.push('\n');
            count += 1;
        }
        text.truncate((VALUES - NAMES) * 8);
        self.area.change(word::NAMES_SEQUENCE, |area| {
            area.write(NAMES, text.as_bytes());
            area.store(word::NAMES_LEN, text.len() as u64);
            area.store(word::COUNTERS, count);
        });
    }

    /// The counters' values, in the order of their names.
    pub fn count(&mut self, now_us: u64, values: impl Iterator<Item = u64>) {
        let asked = self.area.load(word::COUNTERS_ASKED);
        for (index, value) in (VALUES..VALUES + COUNTERS_MAX).zip(values) {
            self.area.store(index, value);
        }
        self.area.store(word::SHOWN_US, now_us);
        self.area.store(word::PUT_OFF, 0);
        self.area.word(word::COUNTERS_ANSWERED).store(asked, Ordering::Release);
        self.area.word(word::MAGIC).store(MAGIC, Ordering::Release);
    }

    /// Counters are newer than what was shown: who wants them rings.
    pub fn put_off(&mut self) {
        self.area.store(word::PUT_OFF, 1);
    }

    /// Whether an observer waits for counters that were put off.
    #[must_use]
    pub fn are_counters_asked(&self) -> bool {
        self.area.load(word::COUNTERS_ASKED) != self.area.load(word::COUNTERS_ANSWERED)
    }

    /// Whether an observer waits for the table of sockets.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.area.load(word::ASKED) != self.area.load(word::ANSWERED)
    }

    /// The table of sockets, of which there are `sockets`; rows beyond [`super::ROWS_MAX`] are left out.
    pub fn answer(&mut self, sockets: usize, rows: impl Iterator<Item = Row>) {
        let asked = self.area.load(word::ASKED);
        self.area.change(word::TABLE_SEQUENCE, |area| {
            let mut count = 0;
            for row in rows.take(ROWS_MAX) {
                area.write(ROWS + count * WORDS, row.as_bytes());
                count += 1;
            }
            area.store(word::ROWS, count as u64);
            area.store(word::SOCKETS, sockets as u64);
        });
        self.area.word(word::ANSWERED).store(asked, Ordering::Release);
    }
}

impl core::fmt::Debug for Show {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Show").finish_non_exhaustive()
    }
}
