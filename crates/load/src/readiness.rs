//! Waiting for kernel sockets, to the nanosecond.

use std::os::fd::AsFd;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::error::Error;

/// Replaces `events` by those that there are; where there are none, waits for one for `wait_ns` at most. A signal ends the wait.
///
/// An open loop's next request is due in microseconds, so the timeout must be epoll_pwait2's (Linux 5.11), not the whole
/// milliseconds, rounded up, of epoll_pwait: rustix's feature `linux_5_11` decides which is called.
#[inline]
pub(crate) fn wait(epoll: impl AsFd, events: &mut Vec<epoll::Event>, wait_ns: u64) -> Result<(), Error> {
    let timeout =
        Timespec { tv_sec: (wait_ns / 1_000_000_000) as i64, tv_nsec: (wait_ns % 1_000_000_000) as _ };
    events.clear();
    match epoll::wait(epoll, spare_capacity(events), Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::machine("waiting for sockets", error)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_wait_is_not_rounded_up_to_a_millisecond() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut events = Vec::with_capacity(1);
        let waited = (0..200).map(|_| {
            let begun = Instant::now();
            wait(&epoll, &mut events, 100_000).unwrap();
            begun.elapsed()
        });
        // The shortest of many: whatever else this machine does, it does not lengthen every one of them.
        let shortest = waited.min().unwrap();
        assert!(shortest >= Duration::from_micros(100), "{shortest:?}");
        assert!(shortest < Duration::from_micros(900), "{shortest:?}");
    }

    #[test]
    fn long_waits_end_with_an_event() {
        use rustix::event::{EventfdFlags, eventfd};
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let event = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, &event, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        let mut events = Vec::with_capacity(1);
        wait(&epoll, &mut events, 1 << 60).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].data.u64(), 7);
    }
}
