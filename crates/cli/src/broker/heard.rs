//! What a broker says to `overfly run` while its program runs; and where that is a service, its end and the next one's beginning.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use overfly_broker::Error;
use overfly_broker::{Heard, Lease, Refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::complain;

/// How often it is looked whether there is a broker again; after one has said no, longer and longer.
const PAUSE: Duration = Duration::from_millis(100);
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// Leashes that are held before it is looked for the first time whose processes have ended.
const LEASHES: usize = 64;

/// A program's place at the broker of its interface, whichever that is by now.
pub(super) struct Registration {
    interface: String,
    state: Mutex<Membership>,
}

struct Membership {
    lease: Arc<Lease>,
    leaving: bool,
}

impl Registration {
    pub(super) fn new(interface: &str, lease: Lease) -> Registration {
        let state = Membership { lease: Arc::new(lease), leaving: false };
        Registration { interface: interface.to_owned(), state: Mutex::new(state) }
    }

    pub(super) fn interface(&self) -> &str {
        &self.interface
    }

    fn state(&self) -> MutexGuard<'_, Membership> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program has ended: so does the lease, and [`Registration::listen`].
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.leaving = true;
        state.lease.begin_to_leave();
    }

    /// Says on standard error what the broker has to say, and holds what ties the program's processes to this one, until the lease is
    /// over. True if a broker goes on without it.
    pub(super) fn listen(&self) -> bool {
        let mut leashes = Leashes { held: Vec::new(), look_at: LEASHES };
        loop {
            let (lease, was_leaving) = {
                let state = self.state();
                (Arc::clone(&state.lease), state.leaving)
            };
            match lease.hear() {
                Heard::News(words) => complain(words),
                Heard::Leash(end) => leashes.hold(end),
                Heard::GoesOn => return true,
                Heard::Ended if lease.may_return() => {
                    if !self.wait_for_another(&lease) {
                        return false;
                    }
                }
                Heard::Ended => return false,
                // A broker that does not answer in time is not known to have ended.
                Heard::Nothing if was_leaving => return true,
                Heard::Nothing => {}
            }
        }
    }

    /// Joins the broker that takes the place of a lease's, which has ended. False if the program ends before.
    fn wait_for_another(&self, ended: &Lease) -> bool {
        let interface = &self.interface;
        if !self.state().leaving {
            complain(format_args!(
                "the broker of {interface} has ended: nothing is accelerated until there is another one"
            ));
        }
        let mut pause = PAUSE;
        let mut next = Instant::now();
        while !self.state().leaving {
            if next <= Instant::now() {
                match ended.again(interface) {
                    Ok(Some(lease)) => {
                        let mut state = self.state();
                        if state.leaving {
                            return false;
                        }
                        state.lease = Arc::new(lease);
                        drop(state);
                        complain(format_args!(
                            "{interface} has a broker again: what begins now is accelerated"
                        ));
                        return true;
                    }
                    Err(Error::Refused { refusal, reason }) if refusal != Refusal::Later => {
                        if pause == PAUSE {
                            complain(format_args!(
                                "the broker of {interface} does not serve this program again: {reason}"
                            ));
                        }
                        pause = (pause * 8).min(LONG_PAUSE);
                    }
                    Ok(None) | Err(_) => pause = PAUSE,
                }
                next = Instant::now() + pause;
            }
            sleep(PAUSE);
        }
        false
    }
}

/// The ends of leashes: each is a process's, which dies when it is closed.
struct Leashes {
    held: Vec<OwnedFd>,
    /// How many are held when it is looked next whose process has ended.
    look_at: usize,
}

impl Leashes {
    fn hold(&mut self, end: OwnedFd) {
        self.held.push(end);
        if self.held.len() < self.look_at {
            return;
        }
        raise_descriptor_limit();
        self.held.retain(|end| !has_ended(end));
        self.look_at = (self.held.len() * 2).max(LEASHES);
    }
}

/// Whether the process is gone that had the other end.
fn has_ended(end: &OwnedFd) -> bool {
    let mut set = [PollFd::new(end, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut set, Some(&now)), Ok(1))
}

/// As many descriptors as this process may have: a server may have many processes.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn leashes_of_processes_that_have_ended_are_let_go() {
        let mut leashes = Leashes { held: Vec::new(), look_at: LEASHES };
        let mut alive = Vec::new();
        for number in 0..10 * LEASHES {
            let (ours, theirs) = UnixStream::pair().unwrap();
            leashes.hold(ours.into());
            if number % 10 == 0 {
                alive.push(theirs);
            }
            assert!(leashes.held.len() <= 4 * LEASHES, "{}", leashes.held.len());
        }
        // A child that another test begins has copies of what is open until its exec().
        let end = Instant::now() + Duration::from_secs(10);
        while leashes.held.len() != alive.len() {
            assert!(Instant::now() < end, "{} are held, {} are alive", leashes.held.len(), alive.len());
            leashes.held.retain(|end| !has_ended(end));
            sleep(Duration::from_millis(1));
        }
    }
}
