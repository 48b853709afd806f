//! Control messages of datagrams (cmsg(3)): what is told of one that was read, and where one that is sent is to come from.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{c_int, cmsghdr, in_pktinfo, in6_pktinfo, msghdr};

use crate::calls::datagram::{About, ControlMessages, Datagram};
use crate::memory::is_plausible;
use crate::options::wants;
use crate::process::Origin;
use crate::stack::Trouble;

/// The length of a control message's header, and the start of its data: both are as aligned as the next message's must be.
const HEADER: usize = size_of::<cmsghdr>();

/// Room for control messages, which is filled as the kernel fills it (put_cmsg() in net/core/scm.c).
struct Room {
    at: *mut u8,
    left: usize,
    used: usize,
    truncated: bool,
}

impl Room {
    fn of(message: &msghdr) -> Self {
        let length = message.msg_controllen;
        let there = !message.msg_control.is_null() && is_plausible(message.msg_control, length);
        Self {
            at: message.msg_control.cast(),
            left: if there { length } else { 0 },
            used: 0,
            truncated: false,
        }
    }

    /// The message says how much is there. Returns its flag if that is not all.
    fn end(self, message: &mut msghdr) -> c_int {
        message.msg_controllen = self.used as _;
        if self.truncated { libc::MSG_CTRUNC } else { 0 }
    }

    /// What does not fit is cut, or left out.
    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        if self.left < HEADER {
            self.truncated = true;
            return;
        }
        let whole = HEADER + data.len();
        let length = whole.min(self.left);
        self.truncated |= length < whole;
        let header = cmsghdr { cmsg_len: length as _, cmsg_level: level, cmsg_type: kind };
        let step = (HEADER + data.len().next_multiple_of(size_of::<usize>())).min(self.left);
        // SAFETY: the caller of whoever has made it lends `left` bytes there, and neither `length` nor `step` is more.
        unsafe {
            self.at.cast::<cmsghdr>().write_unaligned(header);
            core::ptr::copy_nonoverlapping(data.as_ptr(), self.at.add(HEADER), length - HEADER);
            self.at = self.at.add(step);
        }
        self.left -= step;
        self.used += step;
    }
}

/// Tells of a datagram what its socket wants to be told, in the kernel's order: udp_recvmsg() in net/ipv4/udp.c and
/// ip_cmsg_recv_offset(); udpv6_recvmsg() in net/ipv6/udp.c, ip6_datagram_recv_common_ctl() and ip6_datagram_recv_specific_ctl().
/// Of one that did not arrive the error comes last: ip_recv_error(), ipv6_recv_error(). Returns the message's flags: MSG_TRUNC;
/// MSG_CTRUNC if there was not enough room; MSG_ERRQUEUE.
///
/// # Safety
/// As for recvmsg(2).
pub(super) unsafe fn put_about(message: &mut msghdr, datagram: &Datagram) -> c_int {
    let flags = if datagram.truncated { libc::MSG_TRUNC } else { 0 };
    let Some(about) = &datagram.about else {
        message.msg_controllen = 0;
        return flags;
    };
    let trouble = datagram.trouble.as_ref();
    let mut room = Room::of(message);
    let wanted = |what: u16| about.wants & what != 0;
    put_time(&mut room, about);
    if let Some(length) = about.segment_len {
        // udp_cmsg_recv() in include/linux/udp.h.
        room.put(libc::SOL_UDP, libc::UDP_GRO, &c_int::from(length).to_ne_bytes());
    }
    let v4 = match about.destination {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    };
    if about.v6 && wanted(wants::PACKET_INFO_6) {
        let address = match about.destination {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        // `struct in6_pktinfo`.
        let mut data = [0; 20];
        data[..16].copy_from_slice(&address.octets());
        data[16..].copy_from_slice(&about.interface.to_ne_bytes());
        room.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
    }
    if let Some(address) = v4 {
        if wanted(wants::PACKET_INFO) {
            // `struct in_pktinfo`: the interface, our address there, the one that it was sent to.
            let mut data = [0; 12];
            data[..4].copy_from_slice(&about.interface.to_ne_bytes());
            // Nobody has looked it up for an error.
            if trouble.is_none() {
                data[4..8].copy_from_slice(&address.octets());
            }
            data[8..].copy_from_slice(&address.octets());
            room.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
        }
        if wanted(wants::HOPS) {
            room.put(libc::IPPROTO_IP, libc::IP_TTL, &c_int::from(about.hop_limit).to_ne_bytes());
        }
        if wanted(wants::CLASS) {
            room.put(libc::IPPROTO_IP, libc::IP_TOS, &[about.traffic_class]);
        }
    } else {
        if wanted(wants::HOPS_6) {
            room.put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &c_int::from(about.hop_limit).to_ne_bytes());
        }
        if wanted(wants::CLASS_6) {
            room.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &c_int::from(about.traffic_class).to_ne_bytes());
        }
    }
    if let Some(trouble) = trouble {
        put_error(&mut room, about, trouble);
    }
    let cut = room.end(message);
    let queue = if trouble.is_some() { libc::MSG_ERRQUEUE } else { 0 };
    flags | cut | queue
}

