//! Makes an established connection out of a TCP socket of the kernel that is in no connection: TCP_REPAIR, in
//! net/ipv4/tcp.c and tcp_output.c of Linux. Needs CAP_NET_ADMIN, and CAP_NET_RAW where the peer has closed.
//!
//! While a socket is being repaired it sends no data. It is found by frames as soon as it has both its ends, so whoever
//! steers its frames elsewhere lets them through between [`Repair::restore`] and [`Repair::finish`].

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use overfly_broker::connection::{Connection, Parcel, flags};
use overfly_wire::{ipv4, ipv6, tcp};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, bind, connect, connect_unspec, getsockname,
    ipproto, send, sendto, shutdown, socket_with, sockopt,
};

use crate::error::last_error;

// include/uapi/linux/tcp.h
const REPAIR_OFF: i32 = 0;
const REPAIR_ON: i32 = 1;
/// Off, without a look at the peer's window.
const REPAIR_OFF_SILENTLY: i32 = -1;
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW: u32 = 3;
const OPTION_SACK_PERMITTED: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;
/// include/uapi/asm-generic/socket.h
const SO_BUF_LOCK: i32 = 72;
// include/net/tcp_states.h
const STATE_ESTABLISHED: u8 = 1;
const STATE_FIN_WAIT1: u8 = 4;
const STATE_FIN_WAIT2: u8 = 5;
pub(crate) const STATE_CLOSE: u8 = 7;
pub(crate) const STATE_LISTEN: u8 = 10;
const STATE_CLOSING: u8 = 11;

/// What TCP_MAXSEG takes (TCP_MIN_MSS and MAX_TCP_WINDOW in include/net/tcp.h).
const MSS_MIN: u16 = 88;
const MSS_MAX: u16 = 32_767;

/// Room for queues beside what is in them, in bytes; and the most that is tried.
const ROOM: usize = 256 * 1024;
const ROOM_MAX: usize = 512 << 20;
/// Bytes that are moved at a time.
const PIECE: usize = 64 * 1024;

/// How long a segment of the peer's may take to be heard, and after how long it is said again.
const HEARING: Duration = Duration::from_secs(1);
const REPEAT: Duration = Duration::from_millis(20);

/// Whether this process may repair connections here.
pub(crate) fn probe() -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set(socket.as_fd(), libc::TCP_REPAIR, REPAIR_ON)
}

/// With what right a socket that is not bound yet gets the connection's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// The client has the port, or the connection at it.
    Granted,
    /// The kernel decides as if the client bound it: no privileged port, nor one that another socket keeps from it.
    Own,
}

/// The most that a connection may have in its queues, in bytes: what the kernel's own may have at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    receive: usize,
    send: usize,
}

impl Room {
    /// What the kernel says: a socket's buffer grows by itself to the last number of `tcp_rmem`, or is set to twice `rmem_max`.
    pub(crate) fn of_kernel() -> Room {
        let number = |path: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/{path}")).ok()?;
            text.split_ascii_whitespace().last()?.parse::<usize>().ok()
        };
        let most = |by_itself, set| {
            let set = number(set).unwrap_or(212_992).saturating_mul(2);
            number(by_itself).unwrap_or(6 << 20).max(set).min(ROOM_MAX)
        };
        Room { receive: most("ipv4/tcp_rmem", "core/rmem_max"), send: most("ipv4/tcp_wmem", "core/wmem_max") }
    }

    /// Whether a connection's queues fit, into what the kernel or whoever set the socket's own buffers allows.
    fn fits(self, socket: BorrowedFd<'_>, connection: &Connection) -> Result<bool, Errno> {
        let receive = self.receive.max(sockopt::socket_recv_buffer_size(socket)?);
        let send = self.send.max(sockopt::socket_send_buffer_size(socket)?);
        let [unread, sent, unsent] =
            [connection.unread, connection.sent, connection.unsent].map(|bytes| bytes as usize);
        Ok(unread <= receive && sent + unsent <= send)
    }
}

