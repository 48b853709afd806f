//! The privileged half: a socket that is fit to be given away.

use core::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::Error;
use crate::mapping::Mapping;

const SOL_PACKET: c_int = 263;
const PACKET_RX_RING: c_int = 5;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_QDISC_BYPASS: c_int = 20;
/// Bytes that may be on their way to the device. The kernel counts each twice.
const SEND_BUFFER: u32 = 1 << 20;
/// A ring of one page.
const RING: libc::tpacket_req =
    libc::tpacket_req { tp_block_size: 4096, tp_block_nr: 1, tp_frame_size: 2048, tp_frame_nr: 2 };

/// A packet socket that sends frames by one interface of the calling thread's network namespace, each after a
/// `struct virtio_net_hdr`. Whoever is given it can bind it to another interface of that namespace: there must be none.
///
/// It receives nothing, whatever its holder does: its filter drops everything and is locked. Nor can its holder have the kernel
/// make rings for it: it has one, of one page, which this value keeps mapped, and a ring that is mapped cannot be changed.
pub struct PacketSocket {
    socket: OwnedFd,
    _ring: Mapping,
}

// SAFETY: nobody looks at the ring's memory; it is unmapped once, by whichever thread drops the value.
unsafe impl Send for PacketSocket {}

impl PacketSocket {
    /// # Errors
    /// [`Error::NoPrivilege`] without CAP_NET_RAW and CAP_NET_ADMIN, or what the kernel said.
    pub fn open(interface: u32) -> Result<PacketSocket, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|errno| {
            if errno == Errno::PERM {
                Error::NoPrivilege { operation: "a packet socket", capability: "CAP_NET_RAW" }
            } else {
                Error::system("a packet socket", errno)
            }
        })?;
        let nothing = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
        let filter = libc::sock_fprog { len: 1, filter: (&raw const nothing).cast_mut() };
        let on: c_int = 1;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter, "SO_ATTACH_FILTER")?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &on, "SO_LOCK_FILTER")?;
        set_option(&socket, SOL_PACKET, PACKET_VNET_HDR, &on, "PACKET_VNET_HDR")?;
        set_option(&socket, SOL_PACKET, PACKET_QDISC_BYPASS, &on, "PACKET_QDISC_BYPASS")?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER, "SO_SNDBUFFORCE")?;
        set_option(&socket, SOL_PACKET, PACKET_RX_RING, &RING, "PACKET_RX_RING")?;
        let length = RING.tp_block_size as usize;
        let ring = Mapping::shared(socket.as_fd(), 0, length, "mapping a packet socket's ring")?;
        bind(&socket, interface)?;
        Ok(PacketSocket { socket, _ring: ring })
    }

    /// The socket, to be given away.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn share(&self) -> Result<OwnedFd, Error> {
        fcntl_dupfd_cloexec(&self.socket, 3).map_err(|errno| Error::system("dup of a packet socket", errno))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl core::fmt::Debug for PacketSocket {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_tuple("PacketSocket").field(&self.socket).finish()
    }
}

fn set_option<T>(
    socket: &OwnedFd,
    level: c_int,
    option: c_int,
    value: &T,
    operation: &'static str,
) -> Result<(), Error> {
    // SAFETY: `value` is alive, and of the type that the kernel reads for this option. Not libc's function, as in `xdp::socket`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            socket.as_raw_fd(),
            level,
            option,
            core::ptr::from_ref(value),
            size_of::<T>(),
        )
    };
    outcome(result, operation)
}

/// To one interface, for sending only (packet(7): protocol 0).
fn bind(socket: &OwnedFd, interface: u32) -> Result<(), Error> {
    // SAFETY: zeros are a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = interface as c_int;
    let length = size_of::<libc::sockaddr_ll>();
    // SAFETY: the address is alive and as long as stated; the kernel only reads it.
    let result = unsafe { libc::syscall(libc::SYS_bind, socket.as_raw_fd(), &raw const address, length) };
    outcome(result, "binding a packet socket")
}

fn outcome(result: i64, operation: &'static str) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
    Err(match errno {
        Errno::PERM => Error::NoPrivilege { operation, capability: "CAP_NET_ADMIN" },
        errno => Error::system(operation, errno),
    })
}
