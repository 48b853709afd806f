//! What a running stack shows to whoever may look: counters, its sockets when it is asked, and its frames while somebody
//! takes them. All of it is in memory that the broker made for the two of them; nobody calls anybody.
//!
//! The stack's process is the only writer of its half, the observer of the other. Everything is 64-bit words that are read
//! and written one at a time, so neither can harm the other: what does not make sense is not believed.
//!
//! ```text
//! words     0  header: see the constants below
//!          64  the counters' names, in UTF-8, with a newline after each
//!        2048  the counters' values
//!        4096  the sockets, 24 words each
//!  1,576,960  the frames: a ring of 4 MiB
//! ```

mod area;
mod frames;
mod row;
mod show;
mod view;

pub use self::frames::{Capture, CapturedFrame};
pub use self::row::{Kind, Row, Timer};
pub use self::show::Show;
pub use self::view::{Table, View};

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::Error;

/// Sockets that are shown at most.
pub const ROWS_MAX: usize = 65_536;
/// Counters at most.
pub const COUNTERS_MAX: usize = 512;
/// Bytes of a counter's name at most: what an observer takes.
pub const NAME_LEN_MAX: usize = 80;

/// "OVFW" and the layout's version.
const MAGIC: u64 = 0x4f56_4657_0000_0002;

/// The header's words.
mod word {
    /// [`super::MAGIC`], once the process has written the rest.
    pub(super) const MAGIC: usize = 0;
    /// Odd while names are written.
    pub(super) const NAMES_SEQUENCE: usize = 1;
    /// Bytes of names.
    pub(super) const NAMES_LEN: usize = 2;
    /// How many counters there are.
    pub(super) const COUNTERS: usize = 3;
    /// When they were written last, in microseconds of the monotonic clock.
    pub(super) const SHOWN_US: usize = 4;
    /// Observers' requests for the table of sockets, counted.
    pub(super) const ASKED: usize = 5;
    /// The last of them that was answered.
    pub(super) const ANSWERED: usize = 6;
    /// Odd while the table is written.
    pub(super) const TABLE_SEQUENCE: usize = 7;
    /// Rows in the table.
    pub(super) const ROWS: usize = 8;
    /// Sockets that there are.
    pub(super) const SOCKETS: usize = 9;
    /// Not 0: some counters are newer than what was written.
    pub(super) const PUT_OFF: usize = 10;
    /// Observers' requests for counters that were put off, counted, and the last of them that was answered.
    pub(super) const COUNTERS_ASKED: usize = 11;
    pub(super) const COUNTERS_ANSWERED: usize = 12;
    /// Frames are wanted until then, in microseconds of the monotonic clock.
    pub(super) const CAPTURE_UNTIL_US: usize = 16;
    /// The process that takes frames.
    pub(super) const CAPTURE_OWNER: usize = 17;
    /// Bytes of each frame that are wanted.
    pub(super) const CAPTURE_LEN: usize = 18;
    /// Words written to the ring of frames, and read, since it began.
    pub(super) const CAPTURE_WRITTEN: usize = 24;
    pub(super) const CAPTURE_READ: usize = 32;
    /// Frames that the ring had no room for.
    pub(super) const CAPTURE_DROPPED: usize = 25;
}

/// Where each part begins, in words.
const NAMES: usize = 64;
const VALUES: usize = 2048;
const ROWS: usize = 4096;
const FRAMES: usize = ROWS + ROWS_MAX * row::WORDS;
/// Words of the ring of frames, a power of two.
const FRAMES_LEN: usize = 1 << 19;
const LENGTH: usize = FRAMES + FRAMES_LEN;

/// Memory for one process to show itself in, of a length that nobody can change, and an eventfd that asks it to look at it.
/// The memory takes space only where something was written.
///
/// # Errors
/// What the kernel said.
pub fn create() -> Result<(OwnedFd, OwnedFd), Error> {
    let system = Error::system;
    let memory = memfd_create("overfly-watch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|errno| system("memfd_create", errno))?;
    ftruncate(&memory, (LENGTH * 8) as u64).map_err(|errno| system("ftruncate of a memfd", errno))?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|errno| system("sealing of a memfd", errno))?;
    let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| system("eventfd", errno))?;
    Ok((memory, doorbell))
}

