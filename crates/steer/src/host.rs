//! The broker of an interface as a process of its own: it serves every program that joins it, and ends with the last.

use std::os::fd::OwnedFd;
use std::time::Duration;

use overfly_broker::Holder;
use overfly_broker::service::{
    Admission, Service, Sockets, listen_at, open_socket, public_name, raise_descriptor_limit,
};
use rustix::io::Errno;

use crate::attachment::{Attachment, Options};
use crate::error::Error;
use crate::netlink::Netlink;
use crate::steering::Steering;

/// Looks at a name that is taken by nobody who listens, and the time between them.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// What a host tells whoever started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosting {
    /// A broker of this user's serves the interface already.
    Elsewhere,
    /// It serves from now on.
    Here {
        /// The name of its socket, for the first program.
        name: String,
        /// Other programs find it by the interface's name. They do not if another user has taken that.
        is_public: bool,
    },
}

/// Attaches to the interface, says so, and serves until the last program has left; a first one must come within 5 s. `in_force`
/// is what those that join are told of the options.
///
/// # Errors
/// Those of [`Attachment::attach`]. Nothing is left behind.
pub fn host(
    interface: &str,
    options: Options,
    in_force: &str,
    say: impl FnOnce(Hosting),
) -> Result<(), Error> {
    host_for(None, interface, options, in_force, say)
}

/// As [`host`], as a service: it serves whomever `admission` admits until `stop` is readable. Then its clients hand over to the kernel
/// what they have, and it ends; their programs go on, and come to the next broker that takes its place. `ready` is called when programs
/// can come.
///
/// # Errors
/// Those of [`Attachment::attach`]; [`Error::Options`] if the interface has a broker already, or somebody else its name: programs
/// would not find this one.
pub fn stand(
    interface: &str,
    options: Options,
    in_force: &str,
    admission: Box<dyn Admission>,
    stop: &OwnedFd,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    raise_descriptor_limit();
    let (listener, ..) = open_socket()?;
    // By this name its programs' processes find another broker, too, that takes its place.
    let name = public_name(interface);
    let public = public_socket(interface).ok_or_else(|| {
        Error::Options(format!(
            "{interface} has a broker already: stop it, or the `overfly run` that began it, and try again"
        ))
    })?;
    let public = Some(public.ok_or_else(|| Error::Options(Holder::in_words(interface)))?);
    let attachment = Attachment::attach(interface, options)?;
    let sockets = Sockets { listener, name, public };
    let service = Service::standing(Steering::new(attachment)?, sockets, in_force).admitting(admission);
    ready();
    service.run(Some(stop));
    Ok(())
}

/// As [`host`], for an agent, in the network namespace of a container: it serves whomever `admission` admits, on the container's end of a
/// veth pair and nothing else. Who asks the agent is told its name; that somebody else has the public one does not matter.
///
/// # Errors
/// As [`host`].
pub fn host_pod(
    interface: &str,
    options: Options,
    in_force: &str,
    admission: Box<dyn Admission>,
    say: impl FnOnce(Hosting),
) -> Result<(), Error> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(interface));
    let link = link.map_err(|errno| Error::system("reading the interface", errno))?;
    let link = link.ok_or_else(|| Error::NoInterface { name: interface.to_owned() })?;
    // What is made within the container has both ends there.
    if link.kind.as_deref() != Some("veth") || !link.reaches_out {
        return Err(Error::Options(format!(
            "{interface} is no end of a veth pair whose other end is in another network namespace: an agent serves no others"
        )));
    }
    host_for(Some(admission), interface, options, in_force, say)
}

/// As [`host`], for whomever `admission` admits, or else for its own user.
fn host_for(
    admission: Option<Box<dyn Admission>>,
    interface: &str,
    options: Options,
    in_force: &str,
    say: impl FnOnce(Hosting),
) -> Result<(), Error> {
    raise_descriptor_limit();
    let (listener, name, _) = open_socket()?;
    let Some(public) = public_socket(interface) else {
        say(Hosting::Elsewhere);
        return Ok(());
    };
    let attachment = Attachment::attach(interface, options)?;
    let hosting = Hosting::Here { name: name.clone(), is_public: public.is_some() };
    let sockets = Sockets { listener, name, public };
    let mut service = Service::until_the_last(Steering::new(attachment)?, sockets, in_force);
    if let Some(admission) = admission {
        service = service.admitting(admission);
    }
    say(hosting);
    service.run(None);
    Ok(())
}

/// Listens where programs look for the broker of an interface. The inner `None`: another user has that name. The outer one: this
/// user's broker is there.
///
/// The name comes first: of two that begin at once, one attaches, and the other one's program waits for it.
fn public_socket(interface: &str) -> Option<Option<OwnedFd>> {
    for tries in 0.. {
        match listen_at(&public_name(interface)) {
            Ok(public) => return Some(Some(public)),
            Err(Errno::ADDRINUSE) => {}
            Err(_) => return Some(None),
        }
        match Holder::of(interface) {
            Holder::Ours => return None,
            // It has just ended, or has not begun to listen yet.
            Holder::Nobody if tries < TRIES => std::thread::sleep(PAUSE),
            Holder::Nobody | Holder::Stranger => break,
        }
    }
    Some(None)
}

/// What whoever started this process had open (locks, pipes) is closed when it becomes another program: all but the standard
/// descriptors.
pub fn leave_descriptors_behind() {
    const CLOEXEC: libc::c_uint = 1 << 2; // CLOSE_RANGE_CLOEXEC in include/uapi/linux/close_range.h
    // SAFETY: this sets a flag of descriptors; none is closed, and no memory is touched.
    unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOEXEC) };
}