/// A socket on its way to become a connection. Dropped before [`Repair::go_on`] says that it is one, it is in none, as before.
#[derive(Debug)]
pub(crate) struct Repair {
    socket: OwnedFd,
    parcel: Parcel<OwnedFd>,
    /// The ends, as the socket's family has them.
    local: SocketAddr,
    remote: SocketAddr,
    interface: u32,
    /// What the peer said last is heard until then, and said next at that time.
    hearing: Option<(Instant, Instant)>,
    finished: bool,
}

impl Repair {
    /// Gives the socket everything but what was not sent yet. `interface` is the index of the link that link-local
    /// addresses mean.
    pub(crate) fn restore(
        socket: OwnedFd,
        parcel: Parcel<OwnedFd>,
        interface: u32,
        room: Room,
        right: Right,
    ) -> Result<Repair, Errno> {
        let v6 = match sockopt::socket_domain(&socket)? {
            AddressFamily::INET => false,
            AddressFamily::INET6 => true,
            _ => return Err(Errno::AFNOSUPPORT),
        };
        if sockopt::socket_protocol(&socket)? != Some(ipproto::TCP) || state(socket.as_fd())? != STATE_CLOSE {
            return Err(Errno::INVAL);
        }
        if !room.fits(socket.as_fd(), &parcel.connection)? {
            return Err(Errno::MSGSIZE);
        }
        let local = presented(parcel.connection.local(), v6, interface);
        let remote = presented(parcel.connection.remote(), v6, interface);
        let mut repair = Repair { socket, parcel, local, remote, interface, hearing: None, finished: false };
        if right == Right::Own {
            if (1..unprivileged_ports()).contains(&local.port()) {
                repair.finished = true;
                return Err(Errno::ACCESS);
            }
            repair.take_port(v6)?;
        }
        set(repair.socket.as_fd(), libc::TCP_REPAIR, REPAIR_ON)?;
        repair.number()?;
        repair.take_port(v6)?;
        match repair.connect() {
            // What it was bound to was left to the kernel (`bind_beside()`), which would choose otherwise now: by number, then.
            Err(Errno::ADDRNOTAVAIL) if right == Right::Granted => {
                connect_unspec(&repair.socket).and_then(|()| sockopt::socket_error(&repair.socket))?.ok();
                repair.number().and_then(|()| repair.bind(v6)).and_then(|()| repair.connect())?;
            }
            connected => connected?,
        }
        repair.agree()?;
        repair.fill(room)?;
        Ok(repair)
    }