/// Tells of a connection how much is left to read, if it wants to be told (tcp_recvmsg() in net/ipv4/tcp.c). Returns the message's flags.
///
/// # Safety
/// As for recvmsg(2).
pub(super) unsafe fn put_unread(message: &mut msghdr, unread: Option<c_int>) -> c_int {
    // TCP_CM_INQ, which libc does not have (include/uapi/linux/tcp.h).
    const UNREAD: c_int = 36;
    let mut room = Room::of(message);
    if let Some(unread) = unread {
        room.put(libc::IPPROTO_TCP, UNREAD, &unread.to_ne_bytes());
    }
    room.end(message)
}

/// `struct sock_extended_err`, and behind it who says so, as the socket's family has it.
fn put_error(room: &mut Room, about: &About, trouble: &Trouble) {
    const ORIGIN_ICMP: u8 = 2;
    const ORIGIN_ICMP6: u8 = 3;
    let mut data = [0; 44];
    data[..4].copy_from_slice(&trouble.error.raw_os_error().to_ne_bytes());
    data[4] = if trouble.offender.is_ipv4() { ORIGIN_ICMP } else { ORIGIN_ICMP6 };
    (data[5], data[6]) = (trouble.kind, trouble.code);
    data[8..12].copy_from_slice(&trouble.info.to_ne_bytes());
    let family = if about.v6 { libc::AF_INET6 } else { libc::AF_INET } as u16;
    data[16..18].copy_from_slice(&family.to_ne_bytes());
    match trouble.offender {
        IpAddr::V4(address) if !about.v6 => {
            data[20..24].copy_from_slice(&address.octets());
            room.put(libc::IPPROTO_IP, libc::IP_RECVERR, &data[..32]);
        }
        address => {
            let octets = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            data[24..40].copy_from_slice(&octets);
            room.put(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &data);
        }
    }
}

/// When it came: `struct timeval` or `struct timespec`, which are both two words, under the name that it was asked for by.
fn put_time(room: &mut Room, about: &About) {
    let Some((kind, per_second)) = crate::options::time_told(about.wants) else { return };
    let time = crate::kernel::time_before(about.age);
    let mut data = [0; 16];
    data[..8].copy_from_slice(&(time.as_secs() as i64).to_ne_bytes());
    let fraction = i64::from(time.subsec_nanos() / (1_000_000_000 / per_second));
    data[8..].copy_from_slice(&fraction.to_ne_bytes());
    room.put(libc::SOL_SOCKET, kind, &data);
}

/// Where a message wants to be sent from (IP_PKTINFO, IPV6_PKTINFO), with which traffic class (IP_TOS, IPV6_TCLASS), and in what
/// pieces (UDP_SEGMENT). `None`: it wants something else too, or is not well formed: the kernel does it.
///
/// # Safety
/// As for sendmsg(2).
pub(super) unsafe fn wishes(message: &msghdr) -> Option<ControlMessages> {
    let mut wishes = ControlMessages::default();
    if message.msg_controllen == 0 {
        return Some(wishes);
    }
    if message.msg_control.is_null() || !is_plausible(message.msg_control, message.msg_controllen) {
        return None;
    }
    let end = message.msg_control.addr() + message.msg_controllen;
    // SAFETY: the program lends `msg_controllen` bytes of control messages; the macros stay within them.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: as above; a header that is not aligned is read all the same.
        let control = unsafe { header.read_unaligned() };
        let length = control.cmsg_len;
        if length < HEADER || length > end - header.addr() {
            return None;
        }
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(header) };
        let origin = match (control.cmsg_level, control.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if length == HEADER + size_of::<in_pktinfo>() => {
                // SAFETY: the message is long enough.
                let info = unsafe { data.cast::<in_pktinfo>().read_unaligned() };
                let address = Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr));
                Some(Origin { address: address.into(), interface: info.ipi_ifindex as u32 })
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if length >= HEADER + size_of::<in6_pktinfo>() => {
                // SAFETY: as above.
                let info = unsafe { data.cast::<in6_pktinfo>().read_unaligned() };
                let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                let address = IpAddr::V6(address).to_canonical();
                Some(Origin { address, interface: info.ipi6_ifindex as u32 })
            }
            (libc::SOL_UDP, libc::UDP_SEGMENT) if length == HEADER + size_of::<u16>() => {
                // SAFETY: as above.
                wishes.segment_len = Some(unsafe { data.cast::<u16>().read_unaligned() });
                None
            }
            // ip_cmsg_send() takes a number or a byte, ip6_datagram_send_ctl() a number.
            (libc::IPPROTO_IP, libc::IP_TOS) if length == HEADER + size_of::<u8>() => {
                // SAFETY: as above.
                wishes.classes[0] = Some(unsafe { data.read() });
                None
            }
            (level @ libc::IPPROTO_IP, libc::IP_TOS) | (level @ libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
                if length == HEADER + size_of::<c_int>() =>
            {
                // SAFETY: as above.
                let class = unsafe { data.cast::<c_int>().read_unaligned() };
                wishes.classes[usize::from(level == libc::IPPROTO_IPV6)] = Some(u8::try_from(class).ok()?);
                None
            }
            _ => return None,
        };
        wishes.from = origin.or(wishes.from);
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    Some(wishes)
}
