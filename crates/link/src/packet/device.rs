//! What a device says about frames of several segments.

use core::ffi::c_char;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: u32 = 0x8946;
/// `ETHTOOL_GTSO` of linux/ethtool.h. Anybody may ask.
const ETHTOOL_GTSO: u32 = 0x1e;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Whether an interface takes TCP frames of several segments as they are; otherwise the kernel cuts them on the sender's processor before it
/// hands them over. A veth device does not take them while there is an XDP program in the driver of its peer. `socket`: any one in the
/// interface's network namespace. `None` if the kernel does not say.
#[must_use]
pub fn takes_segments(socket: BorrowedFd<'_>, interface: &str) -> Option<bool> {
    let mut value = Value { command: ETHTOOL_GTSO, data: 0 };
    let mut name: [c_char; libc::IFNAMSIZ] = [0; libc::IFNAMSIZ];
    // The last one ends the name.
    let places = name[..libc::IFNAMSIZ - 1].iter_mut();
    if interface.len() > places.len() {
        return None;
    }
    places.zip(interface.bytes()).for_each(|(place, byte)| *place = byte.cast_signed());
    let data = (&raw mut value).cast();
    let mut request =
        libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: data } };
    // Not by libc's ioctl(): a program's calls may be somebody else's.
    // SAFETY: the kernel reads the request, and writes the value that it points to.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    (result == 0).then_some(value.data != 0)
}
