//! Where frames of several segments leave: a packet socket whose holder reaches one interface, and nothing else.
//!
//! A packet socket can be bound again, by whoever has it, to any interface of its network namespace. So it is made in a namespace that has
//! one: a macvlan of the interface, in private mode, which hands what it is given to the interface, and has no way to its siblings.
//! The kernel takes namespace and macvlan away with the last socket, whoever has that, and however the broker ends.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use overfly_link::packet::PacketSocket;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::attachment::departures::Departures;
use crate::netlink::{Link, Netlink};

/// The macvlan's name. Its namespace has no other devices but `lo`, which is down.
const NAME: &str = "overfly";

/// Queueing disciplines that hold no frame back while the device takes some. In others frames of several segments would wait, and
/// AF_XDP's, which no discipline sees, would overtake those of their flow.
/// An interface that is not up yet has `noop`.
const UNHURRIED: [&str; 6] = ["noop", "noqueue", "pfifo", "pfifo_fast", "bfifo", "fq_codel"];

/// Sockets that are made before somebody asks: the kernel takes 11 to 16 ms for each (`synchronize_net` of its ring), in which a broker
/// would serve nobody else. Those that are in the making at one time wait for the same end.
const AHEAD: usize = 2;

/// A namespace with nothing but a way out by one interface.
#[derive(Debug)]
pub(crate) struct Confined {
    namespace: Arc<OwnedFd>,
    index: u32,
    /// The first is the next to be given away.
    ahead: VecDeque<JoinHandle<Result<PacketSocket, String>>>,
}

impl Confined {
    /// # Errors
    /// Why frames of several segments cannot leave by this interface: words for whoever asks.
    pub(crate) fn new(netlink: &mut Netlink, interface: &Link) -> Result<Confined, String> {
        check(interface)?;
        let namespace = apart(|| {
            // SAFETY: only the thread's network namespace changes; it ends with this closure.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net").map_err(|error| errno_of(&error))
        })
        .map_err(|errno| format!("no network namespace: {errno}"))?;
        let namespace = OwnedFd::from(namespace);
        netlink
            .add_macvlan(interface.index, NAME, namespace.as_fd())
            .map_err(|errno| format!("no macvlan of the interface: {errno}"))?;
        let index = within(&namespace, || {
            let mut netlink = Netlink::open()?;
            let index = netlink.link(NAME)?.ok_or(Errno::NODEV)?.index;
            netlink.keep_silent(index)?;
            netlink.set_up(index)?;
            Ok(index)
        })
        .map_err(|errno| format!("no macvlan that is up: {errno}"))?;
        let mut confined = Confined { namespace: Arc::new(namespace), index, ahead: VecDeque::new() };
        confined.make_ahead(AHEAD)?;
        Ok(confined)
    }

    /// A socket for one stack.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn open_socket(&mut self) -> Result<PacketSocket, String> {
        // One more than stay, before this one is waited for.
        self.make_ahead(AHEAD + 1)?;
        let next = self.ahead.pop_front().ok_or("no packet socket")?;
        next.join().unwrap_or_else(|_| Err("making a packet socket failed".to_owned()))
    }

    /// Begins to make what is missing of so many.
    fn make_ahead(&mut self, sockets: usize) -> Result<(), String> {
        while self.ahead.len() < sockets {
            let (namespace, index) = (Arc::clone(&self.namespace), self.index);
            let make = move || {
                enter(&namespace).map_err(|errno| format!("entering a network namespace: {errno}"))?;
                PacketSocket::open(index).map_err(|error| error.to_string())
            };
            let thread = std::thread::Builder::new().spawn(make);
            self.ahead.push_back(thread.map_err(|error| format!("a thread for a packet socket: {error}"))?);
        }
        Ok(())
    }
}

impl Drop for Confined {
    /// The namespace goes with its last user: when this returns.
    fn drop(&mut self) {
        let mut departures = Departures::default();
        for thread in self.ahead.drain(..) {
            departures.close(thread.join());
        }
    }
}

/// Whether frames of several segments may leave by the interface.
fn check(interface: &Link) -> Result<(), String> {
    if interface.kind.as_deref() != Some("veth") {
        let kind = interface.kind.as_deref().unwrap_or("no virtual device");
        return Err(format!("only veth has been tried, and this is {kind}"));
    }
    match interface.queueing.as_deref() {
        Some(discipline) if !UNHURRIED.contains(&discipline) => {
            Err(format!("frames would wait in the interface's queueing discipline, {discipline}"))
        }
        _ => Ok(()),
    }
}

/// Whether connections' segments can leave an interface of this thread's network namespace together ([`crate::Attachment::long_frames`]
/// says whether they do).
///
/// # Errors
/// Why not, in words.
pub fn long_frames_of(interface: &str) -> Result<(), String> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(interface));
    let link = link.map_err(|errno| format!("reading the interface: {errno}"))?;
    check(&link.ok_or("there is no such interface")?)
}

/// Runs `work` in a thread of its own.
fn apart<R: Send>(work: impl FnOnce() -> Result<R, Errno> + Send) -> Result<R, Errno> {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or(Err(Errno::IO)))
}

fn within<R: Send>(namespace: &OwnedFd, work: impl FnOnce() -> Result<R, Errno> + Send) -> Result<R, Errno> {
    apart(|| {
        enter(namespace)?;
        work()
    })
}

/// Has this thread be in a network namespace.
fn enter(namespace: &OwnedFd) -> Result<(), Errno> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
