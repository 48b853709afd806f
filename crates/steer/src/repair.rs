//! Makes an established connection out of a TCP socket of the kernel that is in no connection: TCP_REPAIR, in
//! net/ipv4/tcp.c and tcp_output.c of Linux. Needs CAP_NET_ADMIN, and CAP_NET_RAW where the peer has closed.
//!
//! While a socket is being repaired it sends no data. It is found by frames as soon as it has both its ends, so whoever
//! steers its frames elsewhere lets them through between [`Repair::restore`] and [`Repair::finish`].

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use overfly_link::broker::connection::{Connection, flags};
use overfly_wire::{ipv4, ipv6, tcp};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, bind, connect, connect_unspec, getsockname,
    ipproto, send, sendto, shutdown, socket_with, sockopt,
};

use crate::error::{Error, last_error};

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
const STATE_CLOSE: u8 = 7;
const STATE_CLOSING: u8 = 11;

/// Room for queues beside what is in them, in bytes; and the most that is tried.
const ROOM: usize = 256 * 1024;
const ROOM_MAX: usize = 512 << 20;

/// How long a segment of the peer's may take to be heard, and after how long it is said again, in ms.
const HEARING_MS: u32 = 1000;
const REPEAT_MS: u32 = 20;

/// Makes a connection within the host out of its two ends, or of one of them if the other is no more: for each, a socket that is
/// in no connection and the file that says what it is to be. Neither says anything before both are there. Without any descriptors
/// it is only looked whether this process may do that.
pub(crate) fn pair(descriptors: &[OwnedFd]) -> Result<(), Error> {
    let not_moved = |errno| Error::NotMoved { errno };
    let read =
        |file| Connection::from_file(file).map_err(|errno| Error::system("reading the connection", errno));
    let restore = |socket, (connection, bytes)| Repair::restore(socket, connection, bytes, 0);
    match descriptors {
        [] => probe().map_err(not_moved),
        [socket, file] => {
            let (own, bytes) = read(file)?;
            let end = restore(socket.as_fd(), (&own, &bytes)).map_err(not_moved)?;
            end.finish(&bytes).map_err(not_moved)
        }
        [socket, file, peers_socket, peers_file] => {
            let ((own, bytes), (peers, peers_bytes)) = (read(file)?, read(peers_file)?);
            if (own.local(), own.remote()) != (peers.remote(), peers.local()) {
                return Err(Error::Options("the ends of two connections".to_owned()));
            }
            let end = restore(socket.as_fd(), (&own, &bytes)).map_err(not_moved)?;
            let peers_end = restore(peers_socket.as_fd(), (&peers, &peers_bytes)).map_err(not_moved)?;
            end.finish(&bytes).map_err(not_moved)?;
            peers_end.finish(&peers_bytes).map_err(|errno| {
                let _ = connect_unspec(socket);
                not_moved(errno)
            })
        }
        _ => Err(Error::Options("each end of a connection is a socket and a file".to_owned())),
    }
}

/// Whether this process may repair connections here.
fn probe() -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set(socket.as_fd(), libc::TCP_REPAIR, REPAIR_ON)
}

/// A socket on its way to become a connection. Dropped before [`Repair::finish`], it is in none, as before.
pub(crate) struct Repair<'a> {
    socket: BorrowedFd<'a>,
    connection: &'a Connection,
    /// The ends, as the socket's family has them.
    local: SocketAddr,
    remote: SocketAddr,
    interface: u32,
    finished: bool,
}