    /// What becomes the connection.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn connection(&self) -> &Connection {
        &self.parcel.connection
    }

    fn number(&self) -> Result<(), Errno> {
        let Connection { receive_next, send_una, unread, .. } = *self.connection();
        for (queue, sequence) in [(SEND_QUEUE, send_una), (RECEIVE_QUEUE, receive_next.wrapping_sub(unread))]
        {
            set(self.socket(), libc::TCP_REPAIR_QUEUE, queue)?;
            set(self.socket(), libc::TCP_QUEUE_SEQ, sequence as i32)?;
        }
        Ok(())
    }

    /// Binds the socket, if it is not bound yet. While it is being repaired the kernel lets it have any port.
    fn take_port(&self, v6: bool) -> Result<(), Errno> {
        if SocketAddr::try_from(getsockname(&self.socket)?)?.port() != 0 { Ok(()) } else { self.bind(v6) }
    }

    fn bind(&self, v6: bool) -> Result<(), Errno> {
        if v6 && self.connection().local().is_ipv4() {
            sockopt::set_ipv6_v6only(&self.socket, false)?;
        }
        if self.connection().is(flags::PASSIVE) {
            // As a listener's other sockets, whether or not that was asked for: who listens again must not be hindered.
            sockopt::set_socket_reuseport(&self.socket, true)?;
        }
        bind(&self.socket, &self.local)
    }

    fn connect(&mut self) -> Result<(), Errno> {
        // What a segment has is reckoned now, from this or else from 536 bytes, and not again before the path's MTU changes
        // (tcp_connect_init() and tcp_current_mss() in net/ipv4/tcp_output.c). What the program has set is set again later.
        let mss = self.connection().mss.clamp(MSS_MIN, MSS_MAX);
        set(self.socket(), libc::TCP_MAXSEG, mss.into())?;
        connect(&self.socket, &self.remote)?;
        set(self.socket(), libc::TCP_MAXSEG, 0)?;
        let bound = SocketAddr::try_from(getsockname(&self.socket)?)?;
        if self.local.port() == 0 {
            self.local.set_port(bound.port());
        }
        // A socket that was bound to a port alone got the address that routes say now.
        if (bound.ip(), bound.port()) == (self.local.ip(), self.local.port()) {
            Ok(())
        } else {
            Err(Errno::ADDRNOTAVAIL)
        }
    }

    /// What the handshake settled.
    fn agree(&self) -> Result<(), Errno> {
        let Connection { mss, send_shift, receive_shift, timestamp, .. } = *self.connection();
        let mut options = vec![
            [OPTION_MSS, u32::from(mss)],
            [OPTION_WINDOW, u32::from(send_shift) | u32::from(receive_shift) << 16],
        ];
        if self.connection().is(flags::SACK) {
            options.push([OPTION_SACK_PERMITTED, 0]);
        }
        if self.connection().is(flags::TIMESTAMPS) {
            options.push([OPTION_TIMESTAMP, 0]);
        }
        set_bytes(self.socket(), libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, options.as_slice())?;
        // Never earlier than before; the lowest bit would mean microseconds.
        set(self.socket(), libc::TCP_TIMESTAMP, (timestamp.wrapping_add(2) & !1) as i32)
    }

    fn fill(&self, room: Room) -> Result<(), Errno> {
        let [unread, sent, unsent] = self.queues();
        set(self.socket(), libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE)?;
        let window = (self.connection().receive_window as usize).min(room.receive);
        self.put(libc::SO_RCVBUFFORCE, 0, unread, unread + window)?;
        self.set_windows()?;
        set(self.socket(), libc::TCP_REPAIR_QUEUE, SEND_QUEUE)?;
        self.put(libc::SO_SNDBUFFORCE, unread, sent, sent + unsent)?;
        if self.connection().is(flags::FIN_SENT) || self.connection().is(flags::FIN_ACKNOWLEDGED) {
            // As sent as what is in the queue before it.
            shutdown(&self.socket, Shutdown::Write)?;
        }
        Ok(())
    }

    /// What each end has told the other that it takes.
    fn set_windows(&self) -> Result<(), Errno> {
        let Connection {
            send_window, send_window_max, window_sequence, receive_next, receive_window, ..
        } = *self.connection();
        // struct tcp_repair_window
        let windows =
            [window_sequence, send_window, send_window_max.max(send_window), receive_window, receive_next];
        set_bytes(self.socket(), libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &windows)
    }

    /// This end has told its window only before the probe. The peer's is what it has told since: it would not tell it again.
    fn take_window_back(&self) -> Result<(), Errno> {
        let Connection { receive_next, receive_window, .. } = *self.connection();
        let [sequence, send_window, send_window_max, _, _] =
            option::<u32, 5>(self.socket(), libc::TCP_REPAIR_WINDOW)?;
        let windows = [sequence, send_window, send_window_max, receive_window, receive_next];
        set_bytes(self.socket(), libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &windows)
    }

    /// How many bytes there are of each kind: unread, sent, unsent.
    fn queues(&self) -> [usize; 3] {
        let Connection { unread, sent, unsent, .. } = *self.connection();
        [unread, sent, unsent].map(|bytes| bytes as usize)
    }

    /// Puts the connection's bytes from `offset` on into the queue that is being repaired, or, when none is, sends them. The
    /// queue's buffer gets room for `most`.
    fn put(&self, buffer: i32, offset: usize, length: usize, most: usize) -> Result<(), Errno> {
        let mut room = most + ROOM;
        let room_max = (room * 4).min(ROOM_MAX);
        set_bytes(self.socket(), libc::SOL_SOCKET, buffer, &[room as i32])?;
        let mut piece = vec![0; PIECE.min(length)];
        let mut done = 0;
        while done < length {
            let piece_len = piece.len().min(length - done);
            self.parcel.read(offset + done, &mut piece[..piece_len])?;
            let mut bytes = &piece[..piece_len];
            while !bytes.is_empty() {
                match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Ok(taken) => bytes = &bytes[taken..],
                    Err(Errno::INTR) => {}
                    // What the kernel counts beside the bytes depends on how they were sent.
                    Err(Errno::AGAIN | Errno::NOMEM) if room < room_max => {
                        room *= 2;
                        set_bytes(self.socket(), libc::SOL_SOCKET, buffer, &[room as i32])?;
                    }
                    Err(errno) => return Err(errno),
                }
            }
            done += piece_len;
        }
        Ok(())
    }

    /// The connection's frames reach the kernel from now on: it goes on. False if that has to wait for what the peer said last
    /// to be heard: to be called again after [`overfly_broker::service::WAITING_PAUSE`].
    pub(crate) fn go_on(&mut self) -> Result<bool, Errno> {
        let [unread, sent, unsent] = self.queues();
        let received_fin = self.connection().is(flags::FIN_RECEIVED);
        if self.connection().is(flags::RESET) {
            return self.be_reset();
        }
        if (received_fin || self.connection().is(flags::FIN_ACKNOWLEDGED))
            && !self.hear_from_peer(received_fin)?
        {
            return Ok(false);
        }
        set(self.socket(), libc::TCP_REPAIR, REPAIR_OFF)?;
        if !received_fin && self.connection().receive_window < 2 * u32::from(self.connection().mss) {
            // The probe that the kernel has just sent tells a window that the peer does not take from a probe: one that waits for room
            // would not be told again.
            set(self.socket(), libc::TCP_REPAIR, REPAIR_ON)?;
            self.take_window_back()?;
            set(self.socket(), libc::TCP_REPAIR, REPAIR_OFF_SILENTLY)?;
        }
        self.put(libc::SO_SNDBUFFORCE, unread + sent, unsent, sent + unsent)?;
        if self.connection().is(flags::FIN_WANTED) {
            shutdown(&self.socket, Shutdown::Write)?;
        }
        if self.connection().is(flags::PASSIVE) {
            sockopt::set_socket_reuseaddr(&self.socket, true)?;
        }
        // Both buffers follow the connection again (tcp_rcv_space_adjust(), tcp_sndbuf_expand()).
        set_bytes(self.socket(), libc::SOL_SOCKET, SO_BUF_LOCK, &[0_i32])?;
        self.finished = true;
        Ok(true)
    }

    /// As [`Repair::go_on`], of one that is over. It says nothing to anybody.
    fn be_reset(&mut self) -> Result<bool, Errno> {
        if self.connection().is(flags::FIN_RECEIVED) && state(self.socket())? == STATE_ESTABLISHED {
            if !self.hear_from_peer(true)? {
                return Ok(false);
            }
            self.hearing = None;
        }
        if !self.hear(tcp::Flags::RST, |state| state == STATE_CLOSE)? {
            return Ok(false);
        }
        set(self.socket(), libc::TCP_REPAIR, REPAIR_OFF_SILENTLY)?;
        if self.connection().is(flags::PASSIVE) {
            sockopt::set_socket_reuseaddr(&self.socket, true)?;
        }
        set_bytes(self.socket(), libc::SOL_SOCKET, SO_BUF_LOCK, &[0_i32])?;
        self.finished = true;
        Ok(true)
    }

    /// Something at the other end of a connection within the host whose other end was closed and is no more: the kernel would answer
    /// the acknowledgment of its FIN with RST. It says nothing, now or when it is dropped.
    pub(crate) fn stand_in(&self, interface: u32, room: Room) -> Option<Repair> {
        let theirs = self.connection();
        if !theirs.is(flags::FIN_RECEIVED) || theirs.is(flags::RESET) {
            return None;
        }
        let receive_next = theirs.send_una.wrapping_add(theirs.sent);
        let connection = Connection {
            mss: theirs.mss,
            send_una: theirs.receive_next.wrapping_add(1),
            receive_next,
            window_sequence: receive_next,
            send_window: theirs.receive_window,
            receive_window: theirs.send_window,
            ..Connection::between(theirs.remote(), theirs.local())
        };
        let family = if theirs.local().is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
        let parcel = Parcel::open(connection.to_file(|_| ()).ok()?).ok()?;
        Repair::restore(socket, parcel, interface, room, Right::Granted).ok()
    }

    /// The peer's FIN was heard, and is acknowledged now: one that comes twice is at once.
    pub(crate) fn acknowledge(&self) {
        let _ = self.speak_for_peer(tcp::Flags::FIN);
    }

    /// An acknowledgment with these flags besides.
    fn speak_for_peer(&self, flags: tcp::Flags) -> Result<(), Errno> {
        let connection = self.connection();
        let &Connection { send_una, sent, receive_next, send_window, send_shift, .. } = connection;
        let fin_acknowledged = connection.is(flags::FIN_ACKNOWLEDGED);
        let after_fin = connection.is(flags::FIN_RECEIVED) && flags == tcp::Flags::RST;
        let header = tcp::Header {
            source_port: self.remote.port(),
            destination_port: self.local.port(),
            sequence: receive_next.wrapping_add(u32::from(after_fin)),
            acknowledgment: send_una.wrapping_add(if fin_acknowledged { sent.wrapping_add(1) } else { 0 }),
            flags: tcp::Flags::ACK | flags,
            window: send_window.checked_shr(u32::from(send_shift)).unwrap_or(0).min(0xffff) as u16,
            options: tcp::Options::NONE,
        };
        deliver(&header, connection.remote().ip(), connection.local().ip(), self.interface)
    }

    /// It is in no connection again, although it went on.
    pub(crate) fn undo(&self) {
        let _ = connect_unspec(&self.socket);
    }

    /// What the peer said last, said again to the kernel: its FIN, or that it has ours. There is no repairing those. True once it
    /// is heard.
    fn hear_from_peer(&mut self, fin: bool) -> Result<bool, Errno> {
        let fin_acknowledged = self.connection().is(flags::FIN_ACKNOWLEDGED);
        // The peer's kernel may say it by itself: the peer's end, repaired before, has an acknowledgment to give after a while.
        self.hear(if fin { tcp::Flags::FIN } else { tcp::Flags::NONE }, |state| {
            let knows_fin = !matches!(state, STATE_ESTABLISHED | STATE_FIN_WAIT1 | STATE_FIN_WAIT2);
            let knows_acknowledgment = !matches!(state, STATE_FIN_WAIT1 | STATE_CLOSING);
            (knows_fin || !fin) && (knows_acknowledgment || !fin_acknowledged)
        })
    }

    /// A segment of the peer's, until the socket's state says that it is heard. As any segment it can be dropped on its way
    /// (net.core.netdev_max_backlog), or wait for a softirq that has its turn late on a busy machine. One that comes twice is
    /// acknowledged twice.
    fn hear(&mut self, flags: tcp::Flags, is_heard: impl Fn(u8) -> bool) -> Result<bool, Errno> {
        let now = Instant::now();
        let (until, next) = *self.hearing.get_or_insert((now + HEARING, now));
        if next <= now {
            self.speak_for_peer(flags)?;
            self.hearing = Some((until, now + REPEAT));
        }
        if is_heard(state(self.socket())?) {
            return Ok(true);
        }
        if until <= now { Err(Errno::PROTO) } else { Ok(false) }
    }
}

