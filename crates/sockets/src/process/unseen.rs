//! Programs that wait by system calls of their own. The library sees calls of libc's functions, and of its syscall(); a program may
//! have the instruction in itself for some of them (Bun for epoll_pwait2(), what is written in Rust on rustix, in Go). What only a
//! stack knows would never end such a wait.
//!
//! * A listener or UDP socket in an epoll set is the kernel's until somebody is seen to wait in the set
//!   ([`super::sets::Shared::is_waited_in`]). So one that such a program waits for never joins.
//! * One that is in no set that the library knows may be in another, whose epoll_ctl() was such a call too (smol, async-std). At the first
//!   call that does not wait, if nobody was seen to wait before, it is looked whether a set of the kernel's has it
//!   ([`Process::is_asked_blindly`]); if so it stays the kernel's.
//! * A connection that the program has opened is the stack's before it is in a set. The library's own thread looks whether a thread of
//!   the program sleeps in the kernel's wait for a set that nobody was seen to wait in. Then the kernel goes on with everything.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;

use overfly_engine::Instant;

use super::background::wake_background;
use super::sets::shared;
use super::{Process, leave_to_kernel};
use crate::interest::{NONE, SetId};
use crate::kernel::{self, now};
use crate::socket::{SocketId, SocketState};
use crate::statistics::Why;
use crate::sys;
use crate::table::{self, Entry};

/// How soon it is looked again: at first, and at last.
const PAUSE: Duration = Duration::from_millis(2);
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// UDP sockets in a row that were looked for in unseen sets and found in none, and how many are: a program may make one for each question.
static LOOKS: AtomicU32 = AtomicU32::new(0);
const LOOKS_MAX: u32 = 64;

const REASON: &str =
    "the program waits in epoll sets by a system call of its own, not libc's, which the library does not see";

/// A thread was found that waits so.
static FOUND: AtomicBool = AtomicBool::new(false);

/// The program's user knows why a socket is the kernel's that is in such a set.
static TOLD: AtomicBool = AtomicBool::new(false);

/// When a context looks.
pub(super) struct Unseen {
    /// A set in which nobody was seen to wait has a socket of the stack's.
    doubts: bool,
    next: Instant,
    pause: Duration,
}

impl Unseen {
    pub(super) const fn new() -> Self {
        Self { doubts: false, next: Instant::from_micros(0), pause: PAUSE }
    }
}

/// Nothing of the program is to be accelerated.
pub(super) fn is_found() -> bool {
    FOUND.load(Ordering::Relaxed)
}

impl Process {
    /// A set in which nobody was seen to wait has a socket of the stack's from now on.
    #[cold]
    pub(crate) fn doubt(&mut self) {
        let next = now() + PAUSE;
        let is_late = !self.unseen.doubts || self.unseen.next > next;
        self.unseen = Unseen { doubts: true, next, pause: PAUSE };
        if self.background_postponed && !sys::is_single_threaded() {
            self.begin_background();
        }
        if is_late {
            wake_background();
        }
    }

    /// In the library's own thread: looks, if it is time. Returns when it is next.
    pub(super) fn look_for_unseen(&mut self) -> Option<Instant> {
        if !self.unseen.doubts {
            return None;
        }
        if is_found() {
            self.continue_in_kernel();
            return None;
        }
        let now = now();
        if now < self.unseen.next {
            return Some(self.unseen.next);
        }
        let doubtful: Vec<_> = self.sets.numbers().filter(|set| self.is_doubtful(*set)).collect();
        self.unseen.doubts = !doubtful.is_empty();
        if doubtful.iter().any(|set| is_waited_in_unseen(*set)) {
            FOUND.store(true, Ordering::Relaxed);
            self.continue_in_kernel();
            return None;
        }
        let pause = self.unseen.pause;
        (self.unseen.next, self.unseen.pause) = (now + pause, (pause * 2).min(LONG_PAUSE));
        self.unseen.doubts.then_some(self.unseen.next)
    }