impl<'a> Repair<'a> {
    /// Gives the socket everything but what was not sent yet. `interface` is the index of the link that link-local
    /// addresses mean.
    pub(crate) fn restore(
        socket: BorrowedFd<'a>,
        connection: &'a Connection,
        bytes: &[u8],
        interface: u32,
    ) -> Result<Repair<'a>, Errno> {
        let v6 = match sockopt::socket_domain(socket)? {
            AddressFamily::INET => false,
            AddressFamily::INET6 => true,
            _ => return Err(Errno::AFNOSUPPORT),
        };
        if sockopt::socket_protocol(socket)? != Some(ipproto::TCP) || state(socket)? != STATE_CLOSE {
            return Err(Errno::INVAL);
        }
        set(socket, libc::TCP_REPAIR, REPAIR_ON)?;
        let repair = Repair {
            socket,
            connection,
            local: presented(connection.local(), v6, interface),
            remote: presented(connection.remote(), v6, interface),
            interface,
            finished: false,
        };
        let (unread, rest) = bytes.split_at(connection.unread as usize);
        let sent = &rest[..connection.sent as usize];
        repair.number(unread.len())?;
        repair.connect(v6)?;
        repair.agree()?;
        repair.fill(unread, sent)?;
        Ok(repair)
    }

    fn number(&self, unread: usize) -> Result<(), Errno> {
        let first_unread = self.connection.receive_next.wrapping_sub(unread as u32);
        for (queue, sequence) in [(SEND_QUEUE, self.connection.send_una), (RECEIVE_QUEUE, first_unread)] {
            set(self.socket, libc::TCP_REPAIR_QUEUE, queue)?;
            set(self.socket, libc::TCP_QUEUE_SEQ, sequence as i32)?;
        }
        Ok(())
    }

    fn connect(&self, v6: bool) -> Result<(), Errno> {
        let bound = SocketAddr::try_from(getsockname(self.socket)?)?;
        if bound.port() == 0 {
            if v6 && self.connection.local().is_ipv4() {
                sockopt::set_ipv6_v6only(self.socket, false)?;
            }
            if self.connection.is(flags::PASSIVE) {
                // As a listener's other sockets, whether or not that was asked for: who listens again must not be hindered.
                sockopt::set_socket_reuseport(self.socket, true)?;
            }
            bind(self.socket, &self.local)?;
        }
        connect(self.socket, &self.remote)?;
        let bound = SocketAddr::try_from(getsockname(self.socket)?)?;
        // A socket that was bound to a port alone got the address that routes say now.
        if (bound.ip(), bound.port()) == (self.local.ip(), self.local.port()) {
            Ok(())
        } else {
            Err(Errno::ADDRNOTAVAIL)
        }
    }

    /// What the handshake settled.
    fn agree(&self) -> Result<(), Errno> {
        let Connection { mss, send_shift, receive_shift, timestamp, .. } = *self.connection;
        let mut options = vec![
            [OPTION_MSS, u32::from(mss)],
            [OPTION_WINDOW, u32::from(send_shift) | u32::from(receive_shift) << 16],
        ];
        if self.connection.is(flags::SACK) {
            options.push([OPTION_SACK_PERMITTED, 0]);
        }
        if self.connection.is(flags::TIMESTAMPS) {
            options.push([OPTION_TIMESTAMP, 0]);
        }
        set_bytes(self.socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, options.as_slice())?;
        // Never earlier than before; the lowest bit would mean microseconds.
        set(self.socket, libc::TCP_TIMESTAMP, (timestamp.wrapping_add(2) & !1) as i32)
    }

    fn fill(&self, unread: &[u8], sent: &[u8]) -> Result<(), Errno> {
        let Connection {
            send_window, send_window_max, window_sequence, receive_next, receive_window, ..
        } = *self.connection;
        let unsent = self.connection.unsent as usize;
        set(self.socket, libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE)?;
        self.put(libc::SO_RCVBUFFORCE, unread, unread.len() + receive_window as usize)?;
        // struct tcp_repair_window
        let windows =
            [window_sequence, send_window, send_window_max.max(send_window), receive_window, receive_next];
        set_bytes(self.socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &windows)?;
        set(self.socket, libc::TCP_REPAIR_QUEUE, SEND_QUEUE)?;
        self.put(libc::SO_SNDBUFFORCE, sent, sent.len() + unsent)?;
        if self.connection.is(flags::FIN_SENT) || self.connection.is(flags::FIN_ACKNOWLEDGED) {
            // As sent as what is in the queue before it.
            shutdown(self.socket, Shutdown::Write)?;
        }
        Ok(())
    }

    /// Puts bytes into the queue that is being repaired, or, when none is, sends them. The queue's buffer gets room for
    /// `most`.
    fn put(&self, buffer: i32, mut bytes: &[u8], most: usize) -> Result<(), Errno> {
        let mut room = most + ROOM;
        set_bytes(self.socket, libc::SOL_SOCKET, buffer, &[room as i32])?;
        while !bytes.is_empty() {
            match send(self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(taken) => bytes = &bytes[taken..],
                Err(Errno::INTR) => {}
                // What the kernel counts beside the bytes depends on how they were sent.
                Err(Errno::AGAIN | Errno::NOMEM) if room < ROOM_MAX => {
                    room *= 2;
                    set_bytes(self.socket, libc::SOL_SOCKET, buffer, &[room as i32])?;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The connection's frames reach the kernel from now on: it goes on.
    pub(crate) fn finish(mut self, bytes: &[u8]) -> Result<(), Errno> {
        let received_fin = self.connection.is(flags::FIN_RECEIVED);
        if received_fin || self.connection.is(flags::FIN_ACKNOWLEDGED) {
            self.hear_from_peer(received_fin)?;
        }
        set(self.socket, libc::TCP_REPAIR, REPAIR_OFF)?;
        let unsent = &bytes[bytes.len() - self.connection.unsent as usize..];
        self.put(libc::SO_SNDBUFFORCE, unsent, self.connection.sent as usize + unsent.len())?;
        if self.connection.is(flags::FIN_WANTED) {
            shutdown(self.socket, Shutdown::Write)?;
        }
        if self.connection.is(flags::PASSIVE) {
            sockopt::set_socket_reuseaddr(self.socket, true)?;
        }
        // Both buffers follow the connection again (tcp_rcv_space_adjust(), tcp_sndbuf_expand()).
        set_bytes(self.socket, libc::SOL_SOCKET, SO_BUF_LOCK, &[0_i32])?;
        self.finished = true;
        Ok(())
    }

    /// What the peer said last, said again to the kernel: its FIN, or that it has ours. There is no repairing those.
    fn hear_from_peer(&self, fin: bool) -> Result<(), Errno> {
        let Connection { send_una, sent, receive_next, send_window, send_shift, .. } = *self.connection;
        let fin_acknowledged = self.connection.is(flags::FIN_ACKNOWLEDGED);
        let header = tcp::Header {
            source_port: self.remote.port(),
            destination_port: self.local.port(),
            sequence: receive_next,
            acknowledgment: send_una.wrapping_add(if fin_acknowledged { sent + 1 } else { 0 }),
            flags: tcp::Flags::ACK | if fin { tcp::Flags::FIN } else { tcp::Flags::NONE },
            window: (send_window >> send_shift).min(0xffff) as u16,
            options: tcp::Options::NONE,
        };
        // The peer's kernel may say it by itself: the peer's end, repaired before, has an acknowledgment to give after a while.
        let is_heard = |state| {
            let knows_fin = !matches!(state, STATE_ESTABLISHED | STATE_FIN_WAIT1 | STATE_FIN_WAIT2);
            let knows_acknowledgment = !matches!(state, STATE_FIN_WAIT1 | STATE_CLOSING);
            (knows_fin || !fin) && (knows_acknowledgment || !fin_acknowledged)
        };
        // As any segment it can be dropped on its way (net.core.netdev_max_backlog), or wait for a softirq that has its turn
        // late on a busy machine. One that comes twice is acknowledged twice.
        for attempt in 0..HEARING_MS {
            if attempt % REPEAT_MS == 0 {
                deliver(
                    &header,
                    self.connection.remote().ip(),
                    self.connection.local().ip(),
                    self.interface,
                )?;
            }
            if is_heard(state(self.socket)?) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Errno::PROTO)
    }
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // Without a RST, because it is being repaired (tcp_disconnect()).
            let _ = connect_unspec(self.socket);
            let _ = sockopt::socket_error(self.socket);
            let _ = set(self.socket, libc::TCP_REPAIR, REPAIR_OFF_SILENTLY);
        }
    }
}

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
                ttl: 64,
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
                hop_limit: 64,
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
fn state(socket: BorrowedFd<'_>) -> Result<u8, Errno> {
    let mut state = 0_u8;
    let mut length: libc::socklen_t = 1;
    // SAFETY: the kernel writes one byte at most.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(state) } else { Err(last_error()) }
}

/// A TCP option that is an `int`.
fn set(socket: BorrowedFd<'_>, name: i32, value: i32) -> Result<(), Errno> {
    set_bytes(socket, libc::IPPROTO_TCP, name, &[value])
}

/// setsockopt().
fn set_bytes<T: zerocopy::IntoBytes + zerocopy::Immutable>(
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

    /// One end has closed its side, and the other knows. Each end is repaired whenever it is, long after the other one perhaps,
    /// which has begun to speak by then.
    #[test]
    fn a_half_closed_connection_is_repaired_at_leisure() {
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
            let first = Repair::restore(sockets[0].as_fd(), &listener, &[], 0).unwrap();
            let second = Repair::restore(sockets[1].as_fd(), &closed, &[], 0).unwrap();
            first.finish(&[]).unwrap();
            // Its delayed acknowledgment of the FIN leaves meanwhile.
            std::thread::sleep(Duration::from_millis(pause_ms));
            second.finish(&[]).unwrap();
            let [mut open, mut closed] = sockets.map(TcpStream::from);
            open.write_all(b"to the end").unwrap();
            drop(open);
            let mut heard = String::new();
            closed.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "to the end");
        }
    }
}
