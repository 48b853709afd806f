//! What only sysfs says or takes about a network device.
//!
//! A mounted sysfs shows the devices of the network namespace it was mounted in, which need not be the caller's (a thread
//! that called unshare or setns, `nsenter -n`). So it is mounted afresh, in a mount namespace that lives as long as one
//! thread.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use overfly_broker::Deferral;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

use crate::error::Error;
use crate::netlink::Link;

/// Runs `work` with the folder of a device of the caller's network namespace.
fn with_device<R: Send>(
    interface: &str,
    work: impl FnOnce(&Path) -> Result<R, Errno> + Send,
) -> Result<R, Errno> {
    let folder = PathBuf::from("/sys/class/net").join(interface);
    std::thread::scope(|scope| {
        scope
            .spawn(move || {
                // SAFETY: only the mount namespace (and with it root and working directory) is unshared, no descriptors.
                unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
                mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
                mount(
                    "sysfs",
                    "/sys",
                    "sysfs",
                    MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
                    None,
                )
                // What is mounted there already is the sysfs of this network namespace.
                .or_else(|errno| if errno == Errno::BUSY { Ok(()) } else { Err(errno) })?;
                work(&folder)
            })
            .join()
            .unwrap_or(Err(Errno::IO))
    })
}

/// Queues in use, (receive, transmit): what `ethtool -L` set, of those that the driver allocated.
fn queues(interface: &str) -> Result<(u32, u32), Errno> {
    with_device(interface, |folder| {
        let (mut receive, mut transmit) = (0, 0);
        for entry in fs::read_dir(folder.join("queues")).map_err(|error| errno(&error))? {
            let name = entry.map_err(|error| errno(&error))?.file_name();
            receive += u32::from(name.as_encoded_bytes().starts_with(b"rx-"));
            transmit += u32::from(name.as_encoded_bytes().starts_with(b"tx-"));
        }
        Ok((receive, transmit))
    })
}

/// The same. Where that cannot be read, it is known only of a device that has one queue each way: others may have more than are in use,
/// and the kernel takes no AF_XDP socket on such a queue.
///
/// # Errors
/// [`Error::QueuesUnknown`]; [`Error::NoPrivilege`] for whoever could not attach to the device either: what a sandbox must allow is no
/// concern of theirs.
pub(crate) fn queues_of(interface: &str, link: &Link) -> Result<(u32, u32), Error> {
    match (queues(interface), link.rx_queues, link.tx_queues) {
        (Ok(queues), ..) => Ok(queues),
        (Err(_), 1, 1) => Ok((1, 1)),
        (Err(Errno::PERM), ..) if !may_attach() => {
            Err(Error::NoPrivilege { operation: "attaching the XDP program", capability: "CAP_NET_ADMIN" })
        }
        (Err(errno), ..) => Err(Error::QueuesUnknown { name: interface.to_owned(), errno }),
    }
}

/// Whether this process has CAP_NET_ADMIN as the kernel asks for it: in another user namespace than the machine's (unshare -U) nobody has.
fn may_attach() -> bool {
    /// The number of the machine's own user namespace: PROC_USER_INIT_INO of include/linux/proc_ns.h.
    const MACHINES: u64 = 0xEFFF_FFFD;
    // Without /proc it is not known: as if it were that one.
    let users = fs::metadata("/proc/self/ns/user").map_or(MACHINES, |its| its.ino());
    users == MACHINES
        && capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// The settings that make busy polling worth it.
pub(crate) const BUSY_POLL: Deferral = Deferral { napi_defer_hard_irqs: 2, gro_flush_timeout_ns: 200_000 };

/// What a device's settings were before they were found so. Those of busy polling a broker has left that was killed: they were the
/// kernel's own before.
fn left_behind(found: Deferral) -> Deferral {
    if found == BUSY_POLL { Deferral { napi_defer_hard_irqs: 0, gro_flush_timeout_ns: 0 } } else { found }
}

/// Sets those of busy polling, and returns what they were before there was a broker.
pub(crate) fn begin_busy_poll(interface: &str) -> Result<Deferral, Errno> {
    set_deferral(interface, BUSY_POLL).map(left_behind)
}

/// Sets them and returns what they were.
pub(crate) fn set_deferral(interface: &str, wanted: Deferral) -> Result<Deferral, Errno> {
    change_deferral(interface, |_| Some(wanted))
}

/// Restores what a broker that was killed has left of the settings for busy polling. Others are left alone.
///
/// # Errors
/// What the kernel said: the interface may be gone.
pub fn restore_deferral(interface: &str, before: Deferral) -> Result<(), Error> {
    change_deferral(interface, |now| (now == BUSY_POLL).then_some(before))
        .map(drop)
        .map_err(|errno| Error::system("restoring gro_flush_timeout", errno))
}

fn change_deferral(
    interface: &str,
    wanted: impl FnOnce(Deferral) -> Option<Deferral> + Send,
) -> Result<Deferral, Errno> {
    with_device(interface, move |folder| {
        let defer = folder.join("napi_defer_hard_irqs");
        let timeout = folder.join("gro_flush_timeout");
        let before = Deferral { napi_defer_hard_irqs: read(&defer)?, gro_flush_timeout_ns: read(&timeout)? };
        if let Some(wanted) = wanted(before) {
            write(&defer, u64::from(wanted.napi_defer_hard_irqs))?;
            write(&timeout, wanted.gro_flush_timeout_ns)?;
        }
        Ok(before)
    })
}

fn read<T: std::str::FromStr>(path: &Path) -> Result<T, Errno> {
    let text = fs::read_to_string(path).map_err(|error| errno(&error))?;
    text.trim().parse().map_err(|_| Errno::BADMSG)
}

fn write(path: &Path, value: u64) -> Result<(), Errno> {
    fs::write(path, value.to_string()).map_err(|error| errno(&error))
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overfly_lab::{INTERFACE, Lab};

    #[test]
    fn settings_are_those_of_the_threads_own_namespace() {
        let lab = Lab::new(3);
        lab.server.enter();
        assert_eq!(queues(INTERFACE), Ok((3, 3)));
        assert_eq!(queues("nosuch0"), Err(Errno::NOENT));
        let before = set_deferral(INTERFACE, BUSY_POLL).unwrap();
        assert_ne!(before, BUSY_POLL);
        assert_eq!(set_deferral(INTERFACE, before), Ok(BUSY_POLL));
        // The client's end has the same name and was never touched.
        let theirs = lab.client.within(|| set_deferral(INTERFACE, before));
        assert_eq!(theirs, Ok(before));
    }

    #[test]
    fn what_a_killed_broker_left_is_restored_and_nothing_else() {
        let lab = Lab::new(1);
        lab.server.enter();
        let before = set_deferral(INTERFACE, BUSY_POLL).unwrap();
        restore_deferral(INTERFACE, before).unwrap();
        assert_eq!(left_behind(BUSY_POLL), Deferral { napi_defer_hard_irqs: 0, gro_flush_timeout_ns: 0 });
        let others = Deferral { gro_flush_timeout_ns: 7000, ..before };
        assert_eq!(left_behind(others), others);
        assert_eq!(set_deferral(INTERFACE, others), Ok(before));
        restore_deferral(INTERFACE, before).unwrap();
        assert_eq!(set_deferral(INTERFACE, before), Ok(others));
        assert!(restore_deferral("nosuch0", before).is_err());
    }
}
