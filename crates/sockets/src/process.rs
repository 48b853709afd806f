//! The process: its stack behind the lock, or one for each thread ([`contexts`]), how it comes to be, and what a fork and an
//! exit do to it.

mod acceptors;
mod around;
mod away;
mod background;
mod connecting;
pub(crate) mod contexts;
mod datagram;
pub(crate) mod dividing;
mod elsewhere;
mod ended;
mod exec;
mod family;
mod frames;
mod handover;
mod kept;
mod kernel_set;
mod leash;
mod leaving;
mod life;
mod listening;
mod loopback;
pub(crate) mod moving;
mod neighbors;
mod pairs;
mod ports;
pub(crate) mod rounds;
mod segments;
mod session;
pub(crate) mod sets;
mod settings;
pub(crate) mod several;
mod show;
mod signal;
mod sleep;
mod spin;
mod stalled;
mod standby;
mod start;
mod tags;
mod timers;
mod unseen;

use core::sync::atomic::{AtomicBool, Ordering};

use overfly_engine::Instant;
use overfly_profile::options::Options;
use overfly_profile::rules::Rules;
use rustix::io::Errno;

pub(crate) use self::contexts::process;
pub(crate) use self::datagram::{Origin, Placed};
pub(crate) use self::exec::before_exec;
use self::family::Family;
pub(crate) use self::family::{has_in_common, has_inherited};
pub(crate) use self::kernel_set::KernelSets;
pub(crate) use self::life::{after_fork_in_child, after_fork_in_parent, before_fork, finish, load};
pub(crate) use self::listening::{leave_to_kernel, listener_event, listens_now, watched};
use self::loopback::WithinHost;
use self::ports::SharedPorts;
use self::session::Session;
pub(crate) use self::sleep::{
    Sleeper, WakeOnDrop, Woken, is_waiting, let_others_in, readable, settled, stops_waiting, wait,
};
pub(crate) use self::spin::{goes_on, spin_until};
use self::start::Start;
pub(crate) use self::tags::{Tag, tag};
use self::timers::Timers;
use self::unseen::Unseen;
use crate::any_link::AnyLink;
use crate::descriptors::Descriptors;
use crate::kernel::{self, now};
use crate::lock::Guarded;
use crate::options::Fresh;
pub(crate) use crate::sleepers::For;
use crate::sleepers::{Calls, Sleepers};
use crate::socket::SocketId;
use crate::stack::{Closed, Stack};
use crate::statistics::Statistics;
use crate::table::{self, Entry};
use crate::{bound, sys};

/// The library was loaded by `overfly run`: sockets are looked at.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The program's address is not the kernel's: binding to it must be allowed all the same (ip(7), IP_FREEBIND).
static FREE_BIND: AtomicBool = AtomicBool::new(false);

/// Everything behind the lock: the process's, or what it is to the threads of one context.
pub(crate) struct Process {
    /// Which context it is.
    pub(crate) context: usize,
    pub(crate) stack: Stack<AnyLink>,
    pub(crate) options: Options,
    pub(crate) rules: Rules,
    start: Start,
    session: Session,
    /// What a socket comes with.
    fresh: Option<Fresh>,
    /// The largest SO_RCVBUF, in bytes.
    pub(crate) receive_buffer_max: u32,
    /// The interface's index, which link-local addresses carry: 0 before there is a stack.
    pub(crate) interface_index: u32,
    /// Descriptors of the link's sockets.
    link_descriptors: Vec<i32>,
    /// Those of them where others may be at the door.
    doors: Vec<i32>,
    /// Threads that sleep.
    pub(crate) sleepers: Sleepers,
    timers: Timers,
    /// The thread that moves frames in the program's place begins once the program turns out to need it (EF_BACKGROUND=2).
    background_postponed: bool,
    pub(crate) sets: KernelSets,
    /// Closed descriptors that are kept.
    pub(crate) descriptors: Descriptors,
    shared_ports: SharedPorts,
    within_host: WithinHost,
    /// When the device was last asked whether it takes frames of several segments, if that matters.
    device_asked: Option<Instant>,
    /// Connections wait and nobody accepts.
    stalled: Option<stalled::Stalled>,
    /// The program waits in epoll_wait, poll or select: output can wait until then.
    pub(crate) event_loop: bool,
    /// In epoll_wait, the last time.
    waits_in_set: bool,
    meetings: dividing::Meetings,
    pub(crate) pumped: Instant,
    /// When the counters were last shown, and a place for their values.
    shown: Instant,
    shown_values: Vec<u64>,
    pub(crate) statistics: Statistics,
    family: Family,
    unseen: Unseen,
}

/// Whether the library does anything.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Whether the program's addresses are no kernel's: over memif and tap.
fn has_addresses_of_its_own() -> bool {
    FREE_BIND.load(Ordering::Relaxed)
}

