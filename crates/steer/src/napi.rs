//! Which thread of the kernel's receives for a device.
//!
//! Source: Documentation/netlink/specs/netdev.yaml (generic netlink, family `netdev`), include/uapi/linux/netdev.h,
//! Documentation/networking/napi.rst ("Threaded NAPI").

use std::fs;
use std::os::raw::c_int;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::last_error;
use crate::netlink::{Netlink, Request, attributes, number};

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_NAPI_GET: u8 = 11;
/// Linux 6.13; of `threaded`, 6.17.
const NETDEV_CMD_NAPI_SET: u8 = 14;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_PID: u16 = 4;
const NETDEV_A_NAPI_THREADED: u16 = 8;

/// The family `netdev`, asked about devices and their NAPIs.
#[derive(Debug)]
pub(crate) struct Netdev {
    pub(crate) netlink: Netlink,
    pub(crate) family: u16,
}

impl Netdev {
    pub(crate) fn open() -> Result<Netdev, Errno> {
        let mut netlink = Netlink::open_generic()?;
        let mut request = Request::generic(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY);
        request.attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        let mut family = None;
        netlink.exchange(request, |_, body| {
            family = generic_attribute(body, CTRL_ATTR_FAMILY_ID).and_then(|id| id.try_into().ok());
        })?;
        let family = u16::from_ne_bytes(family.ok_or(Errno::OPNOTSUPP)?);
        Ok(Netdev { netlink, family })
    }

    /// The NAPIs of a device in the order in which they were made, with their threads.
    fn napis(&mut self, interface: u32) -> Result<Vec<(u32, Option<Pid>)>, Errno> {
        let mut request = Request::generic(self.family, Netlink::DUMP, NETDEV_CMD_NAPI_GET);
        request.attribute(NETDEV_A_NAPI_IFINDEX, &interface.to_ne_bytes());
        let mut found = Vec::new();
        self.netlink.exchange(request, |_, body| {
            let value = |kind| generic_attribute(body, kind).and_then(number);
            if let Some(napi) = value(NETDEV_A_NAPI_ID) {
                found.push((napi, value(NETDEV_A_NAPI_PID).and_then(|pid| Pid::from_raw(pid as i32))));
            }
        })?;
        found.sort_unstable_by_key(|(napi, _)| *napi);
        Ok(found)
    }

    fn set_threaded(&mut self, napi: u32, threaded: bool) -> Result<(), Errno> {
        let mut request = Request::generic(self.family, Netlink::ACKNOWLEDGE, NETDEV_CMD_NAPI_SET);
        request.attribute(NETDEV_A_NAPI_ID, &napi.to_ne_bytes());
        request.attribute(NETDEV_A_NAPI_THREADED, &u32::from(threaded).to_ne_bytes());
        self.netlink.exchange(request, |_, _| ())
    }
}

/// Threads of the kernel's that receive for a device, instead of whoever raised its softirq. A NAPI that the XDP program
/// brought loses its thread with the program, however this process ends; one that was there before, when this is dropped.
#[derive(Debug)]
pub(crate) struct ReceivingThreads {
    netdev: Netdev,
    napis: Vec<u32>,
}

impl ReceivingThreads {
    /// Each queue of a device gets a thread on one of `cpus`, in turn. It does not interrupt who runs there: that program
    /// must give the processor away when it has nothing to do (SCHED_BATCH, sched(7)).
    ///
    /// # Errors
    /// What the kernel said; an older one has no such setting. ENODEV: no queue of the device is without a thread. Nothing is
    /// changed then.
    pub(crate) fn start(interface: u32, cpus: &[usize]) -> Result<ReceivingThreads, Errno> {
        let mut threads = ReceivingThreads { netdev: Netdev::open()?, napis: Vec::new() };
        for (napi, thread) in threads.netdev.napis(interface)? {
            // One that has a thread already was given it by somebody who has a reason.
            if thread.is_none() {
                threads.netdev.set_threaded(napi, true)?;
                threads.napis.push(napi);
            }
        }
        let mut cpus = cpus.iter().cycle();
        for (napi, thread) in threads.netdev.napis(interface)? {
            if threads.napis.contains(&napi)
                && let Some(cpu) = cpus.next()
            {
                place(thread.ok_or(Errno::SRCH)?, *cpu)?;
            }
        }
        if threads.napis.is_empty() { Err(Errno::NODEV) } else { Ok(threads) }
    }
}

impl Drop for ReceivingThreads {
    fn drop(&mut self) {
        for napi in &self.napis {
            // It may be gone with its device.
            let _ = self.netdev.set_threaded(*napi, false);
        }
    }
}

/// Gives a thread of the kernel's to one processor, where it waits for its turn.
fn place(thread: Pid, cpu: usize) -> Result<(), Errno> {
    // In a process namespace of one's own, the number that the kernel gives may be anybody's.
    let name = fs::read_to_string(format!("/proc/{thread}/comm")).map_err(|_| Errno::SRCH)?;
    if !name.starts_with("napi/") || cpu >= CpuSet::MAX_CPU {
        return Err(Errno::SRCH);
    }
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` is alive; the kernel only reads it.
    let result: c_int =
        unsafe { libc::sched_setscheduler(thread.as_raw_pid(), libc::SCHED_BATCH, &raw const parameter) };
    if result != 0 {
        return Err(last_error());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(Some(thread), &set)
}

/// An attribute of a message, behind its generic header.
pub(crate) fn generic_attribute(body: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(body.get(4..)?).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use overfly_testing::kernel::napis_have_threads;
    use rustix::thread::sched_getaffinity;

    use super::*;
    use crate::{Attachment, Options, ReceiveOffload};
    use overfly_lab::{CLIENT, INTERFACE, Lab};

    #[test]
    fn threads_receive_where_they_were_told_until_they_are_dropped() {
        let allowed = sched_getaffinity(None).unwrap();
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let cpus = [allowed[allowed.len() - 1], allowed[0]];
        let lab = Lab::new(2);
        lab.client.enter();
        // A veth has NAPIs where a program is in its driver.
        let options = Options { receive_offload: ReceiveOffload::Packets, ..Options::default() };
        let mut attachment = Attachment::attach(INTERFACE, options).unwrap();
        let index = attachment.interface().index;
        if !attachment.receive_on(&cpus) {
            assert!(!napis_have_threads(), "this kernel has threads for each NAPI");
            return;
        }
        let again = ReceivingThreads::start(index, &cpus);
        assert_eq!(again.err(), Some(Errno::NODEV), "those that have threads are left alone");

        let receiver = UdpSocket::bind((CLIENT, 5000)).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        lab.server
            .within(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"frame", (CLIENT, 5000)))
            .unwrap();
        assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 5);

        let mut netdev = Netdev::open().unwrap();
        let placed = netdev.napis(index).unwrap();
        assert_eq!(placed.len(), 2);
        for ((_, thread), cpu) in placed.iter().zip(cpus) {
            let allowed = sched_getaffinity(Some(thread.unwrap())).unwrap();
            assert!(allowed.count() == 1 && allowed.is_set(cpu));
        }
        attachment.receiving = None;
        assert!(netdev.napis(index).unwrap().iter().all(|(_, thread)| thread.is_none()));
        assert!(attachment.receive_on(&cpus));
        drop(attachment);
        assert_eq!(netdev.napis(index).unwrap(), []);
    }
}