impl Drop for Repair {
    fn drop(&mut self) {
        if !self.finished {
            // Without a RST, because it is being repaired (tcp_disconnect()).
            let _ = connect_unspec(&self.socket);
            let _ = sockopt::socket_error(&self.socket);
            let _ = set(self.socket(), libc::TCP_REPAIR, REPAIR_OFF_SILENTLY);
        }
    }
}

/// The first port of this namespace that everybody may bind.
fn unprivileged_ports() -> u16 {
    const FIRST: u16 = 1024; // PROT_SOCK in include/net/sock.h
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(FIRST)
}

/// As many as a program may insist on (IP_MINTTL).
const HOPS: u8 = 255;

/// Gives the kernel a segment of the peer's as if it had arrived: a packet to one of its own addresses comes back over
/// loopback, whoever it says that it is from.
fn deliver(header: &tcp::Header, from: IpAddr, to: IpAddr, interface: u32) -> Result<(), Errno> {
    let length = header.header_len();
    let (packet, family) = match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut packet = vec![0; ipv4::HEADER_LEN + length];
            ipv4::Header {
                source,
                destination,
                protocol: ipv4::PROTOCOL_TCP,
                ttl: HOPS,
                tos: 0,
                identification: 0,
                dont_fragment: true,
                payload_len: length as u16,
            }
            .emit(&mut packet);
            header.emit(&mut packet[ipv4::HEADER_LEN..]);
            tcp::write_checksum(&mut packet[ipv4::HEADER_LEN..], source, destination);
            (packet, AddressFamily::INET)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut packet = vec![0; ipv6::HEADER_LEN + length];
            ipv6::Header {
                source,
                destination,
                protocol: ipv4::PROTOCOL_TCP,
                hop_limit: HOPS,
                traffic_class: 0,
                flow_label: 0,
                payload_len: length as u16,
            }
            .emit(&mut packet);
            header.emit(&mut packet[ipv6::HEADER_LEN..]);
            tcp::write_checksum(&mut packet[ipv6::HEADER_LEN..], source, destination);
            (packet, AddressFamily::INET6)
        }
        _ => return Err(Errno::AFNOSUPPORT),
    };
    let raw = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
    sendto(&raw, &packet, SendFlags::empty(), &at(to, 0, interface)).map(drop)
}