/// A new socket of the program.
pub(crate) fn allow_own_address(descriptor: i32, v6: bool) {
    if has_addresses_of_its_own() {
        kernel::allow_any_address(descriptor, v6);
    }
}

/// A call is about to go to the kernel and may wait there: output that waits for company goes first.
#[inline]
pub(crate) fn before_kernel_wait() {
    if contexts::is_pending(0) {
        process().transmit();
    }
    if let Some(own @ 1..) = contexts::own_if_any()
        && contexts::is_pending(own)
    {
        contexts::at(own).transmit();
    }
}

/// This process is about to send itself a signal, which may end it: output that waits for company goes first. Nothing is done in the
/// library's own panic, whose lock may be held.
pub(crate) fn before_own_signal() {
    if is_active() && !sys::sleep_control(|sleep_control| sleep_control.holding.load(Ordering::Relaxed)) {
        for context in contexts::all() {
            if contexts::is_pending(context) {
                contexts::at(context).transmit();
            }
        }
    }
}

impl Guarded for Process {
    /// The link's descriptor.
    type DeferredWork = i32;

    fn contended(&mut self) {
        self.stack.defers = true;
        self.meets();
    }

    #[inline]
    fn take_deferred_work(&mut self) -> Option<i32> {
        self.stack.take_owed()
    }

    type Calls = Calls;

    #[inline]
    fn take_calls(&mut self) -> Option<Calls> {
        if self.sleepers.are_forgotten(self.pumped) {
            self.remember_sleepers();
        }
        self.sleepers.take_calls()
    }

    fn call(calls: Calls) {
        around::call(&calls);
    }

    fn run(descriptor: i32) -> Result<(), Errno> {
        overfly_link::xdp::kick(kernel::borrow(descriptor))
    }

    #[cold]
    fn finish_deferred_work(&mut self, failure: Option<Errno>) {
        self.stack.finish_kick(failure);
    }
}

impl Process {
    const fn new() -> Self {
        Self {
            context: 0,
            stack: Stack::new(),
            options: Options::DEFAULT,
            rules: Rules::new(),
            start: Start::Untried,
            session: Session::new(),
            fresh: None,
            receive_buffer_max: 0,
            interface_index: 0,
            link_descriptors: Vec::new(),
            doors: Vec::new(),
            sleepers: Sleepers::new(),
            timers: Timers::new(),
            background_postponed: false,
            sets: KernelSets::new(),
            descriptors: Descriptors::new(),
            shared_ports: SharedPorts::new(),
            within_host: WithinHost::new(),
            device_asked: None,
            stalled: None,
            event_loop: false,
            waits_in_set: false,
            meetings: dividing::Meetings::NONE,
            pumped: Instant::from_micros(0),
            shown: Instant::from_micros(0),
            shown_values: Vec::new(),
            statistics: Statistics::new(),
            family: Family::new(),
            unseen: Unseen::new(),
        }
    }

    /// One of the program's descriptors of a socket is closed. Returns whether the library keeps the descriptor; if not,
    /// the caller closes it in the kernel.
    pub(crate) fn close_socket(&mut self, id: SocketId, descriptor: i32) -> bool {
        let socket = self.stack.socket(id);
        let (last, customized, v6, close_on_exec) =
            (socket.references <= 1, socket.customized, socket.v6, socket.close_on_exec);
        let (listens, receives) = (socket.listening.is_some(), socket.datagrams.is_some());
        let inherited = self.is_inherited(id);
        if last && inherited && self.leave_to_child(id) {
            return false;
        }
        if last && listens {
            self.forget_listener(id);
        }
        if last && receives {
            if inherited {
                self.keep_datagrams(id);
            }
            self.displace_datagram(id);
        }
        if !last && socket_descriptor(&self.stack, id) == descriptor {
            // Another descriptor of the same socket must stand for it.
            let other = (0..table::length())
                .find(|&other| other != descriptor && table::lookup(other) == Entry::Socket(id));
            self.stack.socket_mut(id).descriptor = other.unwrap_or(-1);
        }
        table::enter(descriptor, Entry::Kernel);
        let kept = match self.stack.close(id) {
            Closed::StillOpen | Closed::Done => false,
            Closed::Reusable => {
                !customized && !inherited && self.descriptors.keep(descriptor, v6, close_on_exec)
            }
            Closed::Held => self.descriptors.hold(descriptor, if contexts::are_several() { 16 } else { 64 }),
        };
        self.output();
        kept
    }
}

fn socket_descriptor(stack: &Stack<AnyLink>, id: SocketId) -> i32 {
    stack.socket(id).descriptor
}

/// Whoever sleeps looks again.
pub(crate) fn wake_everybody() {
    contexts::each(|process| process.wake_set(None));
}
