//! Frames from the stack to an observer: a ring of words with one writer and one reader.
//!
//! Each frame is one word with its time in microseconds, one with its length (low 32 bits), what of it follows (next 31 bits)
//! and whether it was sent (top bit), and its bytes.

use core::sync::atomic::Ordering;
use core::time::Duration;

use super::show::Show;
use super::view::View;
use super::{FRAMES, FRAMES_LEN, now_us, word};
use crate::Error;

/// For how long frames are written after the observer last said that it is there.
const LEASE: Duration = Duration::from_secs(2);
/// The longest frame that is written: two 64 KiB segments would not fit one word's field otherwise.
const FRAME_LEN_MAX: usize = 1 << 17;

/// A frame that an observer took.
#[derive(Clone, Copy, Debug)]
pub struct CapturedFrame<'a> {
    /// When, in microseconds of the monotonic clock.
    pub time_us: u64,
    /// Sent, rather than received.
    pub outbound: bool,
    /// Its length in bytes.
    pub length: usize,
    /// Its first bytes, as many as were asked for.
    pub bytes: &'a [u8],
}

impl Show {
    /// Whether somebody takes frames now.
    #[must_use]
    pub fn is_captured(&self, now_us: u64) -> bool {
        self.area.load(word::CAPTURE_UNTIL_US) > now_us
    }

    /// Writes a frame for who takes them; counts it if there is no room.
    pub fn frame(&mut self, now_us: u64, outbound: bool, bytes: &[u8]) {
        let wanted = usize::try_from(self.area.load(word::CAPTURE_LEN)).unwrap_or(FRAME_LEN_MAX);
        let kept = &bytes[..bytes.len().min(wanted).min(FRAME_LEN_MAX)];
        let words = 2 + kept.len().div_ceil(8) as u64;
        let read = self.area.word(word::CAPTURE_READ).load(Ordering::Acquire);
        // Before an observer came, and after one went, everything that was written has been read.
        if self.written.wrapping_sub(read) > FRAMES_LEN as u64 {
            self.written = read;
        }
        if self.written.wrapping_sub(read) + words > FRAMES_LEN as u64 {
            self.dropped += 1;
            self.area.store(word::CAPTURE_DROPPED, self.dropped);
            return;
        }
        let mut at = self.written;
        let mut put = |value: u64| {
            self.area.store(FRAMES + (at as usize & (FRAMES_LEN - 1)), value);
            at = at.wrapping_add(1);
        };
        put(now_us);
        put(u64::from(outbound) << 63 | (kept.len() as u64) << 32 | bytes.len() as u64 & 0xffff_ffff);
        for piece in kept.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            put(u64::from_ne_bytes(word));
        }
        self.written = at;
        self.area.word(word::CAPTURE_WRITTEN).store(at, Ordering::Release);
    }
}

/// Takes a process's frames for as long as it lives.
#[derive(Debug)]
pub struct Capture<'a> {
    view: &'a View,
    read: u64,
    /// Bytes of each frame that were asked for.
    length: usize,
    dropped_before: u64,
}

impl View {
    /// Begins to take the process's frames, `length` bytes of each at most.
    ///
    /// # Errors
    /// [`Error::Captured`] if somebody else does.
    pub fn capture(&self, length: usize) -> Result<Capture<'_>, Error> {
        let own = u64::from(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs());
        let owner = self.area.word(word::CAPTURE_OWNER);
        let before = owner.load(Ordering::Acquire);
        if before != 0 && self.area.load(word::CAPTURE_UNTIL_US) > now_us() {
            return Err(Error::Captured { process: before });
        }
        if owner.compare_exchange(before, own, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(Error::Captured { process: owner.load(Ordering::Relaxed) });
        }
        let read = self.area.word(word::CAPTURE_WRITTEN).load(Ordering::Acquire);
        self.area.word(word::CAPTURE_READ).store(read, Ordering::Release);
        self.area.store(word::CAPTURE_LEN, length as u64);
        let mut capture =
            Capture { view: self, read, length, dropped_before: self.area.load(word::CAPTURE_DROPPED) };
        capture.renew();
        self.ring();
        Ok(capture)
    }
}

impl Capture<'_> {
    fn renew(&mut self) {
        self.view.area.store(word::CAPTURE_UNTIL_US, now_us() + LEASE.as_micros() as u64);
    }

    /// Frames that were lost since this began because nobody took others in time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.view.area.load(word::CAPTURE_DROPPED).wrapping_sub(self.dropped_before)
    }

    /// Hands over what has come; returns how many frames. Call it several times a second.
    pub fn take(&mut self, mut each: impl FnMut(CapturedFrame<'_>)) -> usize {
        self.renew();
        let area = &self.view.area;
        let written = area.word(word::CAPTURE_WRITTEN).load(Ordering::Acquire);
        let word_at = |at: u64| area.load(FRAMES + (at as usize & (FRAMES_LEN - 1)));
        let mut bytes = Vec::new();
        let mut count = 0;
        while self.read != written {
            let left = written.wrapping_sub(self.read);
            let record = word_at(self.read.wrapping_add(1));
            let kept = (record >> 32 & 0x7fff_ffff) as usize;
            let length = (record & 0xffff_ffff) as usize;
            let words = 2 + kept.div_ceil(8) as u64;
            let possible = kept <= self.length.min(FRAME_LEN_MAX) && kept <= length;
            if left > FRAMES_LEN as u64 || words > left || !possible {
                // Not what a stack writes: go on with what comes next.
                self.read = written;
                break;
            }
            bytes.clear();
            let body = (2..words).flat_map(|offset| word_at(self.read.wrapping_add(offset)).to_ne_bytes());
            bytes.extend(body);
            bytes.truncate(kept);
            each(CapturedFrame {
                time_us: word_at(self.read),
                outbound: record >> 63 != 0,
                length,
                bytes: &bytes,
            });
            self.read = self.read.wrapping_add(words);
            count += 1;
        }
        area.word(word::CAPTURE_READ).store(self.read, Ordering::Release);
        count
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        self.view.area.store(word::CAPTURE_UNTIL_US, 0);
        self.view.area.word(word::CAPTURE_OWNER).store(0, Ordering::Release);
    }
}