/// An address; a link-local one with its link.
fn at(address: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            SocketAddrV6::new(address, port, 0, interface).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

/// An address as a socket of one family or the other has it.
fn presented(address: SocketAddr, v6: bool, interface: u32) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        ip => at(ip, address.port(), interface),
    }
}

/// Where the socket stands: the first byte of `struct tcp_info`.
pub(crate) fn state(socket: BorrowedFd<'_>) -> Result<u8, Errno> {
    info::<1>(socket).map(|[state]| state)
}

/// So many bytes of `struct tcp_info`.
fn info<const LEN: usize>(socket: BorrowedFd<'_>) -> Result<[u8; LEN], Errno> {
    option(socket, libc::TCP_INFO)
}

/// getsockopt() of a TCP option.
fn option<T: zerocopy::FromBytes + Copy, const LEN: usize>(
    socket: BorrowedFd<'_>,
    name: i32,
) -> Result<[T; LEN], Errno> {
    option_at(socket, libc::IPPROTO_TCP, name)
}

/// As [`option`], at any level.
pub(crate) fn option_at<T: zerocopy::FromBytes + Copy, const LEN: usize>(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
) -> Result<[T; LEN], Errno> {
    let mut value = [T::new_zeroed(); LEN];
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes as many bytes as there are at most.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(last_error()) }
}