    /// A call that does not wait, of a listener or UDP socket: whether the kernel alone is to answer it.
    pub(crate) fn is_asked_blindly(&mut self, id: SocketId, descriptor: i32) -> bool {
        // What waits here the kernel does not know.
        if self.is_in_stack(id) || self.stack.has_datagrams(id) {
            return false;
        }
        let socket = self.stack.socket_mut(id);
        if socket.interests != NONE || socket.waits_are_seen {
            return self.stack.is_left_to_kernels_sets(id);
        }
        // Such a program sets O_NONBLOCK by a system call of its own, too. A listener of several processes has it from one that has joined.
        let may_be_anothers = socket.shared && socket.listening.is_some();
        socket.nonblocking |= !may_be_anothers && kernel::is_nonblocking(descriptor);
        if !socket.nonblocking {
            return false;
        }
        socket.waits_are_seen = true;
        let of_few = socket.listening.is_some() || LOOKS.fetch_add(1, Ordering::Relaxed) < LOOKS_MAX;
        let found = of_few && is_in_unseen_set(id);
        if found {
            LOOKS.store(0, Ordering::Relaxed);
            self.left(Why::KernelEpoll);
            leave_to_kernel(self, id);
            if !TOLD.swap(true, Ordering::Relaxed) {
                kernel::complain(&format!("{REASON}: what is in them is the kernel's"));
            }
        }
        found
    }

    fn is_doubtful(&mut self, set: SetId) -> bool {
        let known = self.sets.get_mut(set).is_some_and(|record| !record.inherited);
        known && !shared(set).is_waited_in() && self.stack.watching(set) > 0
    }

    /// Nothing here is the stack's any more. What waits to be accepted, or to be read of a UDP socket, is lost.
    #[cold]
    fn continue_in_kernel(&mut self) {
        self.unseen.doubts = false;
        self.fall_back(REASON);
        (self.options.tcp_server_loopback, self.options.tcp_client_loopback) = (0, 0);
        for descriptor in 0..table::length() {
            if let Entry::Socket(id) = table::lookup(descriptor)
                && id.context() == self.context
            {
                self.continue_with(id);
            }
        }
        self.after_output();
    }

    fn continue_with(&mut self, id: SocketId) {
        match self.stack.socket(id).state {
            SocketState::Connecting | SocketState::Connected | SocketState::Ended => {
                let _ = self.hand_over(id);
            }
            SocketState::Candidate | SocketState::Listening | SocketState::Datagram => {
                self.part_if_it_listens(id);
                leave_to_kernel(self, id);
            }
            SocketState::Free | SocketState::Lost => {}
        }
    }

    pub(super) fn part_if_it_listens(&mut self, id: SocketId) {
        if self.stack.socket(id).listening.is_some() {
            self.part(id);
        }
    }
}

/// An epoll set has a socket, and the library has seen neither its epoll_create() nor the epoll_ctl().
fn is_in_unseen_set(id: SocketId) -> bool {
    kernel::numbers_in("/proc/self/fd").into_iter().filter(|&set| table::lookup(set) == Entry::Kernel).any(
        |set| {
            kernel::watched_in(set)
                .into_iter()
                .any(|descriptor| table::lookup(descriptor) == Entry::Socket(id))
        },
    )
}

/// A thread of this process sleeps in the kernel's wait for a set. No call that the library sees has ever waited there.
fn is_waited_in_unseen(set: SetId) -> bool {
    let waits = |call: &str| {
        // The number of the call, and its arguments, unless the thread runs.
        let mut words = call.split_ascii_whitespace();
        let number = words.next().and_then(|word| word.parse::<libc::c_long>().ok());
        let epoll = words.next().and_then(|word| i32::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        number.is_some_and(is_epoll_wait)
            && epoll.is_some_and(|epoll| table::lookup(epoll) == Entry::Set(set))
    };
    kernel::numbers_in("/proc/self/task").into_iter().any(|thread| waits(&kernel::call_of_thread(thread)))
}

const fn is_epoll_wait(number: libc::c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_epoll_wait {
        return true;
    }
    matches!(number, libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2)
}
