//! Forks while connections are open. Parent and child both have descriptors of them; the flows stay the parent's.
//!
//! * While only the parent uses a connection nothing changes: a child that writes a snapshot and exits costs nothing.
//! * A parent that closes a connection, or exits, hands it over first if a child may still have it: the kernel knows whether
//!   one has, and closes it if not.
//! * A child that uses a connection asks its parent for it, over a channel that was made at the fork. A thread of the parent
//!   answers by handing it over, whatever the program does meanwhile. It lives until the channels' other ends are closed: by
//!   the children's exit, or their exec.

use core::net::{Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use overfly_link::messages;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use super::Process;
use super::contexts::at;
use super::elsewhere::Elsewhere;
use super::ended::{Closed, Ended};
use super::several::Waiting;
use crate::interest::{NONE, SetId};
use crate::kernel::{self, now};
use crate::numbers;
use crate::socket::{SocketId, SocketState, canonical};
use crate::sys;
use crate::table::{self, Entry};

/// Which connection a child asks for: both ends' addresses, then their ports.
pub(super) const REQUEST_LEN: usize = 36;
/// Signals 32 and 33 are libc's own: setuid() waits for every thread to take one.
pub(super) const ALL_SIGNALS_BUT_LIBCS: u64 = !(0b11 << 31);

/// Some of the process's connections may be an ancestor's.
static INHERITED: AtomicBool = AtomicBool::new(false);

/// Whether some of the process's connections may be an ancestor's.
#[inline]
pub(crate) fn has_inherited() -> bool {
    INHERITED.load(Ordering::Relaxed)
}

/// Some of the process's connections were over before a fork.
static SHARES_ENDS: AtomicBool = AtomicBool::new(false);

/// Whether another process may have taken, or ended, what one of this process's epoll sets has.
#[inline]
pub(crate) fn has_in_common() -> bool {
    has_inherited() || SHARES_ENDS.load(Ordering::Relaxed)
}

/// A child that may ask for connections, and its own children.
struct Heir {
    /// The fork that it came from.
    fork: u32,
    channel: OwnedFd,
}

/// The process's forks, and whom it was forked from.
pub(super) struct Family {
    /// Forks so far while there were connections.
    forks: u32,
    heirs: Vec<Heir>,
    /// The heirs' channels, as an epoll set that the thread waits for.
    requests: Option<OwnedFd>,
    /// The thread runs.
    serving: bool,
    /// To this process's parent, to the parent's parent, and so on: those that had connections when they forked.
    ancestors: Vec<OwnedFd>,
    /// Made before a fork: the parent's end and the child's.
    newborn: Option<[OwnedFd; 2]>,
    /// Connections that were closed here when they were over, and of which the children may ask.
    pub(super) closed: Closed,
    /// Calls that wait for connections that were closed and handed over.
    elsewhere: Elsewhere,
    /// UDP sockets that children have asked for, by their cookies: they are the kernel's.
    pub(super) given: Vec<u64>,
    /// The connections that were over at the last fork, and that both processes have.
    ends: Vec<SocketId>,
    /// What waited in UDP sockets that were closed here, and of which the children may ask, by their cookies.
    pub(super) left: VecDeque<(u64, Waiting)>,
}

impl Family {
    pub(super) const fn new() -> Self {
        Self {
            forks: 0,
            heirs: Vec::new(),
            requests: None,
            serving: false,
            ancestors: Vec::new(),
            newborn: None,
            closed: Closed::new(),
            elsewhere: Elsewhere::new(),
            given: Vec::new(),
            ends: Vec::new(),
            left: VecDeque::new(),
        }
    }
}

impl Process {
    /// A fork is about to happen: makes the channel, if there is anything to ask for.
    pub(super) fn expect_child(&mut self) {
        // Those that are in no connection any more are what the kernel's sockets are, for both, once one is told what there is to tell.
        for id in self.stack.dissolved() {
            self.forget_port(id);
            if self.stack.socket(id).pending_error().is_none() {
                self.moved(id);
            }
        }
        self.family.ends = self.stack.share_unconnected();
        if !self.family.ends.is_empty() {
            SHARES_ENDS.store(true, Ordering::Relaxed);
        }
        let uses_datagrams = self.stack.share_datagrams();
        if self.stack.connections().next().is_none() && !uses_datagrams {
            return;
        }
        let channel = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        if let Ok((ours, theirs)) = channel {
            self.family.newborn = Some([numbers::move_up(ours), numbers::move_up(theirs)]);
        }
    }

    /// What AF_UNSPEC ended before a fork is the kernel's socket for all who have it, once one of them has been told its error: any may
    /// connect it anew. Returns whether it is.
    #[cold]
    pub(crate) fn leaves_to_all(&mut self, id: SocketId) -> bool {
        if self.stack.socket(id).was_left_to_kernel() {
            // What there is to tell the other process has told the kernel.
            self.stack.socket_mut(id).tell_connect();
            self.let_go(id);
            return true;
        }
        if self.stack.socket(id).was_dissolved() {
            self.stack.disconnect(now(), id);
        }
        let socket = self.stack.socket(id);
        let leaves = socket.shared && socket.flow.is_none() && socket.pending_error().is_none();
        if leaves {
            self.moved(id);
        }
        leaves
    }

    /// The fork happened, and this is the parent.
    pub(super) fn become_parent(&mut self) {
        let Some([channel, _]) = self.family.newborn.take() else { return };
        self.family.forks += 1;
        self.stack.forks = self.family.forks;
        if let Err(error) = self.serve_heir(channel) {
            kernel::complain(&format!("what a child inherited is the parent's alone: {error}"));
        }
    }

    fn serve_heir(&mut self, channel: OwnedFd) -> Result<(), Errno> {
        let family = &mut self.family;
        let requests = match &family.requests {
            Some(requests) => requests,
            None => {
                let requests = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                family.requests.insert(numbers::make_internal(requests))
            }
        };
        let fork = epoll::EventData::new_u64(family.forks.into());
        epoll::add(requests, &channel, fork, epoll::EventFlags::IN)?;
        table::enter(channel.as_raw_fd(), Entry::Internal);
        family.heirs.push(Heir { fork: family.forks, channel });
        if !family.serving {
            let (requests, context) = (requests.as_raw_fd(), self.context);
            let mask = sys::set_signal_mask(ALL_SIGNALS_BUT_LIBCS);
            let thread = std::thread::Builder::new()
                .name("overfly-heirs".to_owned())
                .spawn(move || serve(requests, context));
            sys::set_signal_mask(mask);
            family.serving = thread.is_ok();
            thread.map_err(|_| Errno::AGAIN)?;
        }
        Ok(())
    }

    /// The library's own descriptors among those of forks.
    pub(super) fn family_descriptors(&self) -> impl Iterator<Item = i32> {
        let Family { heirs, requests, ancestors, .. } = &self.family;
        let channels = heirs.iter().map(|heir| &heir.channel).chain(ancestors).chain(requests);
        channels.map(AsRawFd::as_raw_fd).collect::<Vec<_>>().into_iter()
    }

    /// The fork happened, and this is the child: what its parent has to say to its other children is not for it. Returns
    /// the number of the ancestor that has its connections.
    pub(super) fn become_child(&mut self) -> u32 {
        numbers::begin_as_child();
        let family = &mut self.family;
        family.heirs.clear();
        family.closed.clear();
        family.left.clear();
        family.elsewhere.forget();
        family.requests = None;
        family.serving = false;
        let ancestor = family.ancestors.len() as u32;
        if let Some([_, channel]) = family.newborn.take() {
            family.ancestors.push(channel);
            INHERITED.store(true, Ordering::Relaxed);
        }
        for channel in &family.ancestors {
            table::enter(channel.as_raw_fd(), Entry::Internal);
        }
        ancestor
    }

    /// A child that was forked while the connection was there may still have it.
    pub(crate) fn is_inherited(&self, id: SocketId) -> bool {
        let socket = self.stack.socket(id);
        self.family.heirs.iter().any(|heir| heir.fork > socket.forks)
    }

    /// The last descriptor of a connection that a child may have is about to be closed: the kernel gets it, and calls that wait for it go on
    /// with a descriptor of the library's own. One that is over the child will ask for. False if it stays.
    pub(super) fn leave_to_child(&mut self, id: SocketId) -> bool {
        let socket = self.stack.socket(id);
        let (held, calls, state) = ((id, socket.generation), socket.holders, socket.state);
        if state == SocketState::Connected {
            let kept =
                (calls > 0).then(|| rustix::io::fcntl_dupfd_cloexec(kernel::borrow(socket.descriptor), 0));
            if self.hand_over(id).is_ok() {
                if let Some(Ok(descriptor)) = kept {
                    self.family.elsewhere.add(held, numbers::make_internal(descriptor), calls);
                }
                return true;
            }
        }
        // A listener, a UDP socket and what was never connected are the child's as they are.
        if matches!(state, SocketState::Connected | SocketState::Ended) && self.stack.is_over(id) {
            // A set reports it for as long as the child has it open: the kernel's.
            if self.stack.socket(id).interests != NONE && self.hand_over(id).is_ok() {
                return true;
            }
            self.remember_end(id);
        }
        false
    }

    /// See [`Elsewhere`].
    pub(crate) const fn elsewhere(&mut self) -> &mut Elsewhere {
        &mut self.family.elsewhere
    }

    /// The process ends: what its children may still have goes on in the kernel.
    pub(super) fn leave_inheritance(&mut self) {
        let inherited =
            |id: &SocketId| self.stack.socket(*id).state == SocketState::Connected && self.is_inherited(*id);
        let inherited: Vec<_> = self.stack.connections().filter(inherited).collect();
        for id in inherited {
            let _ = self.hand_over(id);
        }
    }

    /// The program uses a descriptor whose connection may be an ancestor's: from now on it is the kernel's, or one that has ended.
    pub(crate) fn claim(&mut self, id: SocketId, descriptor: i32) -> Entry {
        if self.stack.socket(id).state != SocketState::Lost {
            let lost = self.stack.is_lost_datagram(id);
            return if lost { self.claim_datagram(id, descriptor) } else { Entry::Socket(id) };
        }
        // Perhaps it is the kernel's already, or just about to be.
        let is_kernels = || {
            let socket = kernel::borrow(descriptor);
            rustix::net::getpeername(socket).is_ok() && !kernel::is_in_repair(descriptor)
        };
        if !is_kernels()
            && let Some(ended) = self.ask_ancestor(id)
        {
            self.stack.has_ended(id, |socket| ended.apply(socket));
            return Entry::Socket(id);
        }
        self.let_go(id);
        Entry::Kernel
    }

    /// The program waits for a set: inherited connections in it are claimed, and those left that another process has ended.
    pub(crate) fn claim_watched(&mut self, set: SetId) {
        for descriptor in self.stack.watched_and_lost(set) {
            if let Entry::Socket(id) = table::lookup(descriptor) {
                self.claim(id, descriptor);
            }
        }
        let mut ends = core::mem::take(&mut self.family.ends);
        ends.retain(|&id| !(self.stack.socket(id).may_be_all_kernels() && self.leaves_to_all(id)));
        self.family.ends = ends;
    }

    /// Returns when the connection is the kernel's, or its owner has it no more; how it has ended if it has.
    fn ask_ancestor(&self, id: SocketId) -> Option<Ended> {
        let socket = self.stack.socket(id);
        self.ask_for_what_is(socket.ancestor, &request(socket.local, socket.remote))
            .and_then(|answer| Ended::hear(&answer))
    }

    /// Asks an ancestor for something of its own: where the answer comes, which is closed when it is done.
    pub(super) fn ask_for_what_is(&self, ancestor: u32, request: &[u8]) -> Option<OwnedFd> {
        let channel = self.family.ancestors.get(ancestor as usize)?;
        let (answer, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
        messages::send(channel, request, &[theirs.as_fd()], SendFlags::empty()).ok().map(|()| answer)
    }

    /// One of the channels has a request, or has ended. Returns whether there is anybody left to serve.
    fn hear_heir(&mut self, fork: u32) -> bool {
        if let Some(index) = self.family.heirs.iter().position(|heir| heir.fork == fork) {
            match hear(self.family.heirs[index].channel.as_fd()) {
                Ok(Some(Request::Datagrams { cookie, answer })) => self.give_datagrams(cookie, &answer),
                Ok(Some(Request::Connection { local, remote, answer })) => {
                    let asked = self.stack.connections().find(|&id| {
                        let socket = self.stack.socket(id);
                        (socket.local, socket.remote) == (local, remote)
                    });
                    let moved = asked.is_some_and(|id| self.hand_over(id).is_ok());
                    if asked.is_some() {
                        self.tell_sleepers();
                    }
                    if !moved && let Some(ended) = self.ended_between(local, remote) {
                        let _ = ended.tell(&answer);
                    }
                    drop(answer);
                }
                Ok(None) => {}
                Err(_) => {
                    let heir = self.family.heirs.swap_remove(index);
                    // A child that was forked since may still have a copy of it.
                    if let Some(requests) = &self.family.requests {
                        let _ = epoll::delete(requests, &heir.channel);
                    }
                    table::enter(heir.channel.as_raw_fd(), Entry::Kernel);
                }
            }
        }
        self.family.serving = !self.family.heirs.is_empty();
        if !self.family.serving {
            self.family.closed.clear();
            self.family.left.clear();
        }
        self.family.serving
    }
}

/// The thread.
fn serve(requests: i32, context: usize) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    loop {
        // SAFETY: room for one record.
        let outcome = unsafe { sys::epoll_wait(requests, &raw mut event, 1, None, sys::handlers_run()) };
        match outcome {
            Ok(1..) if !at(context).hear_heir(event.u64 as u32) => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// What a child asks for; the answer is closed when it is done.
enum Request {
    Connection {
        local: SocketAddr,
        remote: SocketAddr,
        answer: OwnedFd,
    },
    /// A UDP socket, by its cookie.
    Datagrams {
        cookie: u64,
        answer: OwnedFd,
    },
}

/// `Err`: nobody is at the other end any more.
fn hear(channel: BorrowedFd<'_>) -> Result<Option<Request>, Errno> {
    let mut bytes = [0; REQUEST_LEN];
    let (length, descriptors) = match messages::receive(channel, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((length @ 1.., descriptors)) => (length, descriptors),
        Err(Errno::AGAIN) => return Ok(None),
        _ => return Err(Errno::PIPE),
    };
    Ok(match descriptors.into_iter().next() {
        Some(answer) if length == REQUEST_LEN => {
            let [local, remote] = ends(&bytes);
            Some(Request::Connection { local, remote, answer })
        }
        Some(answer) => {
            let cookie = bytes[..length].try_into().ok().map(u64::from_ne_bytes);
            cookie.map(|cookie| Request::Datagrams { cookie, answer })
        }
        None => None,
    })
}

pub(super) fn request(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    for (index, end) in [local, remote].into_iter().enumerate() {
        let address = match end.ip() {
            core::net::IpAddr::V4(address) => address.to_ipv6_mapped(),
            core::net::IpAddr::V6(address) => address,
        };
        bytes[index * 16..][..16].copy_from_slice(&address.octets());
        bytes[32 + index * 2..][..2].copy_from_slice(&end.port().to_ne_bytes());
    }
    bytes
}

pub(super) fn ends(bytes: &[u8; REQUEST_LEN]) -> [SocketAddr; 2] {
    [0, 1].map(|index| {
        let mut address = [0; 16];
        address.copy_from_slice(&bytes[index * 16..][..16]);
        let port = u16::from_ne_bytes([bytes[32 + index * 2], bytes[33 + index * 2]]);
        canonical(SocketAddr::new(Ipv6Addr::from(address).into(), port))
    })
}
