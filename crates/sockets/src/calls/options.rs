//! setsockopt, getsockopt, fcntl, ioctl. What there is to know of each option is in [`crate::options`].

use overfly_engine::{Algorithm, Info};
use rustix::io::Errno;

use super::{Answer, CLOSED, is_connection, lock_entry, lock_socket, used};
use crate::kernel;
use crate::options::{
    Backing, Connection, Follow, OptionAccess, OptionArgument, SOF_TIMESTAMPING_OPT_ID,
    SOF_TIMESTAMPING_OPT_ID_TCP, SocketOption, Value, receive_limit_within, send_limit_within,
};
use crate::process::contexts::of;
use crate::process::{Process, WakeOnDrop, leave_to_kernel};
use crate::socket::{Later, Settings, SocketId, SocketState};
use crate::statistics::Why;
use crate::table::{self, Entry};

/// The connection is the kernel's before it is given an option that needs a connection, or one that a close() right behind it
/// must heed. `number` is the first number of its value.
pub(crate) fn hands_over_first(id: SocketId, option: &SocketOption, number: Option<i32>) -> bool {
    option.hands_over_first(number) && of(id).stack.socket(id).state == SocketState::Connected
}

/// Time stamps with identifiers of a connection that is being opened: the kernel gets them with the connection. Returns what
/// its socket may be asked for before.
pub(crate) fn stamps_later(id: SocketId, option: &SocketOption, value: [i32; 2], length: u32) -> Option<i32> {
    if !option.wants_identifiers(Some(value[0])) {
        return None;
    }
    let mut process = of(id);
    let socket = process.stack.socket_mut(id);
    if socket.state != SocketState::Connecting {
        return None;
    }
    socket.later = Some(Box::new(Later { name: option.name, value, length }));
    Some(value[0] & !(SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_ID_TCP))
}

/// The kernel's socket has got an option that only the kernel's TCP follows.
pub(crate) fn leave_with_option(descriptor: i32) {
    let Entry::Socket(id) = table::lookup(descriptor) else { return };
    let mut process = of(id);
    match process.stack.socket(id).state {
        // The next connect() of one that has ended is the kernel's, too.
        SocketState::Connecting | SocketState::Connected | SocketState::Ended => {
            process.stack.socket_mut(id).wants_kernel = true;
        }
        SocketState::Candidate | SocketState::Listening => {
            process.part(id);
            process.left(Why::SocketOption);
            leave_to_kernel(&mut process, id);
        }
        _ => {}
    }
}

/// The socket was tied to an interface, or set free.
pub(crate) fn tied_to_link(descriptor: i32) {
    let Entry::Socket(id) = table::lookup(descriptor) else { return };
    let mut process = of(id);
    let there = process.is_tied_elsewhere(descriptor);
    match process.stack.socket(id).state {
        SocketState::Connecting | SocketState::Connected if there => {
            process.stack.socket_mut(id).wants_kernel = true;
        }
        SocketState::Listening if there && process.stack.has_joined(id) => {
            process.part(id);
            process.left(Why::OtherAddress);
            leave_to_kernel(&mut process, id);
        }
        // connect(), or whoever waits for a listener, will see.
        _ => {}
    }
}

/// An option of a listener that this process has joined: later connections begin with it.
pub(crate) fn listener_was_given_option(descriptor: i32) {
    let Entry::Socket(id) = table::lookup(descriptor) else { return };
    of(id).read_settings_again(id, descriptor);
}

/// Whether Linux refuses such a value to the socket, as it is a connection that is not over.
pub(crate) fn is_refused(id: SocketId, option: &SocketOption, number: Option<i32>) -> bool {
    if !option.is_refused(number) {
        return false;
    }
    let mut process = of(id);
    process.pump_before_waiting();
    !process.stack.is_over(id)
}

/// The kernel's socket took a buffer's size that is beyond what the administrator allows to others (SO_RCVBUFFORCE,
/// SO_SNDBUFFORCE): the connection follows.
pub(crate) fn follow_forced(id: SocketId, follow: Follow, bytes: i32) {
    let bytes = u32::try_from(bytes).unwrap_or(0);
    let change = |settings: &mut Settings| match follow {
        Follow::ReceiveBuffer => settings.receive_limit = Some(receive_limit_within(bytes)),
        Follow::SendBuffer => (settings.send_limit, settings.send_buffer) = send_limit_within(bytes),
        Follow::Link => {}
    };
    of(id).stack.change(id, change);
}

/// SO_RCVTIMEO or SO_SNDTIMEO of a socket that is no connection yet: whether it was below zero.
pub(crate) fn timeout_was_set(descriptor: i32, name: i32, below_zero: bool) {
    if let Entry::Socket(id) = table::lookup(descriptor) {
        of(id).stack.socket_mut(id).never_waits[usize::from(name == libc::SO_SNDTIMEO)] = below_zero;
    }
}

/// Whether the kernel takes a connection over that has asked for it.
fn takes_over(id: SocketId) -> bool {
    let mut process = of(id);
    process.stack.socket(id).wants_kernel && process.hand_over_as_wanted(id)
}

/// Whether `descriptor` is a connection of ours.
pub(crate) fn connection(descriptor: i32) -> Answer<SocketId> {
    match used(descriptor) {
        Entry::Socket(id) if takes_over(id) => Answer::Kernel,
        Entry::Socket(id) if is_connection(&of(id), id) => Answer::ok(id),
        Entry::Cached(_) | Entry::Internal => Answer::error(CLOSED),
        Entry::Socket(_) | Entry::Kernel | Entry::Set(_) => Answer::Kernel,
    }
}