/// Microseconds of the monotonic clock, which processes of one machine share.
fn now_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use core::time::Duration;

    use overfly_testing::{Random, seed};
    use rustix::io::fcntl_dupfd_cloexec;

    use super::*;

    fn pair() -> (Show, View) {
        let (memory, doorbell) = create().unwrap();
        let also = |descriptor: &OwnedFd| fcntl_dupfd_cloexec(descriptor, 3).unwrap();
        let view = View::open(&memory, also(&doorbell)).unwrap();
        (Show::open(&memory, doorbell).unwrap(), view)
    }

    #[test]
    fn counters_are_seen_by_name_and_follow() {
        let (mut show, view) = pair();
        assert!(view.counters().is_empty(), "nothing was shown yet");
        show.name(["one", "two"].into_iter());
        show.count(5, [1, 2].into_iter());
        assert_eq!(view.counters(), [("one".to_owned(), 1), ("two".to_owned(), 2)]);
        show.count(6, [1, 7].into_iter());
        assert_eq!((view.counters()[1].1, view.shown_us()), (7, 6));
        show.name(["other"].into_iter());
        show.count(7, [3].into_iter());
        assert_eq!(view.counters(), [("other".to_owned(), 3)]);
    }

    #[test]
    fn counters_that_were_put_off_are_asked_for() {
        let (mut show, view) = pair();
        show.name(["one"].into_iter());
        show.count(5, [1].into_iter());
        assert!(!show.are_counters_asked());
        assert_eq!(view.counters()[0].1, 1);
        assert!(!show.are_counters_asked(), "they were as they are");
        show.put_off();
        assert_eq!(view.counters()[0].1, 1, "nobody answers");
        assert!(show.are_counters_asked());
        show.count(6, [2].into_iter());
        assert!(!show.are_counters_asked());
        show.put_off();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !show.are_counters_asked() {
                    std::thread::yield_now();
                }
                show.count(7, [3].into_iter());
            });
            // The other thread may take longer than somebody who looks waits.
            while view.counters()[0].1 != 3 {}
        });
    }

    fn row(descriptor: i32) -> Row {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut row = Row::new(Kind::Connection, descriptor, end("10.0.0.1:80"), Some(end("[fd00::2]:9")));
        (row.rtt_us, row.acknowledged) = (123, 1 << 40);
        row.set_timer(Some((Timer::Retransmission, Duration::from_millis(200))));
        row
    }

    #[test]
    fn sockets_are_shown_to_who_asks() {
        let (mut show, view) = pair();
        assert!(!show.is_asked());
        assert!(view.table(Duration::from_millis(1)).is_none(), "nobody answers");
        assert!(show.is_asked());
        show.answer(3, [row(5), row(6)].into_iter());
        assert!(!show.is_asked());
        let table = view.table_as_it_is();
        assert_eq!((table.sockets, table.rows.len()), (3, 2));
        let seen = table.rows[1];
        assert_eq!((seen.descriptor, seen.kind()), (6, Some(Kind::Connection)));
        assert_eq!((seen.local(), seen.remote()), (row(6).local(), row(6).remote()));
        assert_eq!(seen.remote().unwrap().to_string(), "[fd00::2]:9");
        assert_eq!(seen.timer(), Some((Timer::Retransmission, Duration::from_millis(200))));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !show.is_asked() {
                    std::thread::yield_now();
                }
                show.answer(1, [row(7)].into_iter());
            });
            assert_eq!(view.table(Duration::from_secs(20)).unwrap().rows[0].descriptor, 7);
        });
    }

    #[test]
    fn frames_are_written_only_while_somebody_takes_them_and_drops_are_counted() {
        let (mut show, view) = pair();
        assert!(!show.is_captured(now_us()));
        let mut capture = view.capture(96).unwrap();
        assert!(view.capture(96).is_err(), "one at a time");
        assert!(show.is_captured(now_us()));
        let long: Vec<u8> = (0..200).collect();
        show.frame(10, false, &long[..61]);
        show.frame(11, true, &long);
        let mut seen = Vec::new();
        capture.take(|frame| seen.push((frame.time_us, frame.outbound, frame.length, frame.bytes.to_vec())));
        assert_eq!(seen, [(10, false, 61, long[..61].to_vec()), (11, true, 200, long[..96].to_vec())]);
        let fits = FRAMES_LEN / 14;
        for _ in 0..fits + 5 {
            show.frame(12, true, &long);
        }
        let mut count = 0;
        capture.take(|_| count += 1);
        assert_eq!((count, capture.dropped()), (fits, 5));
        drop(capture);
        assert!(!show.is_captured(now_us()));
        assert!(view.capture(96).is_ok());
    }

    #[test]
    fn memory_that_could_shrink_is_not_looked_at() {
        let (_, doorbell) = create().unwrap();
        let also = || fcntl_dupfd_cloexec(&doorbell, 3).unwrap();
        let sized = |length: usize| {
            let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&memory, length as u64).unwrap();
            memory
        };
        let memory = sized(LENGTH * 8);
        assert!(View::open(&memory, also()).is_err());
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(View::open(&memory, also()).is_err(), "seals could still be added");
        fcntl_add_seals(&memory, SealFlags::SEAL).unwrap();
        assert!(View::open(&memory, also()).is_ok());
        let short = sized(LENGTH * 8 - 4096);
        fcntl_add_seals(&short, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        assert!(View::open(&short, also()).is_err());
    }

    #[test]
    fn a_doorbell_is_an_eventfd_and_nobody_waits_for_it() {
        let (memory, _) = create().unwrap();
        let (_end, pipe) = rustix::pipe::pipe().unwrap();
        assert!(View::open(&memory, pipe).is_err());
        // Full, and made so that a write waits until somebody reads.
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let view = View::open(&memory, fcntl_dupfd_cloexec(&doorbell, 3).unwrap()).unwrap();
        assert!(view.table(Duration::from_millis(1)).is_none());
        drop(view.capture(96).unwrap());
        // The threads that wait go on.
        rustix::io::read(&doorbell, &mut [0_u8; 8]).unwrap();
    }

    /// Numbers that a hostile process would write: extremes, neighbours of every limit, anything.
    fn hostile(random: &mut Random) -> u64 {
        let limits = [
            0,
            1,
            MAGIC,
            COUNTERS_MAX as u64,
            ROWS_MAX as u64,
            FRAMES_LEN as u64,
            1 << 32,
            96 << 32,
            u64::MAX,
        ];
        match random.below(4) {
            0 => random.one_of(&limits),
            1 => random.one_of(&limits).wrapping_add(random.below(4)).wrapping_sub(1),
            2 => random.next() >> random.below(64),
            _ => random.next(),
        }
    }

    #[test]
    fn a_process_that_writes_anything_at_any_time_harms_no_observer() {
        let seed = seed(now_us());
        let (show, view) = pair();
        let over = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                while !over.load(core::sync::atomic::Ordering::Relaxed) {
                    let index = match hostile(&mut random) % 4 {
                        0 | 1 => random.index(NAMES),
                        2 => random.index(ROWS),
                        _ => random.index(LENGTH),
                    };
                    // Who takes frames is asked for below.
                    if index != word::CAPTURE_OWNER && index != word::CAPTURE_UNTIL_US {
                        show.area.store(index, hostile(&mut random));
                    }
                    if random.below(64) == 0 {
                        show.area.store(word::MAGIC, MAGIC);
                    }
                }
            });
            let began = std::time::Instant::now();
            let mut looks = 0;
            while looks < 20 || began.elapsed() < Duration::from_secs(2) {
                let counters = view.counters();
                assert!(counters.len() <= COUNTERS_MAX);
                // A byte that is no UTF-8 is shown as three.
                assert!(
                    counters.iter().all(|(name, _)| name.len() <= 3 * NAME_LEN_MAX && !name.contains('\n'))
                );
                let table = view.table(Duration::from_millis(1)).unwrap_or_else(|| view.table_as_it_is());
                assert!(table.rows.len() <= ROWS_MAX);
                for row in &table.rows {
                    let _ = (row.kind(), row.local(), row.remote(), row.timer());
                }
                let mut capture = view.capture(96).unwrap();
                for _ in 0..50 {
                    let taken = capture.take(|frame| assert!(frame.bytes.len() <= frame.length.min(96)));
                    assert!(taken <= FRAMES_LEN / 2);
                }
                let _ = capture.dropped();
                looks += 1;
            }
            over.store(true, core::sync::atomic::Ordering::Relaxed);
        });
    }
}
