//! The broker of an interface as a process of its own: it serves every program that joins it, and ends with the last.

use std::time::Duration;

use overfly_link::broker::Holder;
use rustix::io::Errno;

use crate::attachment::{Attachment, Options};
use crate::broker::open_socket;
use crate::door::{Sockets, raise_descriptor_limit};
use crate::error::Error;
use crate::observers::{listen_at, public_name};
use crate::service::Service;
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
    raise_descriptor_limit();
    let (listener, name, _) = open_socket()?;
    // The name goes first: of two that begin at once, one attaches, and the other one's program waits for it.
    let mut tries = 0;
    let public = loop {
        match listen_at(&public_name(interface)) {
            Ok(public) => break Some(public),
            Err(Errno::ADDRINUSE) => {}
            Err(_) => break None,
        }
        match Holder::of(interface) {
            Holder::Ours => {
                say(Hosting::Elsewhere);
                return Ok(());
            }
            // It has just ended, or has not begun to listen yet.
            Holder::Nobody if tries < TRIES => std::thread::sleep(PAUSE),
            Holder::Nobody | Holder::Stranger => break None,
        }
        tries += 1;
    };
    let attachment = Attachment::attach(interface, options)?;
    let hosting = Hosting::Here { name: name.clone(), is_public: public.is_some() };
    let sockets = Sockets { listener, name, public };
    let service = Service::until_the_last(Steering::new(attachment)?, sockets, in_force);
    say(hosting);
    service.run(None);
    Ok(())
}

/// What whoever started this process had open (locks, pipes) is closed when it becomes another program: all but the standard
/// descriptors.
pub fn leave_descriptors_behind() {
    const CLOEXEC: libc::c_uint = 1 << 2; // CLOSE_RANGE_CLOEXEC in include/uapi/linux/close_range.h
    // SAFETY: this sets a flag of descriptors; none is closed, and no memory is touched.
    unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOEXEC) };
}