/// Whether it is an AF_INET6 socket.
pub(crate) fn is_v6(id: SocketId) -> bool {
    of(id).stack.socket(id).v6
}

/// The kernel's socket was given an option of its own: it cannot serve another connection.
pub(crate) fn customized(id: SocketId) {
    of(id).stack.socket_mut(id).customized = true;
}

/// The kernel's socket of a descriptor that is no connection yet is about to be given an option: it is no longer as it came.
pub(crate) fn changed_in_kernel(descriptor: i32) {
    if let Entry::Socket(id) = table::lookup(descriptor) {
        customized(id);
    }
}

/// A connection whose lock is held.
struct Locked<'a> {
    process: &'a mut Process,
    id: SocketId,
    descriptor: i32,
}

impl Connection for Locked<'_> {
    fn settings(&self) -> &Settings {
        &self.process.stack.socket(self.id).settings
    }

    fn change(&mut self, change: &dyn Fn(&mut Settings)) {
        self.process.stack.change(self.id, |settings| change(settings));
    }

    fn send_at_once(&mut self) {
        self.process.stack.no_delay(self.id);
    }

    fn look(&mut self) {
        self.process.pump_before_waiting();
    }

    fn tell_readers(&mut self) {
        self.process.stack.tell_readers(self.id);
    }

    fn tell_writers(&mut self) {
        self.process.stack.tell_writers(self.id);
    }

    fn take_error(&mut self) -> Option<Errno> {
        self.process.stack.take_error(self.id)
    }

    fn info(&self) -> Option<Info> {
        self.process.stack.info(self.id)
    }

    fn path_mtu(&self) -> Option<u16> {
        self.process.stack.path_mtu(self.id)
    }

    fn congestion(&self) -> Algorithm {
        self.process.stack.congestion(self.id).unwrap_or(self.process.default_congestion())
    }

    fn is_passive(&self) -> bool {
        self.process.stack.socket(self.id).passive
    }

    fn backing(&self) -> Backing {
        Backing(self.descriptor)
    }

    fn send_buffer_max(&self) -> u32 {
        kernel::send_buffer_max()
    }

    fn receive_buffer_max(&self) -> u32 {
        self.process.receive_buffer_max
    }

    fn receive_buffer_grown_max(&self) -> u64 {
        kernel::receive_buffer_grown_max()
    }
}

/// setsockopt() of an option that connections have at user level.
pub(crate) fn set(descriptor: i32, kept: &OptionAccess, given: &OptionArgument) -> Answer<()> {
    match lock_socket(descriptor) {
        Ok((mut guard, id)) if is_connection(&guard, id) => {
            let told = WakeOnDrop(&mut guard);
            let process = &mut *told.0;
            let outcome = kept.set(&mut Locked { process, id, descriptor }, given);
            if outcome.is_ok() && process.stack.has_output() {
                process.output();
            }
            Answer::Done(outcome)
        }
        Ok(_) => Answer::Kernel,
        Err(answer) => answer,
    }
}

/// getsockopt() of such an option, into `room` bytes.
pub(crate) fn get(descriptor: i32, level: i32, kept: &OptionAccess, room: usize) -> Answer<Value> {
    match lock_socket(descriptor) {
        Ok((mut guard, id)) if is_connection(&guard, id) => {
            // What an AF_INET socket says of IPv6's options (ip_getsockopt()).
            if level == libc::IPPROTO_IPV6 && !guard.stack.socket(id).v6 {
                return Answer::error(Errno::OPNOTSUPP);
            }
            let mut locked = Locked { process: &mut guard, id, descriptor };
            Answer::Done(kept.get(&mut locked, level, room))
        }
        Ok(_) => Answer::Kernel,
        Err(answer) => answer,
    }
}

/// What F_SETFL, FIONBIO or their opposite does to a socket of ours. `Kernel`: the kernel's socket must be told too.
pub(crate) fn set_nonblocking(descriptor: i32, on: bool) -> Answer<()> {
    match lock_socket(descriptor) {
        Ok((mut process, id)) => {
            let socket = process.stack.socket_mut(id);
            socket.nonblocking = on;
            let joined = socket.listening.as_ref().is_some_and(|listening| !listening.joined.is_empty());
            match socket.state {
                // The kernel's socket of a joined listener never blocks: accept() waits for the stack as well.
                SocketState::Candidate | SocketState::Datagram | SocketState::Free => Answer::Kernel,
                SocketState::Listening if !joined => Answer::Kernel,
                _ => Answer::ok(()),
            }
        }
        Err(answer) => answer,
    }
}

/// F_GETFL.
pub(crate) fn status_flags(descriptor: i32) -> Answer<i32> {
    match table::lookup(descriptor) {
        Entry::Socket(_) => {
            let Some((process, id)) = lock_entry(descriptor) else { return Answer::Kernel };
            let socket = process.stack.socket(id);
            let flag = if socket.nonblocking { libc::O_NONBLOCK } else { 0 };
            match socket.state {
                SocketState::Candidate | SocketState::Datagram | SocketState::Free => Answer::Kernel,
                _ => Answer::ok(libc::O_RDWR | flag),
            }
        }
        Entry::Cached(_) | Entry::Internal => Answer::error(CLOSED),
        Entry::Kernel | Entry::Set(_) => Answer::Kernel,
    }
}

/// F_SETFD changed whether the descriptor survives exec.
pub(crate) fn close_on_exec_changed(descriptor: i32) {
    if let Entry::Socket(id) = table::lookup(descriptor) {
        customized(id);
    }
}

/// F_GETFD of what the program has closed.
pub(crate) fn is_closed(descriptor: i32) -> bool {
    matches!(table::lookup(descriptor), Entry::Cached(_) | Entry::Internal)
}
