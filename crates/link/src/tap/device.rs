//! Opening a tap device's queues.

use core::ffi::{c_int, c_uint};
use std::os::fd::OwnedFd;

use overfly_wire::MacAddr;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::Error;

const IFF_UP: u16 = 1;
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_MULTI_QUEUE: u16 = 0x0100;
/// netdevice(7): flags, MTU and hardware address of an interface.
const SIOCGIFFLAGS: Opcode = 0x8913;
const SIOCGIFMTU: Opcode = 0x8921;
const SIOCGIFHWADDR: Opcode = 0x8927;
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<c_uint>(b'T', 208);
/// Unfinished checksums, and TCP segments of both families, also with ECN: what the kernel may send (`TUN_F_*`).
const OFFLOADS: usize = 1 | 2 | 4 | 8;
const NAME_MAX: usize = 16; // IFNAMSIZ

/// `struct ifreq`: a name, and a union of which flags and the MTU are read here.
#[repr(C)]
struct Request {
    name: [u8; NAME_MAX],
    value: [u16; 12],
}

impl Request {
    /// `None` if this can be no interface's name.
    fn new(name: &str) -> Option<Request> {
        let mut request = Request { name: [0; NAME_MAX], value: [0; 12] };
        let place =
            request.name.get_mut(..name.len()).filter(|_| !name.is_empty() && name.len() < NAME_MAX)?;
        place.copy_from_slice(name.as_bytes());
        Some(request)
    }
}

/// MTU and hardware address of a device that is there and up, in the network namespace of the calling thread.
pub(super) fn describe(name: &str) -> Result<(u16, MacAddr), Error> {
    let missing = || Error::NoTap { name: name.to_owned() };
    let mut request = Request::new(name).ok_or_else(missing)?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::system("creating a socket", errno))?;
    // SAFETY: SIOCGIFFLAGS reads the name of a `struct ifreq` and writes its union.
    unsafe { ioctl(&socket, Updater::<SIOCGIFFLAGS, Request>::new(&mut request)) }.map_err(|_| missing())?;
    if request.value[0] & IFF_UP == 0 {
        return Err(missing());
    }
    // SAFETY: as above.
    unsafe { ioctl(&socket, Updater::<SIOCGIFMTU, Request>::new(&mut request)) }.map_err(|_| missing())?;
    let [low, high, ..] = request.value.map(u16::to_ne_bytes);
    let mtu = u32::from_ne_bytes([low[0], low[1], high[0], high[1]]);
    // SAFETY: as above.
    unsafe { ioctl(&socket, Updater::<SIOCGIFHWADDR, Request>::new(&mut request)) }.map_err(|_| missing())?;
    // `struct sockaddr`: the address follows the family.
    let [_, ab, cd, ef, ..] = request.value.map(u16::to_ne_bytes);
    let mac = MacAddr([ab[0], ab[1], cd[0], cd[1], ef[0], ef[1]]);
    Ok((u16::try_from(mtu).unwrap_or(u16::MAX), mac))
}

/// One more queue, or the only one of a device that was made without `multi_queue`.
pub(super) fn open_queue(name: &str) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let queue = open("/dev/net/tun", flags, Mode::empty())
        .map_err(|errno| Error::system("opening /dev/net/tun", errno))?;
    let attach = |queues: u16| {
        let mut request = Request::new(name).ok_or(Errno::NODEV)?;
        request.value[0] = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | queues;
        // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which `Request` is as long as, and keeps no pointer to it.
        unsafe { ioctl(&queue, Setter::<TUNSETIFF, Request>::new(request)) }
    };
    let attached = match attach(IFF_MULTI_QUEUE) {
        Err(Errno::INVAL) => attach(0),
        result => result,
    };
    attached.map_err(|errno| match errno {
        Errno::PERM => {
            Error::NoPrivilege { operation: "opening a queue of a tap device", capability: "CAP_NET_ADMIN" }
        }
        Errno::TOOBIG | Errno::BUSY | Errno::INVAL => Error::TapQueues { name: name.to_owned() },
        errno => Error::system("TUNSETIFF", errno),
    })?;
    // SAFETY: TUNSETOFFLOAD takes an integer and touches no memory.
    unsafe { ioctl(&queue, IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOADS)) }
        .map_err(|errno| Error::system("TUNSETOFFLOAD", errno))?;
    Ok(queue)
}