/// A TCP option that is an `int`.
fn set(socket: BorrowedFd<'_>, name: i32, value: i32) -> Result<(), Errno> {
    set_bytes(socket, libc::IPPROTO_TCP, name, &[value])
}

/// setsockopt().
pub(crate) fn set_bytes<T: zerocopy::IntoBytes + zerocopy::Immutable>(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &[T],
) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many bytes as the slice has.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            size_of_val(value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    fn somewhere() -> SocketAddr {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
    }

    fn socket() -> OwnedFd {
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// One that is over has what was not read, the error, and its end.
    #[test]
    fn a_connection_that_is_over_is_reset() {
        for (fin, error) in [(0, Errno::CONNRESET), (flags::FIN_RECEIVED, Errno::PIPE)] {
            let local = somewhere();
            let connection = Connection {
                mss: 1460,
                receive_next: 5,
                send_window: 60_000,
                receive_window: 60_000,
                unread: 5,
                flags: flags::RESET | flags::PASSIVE | fin,
                ..Connection::between(local, SocketAddr::new(local.ip(), 1))
            };
            let socket = socket();
            let parcel = Parcel::open(connection.to_file(|room| room.copy_from_slice(b"bytes")).unwrap());
            let same = socket.try_clone().unwrap();
            let mut repair =
                Repair::restore(same, parcel.unwrap(), 0, Room::of_kernel(), Right::Granted).unwrap();
            while !repair.go_on().unwrap() {
                std::thread::sleep(overfly_broker::service::WAITING_PAUSE);
            }
            drop(repair);
            let mut stream = TcpStream::from(socket);
            let mut heard = [0; 100];
            assert_eq!(stream.read(&mut heard).unwrap(), 5);
            let pending = stream.take_error().unwrap().and_then(|error| error.raw_os_error());
            assert_eq!(pending, Some(error.raw_os_error()));
            assert_eq!(stream.read(&mut heard).unwrap(), 0);
            assert_eq!(stream.local_addr().unwrap(), local);
        }
    }

    /// tcp_connect_init() reckons it, from what TCP_MAXSEG says or else from TCP_MSS_DEFAULT, and TCP_REPAIR_OPTIONS does not.
    #[test]
    fn segments_are_as_long_as_they_were() {
        for (mss, long) in [(1460, 1448_u32), (1200, 1188), (32_753, 32_741), (40_000, 32_755)] {
            let local = somewhere();
            let connection = Connection {
                mss,
                send_window: 1 << 20,
                receive_window: 1 << 20,
                flags: flags::TIMESTAMPS,
                ..Connection::between(local, SocketAddr::new(local.ip(), 1))
            };
            let socket = socket();
            let parcel = Parcel::open(connection.to_file(|_| {}).unwrap()).unwrap();
            let same = socket.try_clone().unwrap();
            let mut repair = Repair::restore(same, parcel, 0, Room::of_kernel(), Right::Granted).unwrap();
            assert!(repair.go_on().unwrap());
            // tcpi_snd_mss
            let [.., a, b, c, d] = info::<20>(socket.as_fd()).unwrap();
            assert_eq!(u32::from_ne_bytes([a, b, c, d]), long);
            repair.undo();
        }
    }

    /// One end has closed its side, and the other knows. Each end is repaired whenever it is, long after the other one perhaps,
    /// which has begun to speak by then.
    #[test]
    fn a_half_closed_connection_is_repaired_at_idle() {
        for pause_ms in [0, 100] {
            let [a, b] = [(); 2].map(|()| somewhere());
            let end = |local, remote, send_una, receive_next, flags| Connection {
                mss: 1460,
                send_una,
                send_window: 60_000,
                send_window_max: 60_000,
                window_sequence: receive_next,
                receive_next,
                receive_window: 60_000,
                flags,
                ..Connection::between(local, remote)
            };
            let listener = end(a, b, 1000, 5000, flags::FIN_RECEIVED);
            let closed = end(b, a, 5000, 1000, flags::FIN_ACKNOWLEDGED);
            let sockets = [socket(), socket()];
            let restore = |socket: &OwnedFd, connection: &Connection| {
                let parcel = Parcel::open(connection.to_file(|_| {}).unwrap()).unwrap();
                let socket = socket.try_clone().unwrap();
                Repair::restore(socket, parcel, 0, Room::of_kernel(), Right::Granted).unwrap()
            };
            let finish = |mut end: Repair| {
                while !end.go_on().unwrap() {
                    std::thread::sleep(overfly_broker::service::WAITING_PAUSE);
                }
            };
            let first = restore(&sockets[0], &listener);
            let second = restore(&sockets[1], &closed);
            finish(first);
            // Its delayed acknowledgment of the FIN leaves meanwhile.
            std::thread::sleep(Duration::from_millis(pause_ms));
            finish(second);
            let [mut open, mut closed] = sockets.map(TcpStream::from);
            open.write_all(b"to the end").unwrap();
            drop(open);
            let mut heard = String::new();
            closed.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "to the end");
        }
    }
}
