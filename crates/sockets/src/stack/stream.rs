//! Connections as streams of bytes: they are opened, read, written and shut.

use core::mem::MaybeUninit;
use core::net::SocketAddr;
use core::time::Duration;

use overfly_engine::{Error, Instant};
use overfly_link::Link;
use overfly_wire::MacAddr;
use rustix::io::Errno;

use super::{Stack, UNKNOWN};
use crate::interest::{NONE, bits};
use crate::socket::{Settings, Side, SocketId, SocketState};

impl<T: Link> Stack<T> {
    /// Begins an active open from a socket that is neither listening nor connected.
    #[expect(clippy::too_many_arguments, reason = "both ends, the way between them, and what they agree on")]
    pub fn connect(
        &mut self,
        now: Instant,
        side: Side,
        id: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
        next_hop: MacAddr,
        settings: Settings,
    ) -> Result<(), Error> {
        self.now = now;
        let Some(interface) = &mut self.interfaces[side.index()] else { return Err(Error::NoNeighbor) };
        if next_hop != UNKNOWN {
            interface.engine.set_neighbor(remote.ip(), next_hop);
        }
        let flow = interface.engine.connect(now, local, remote)?;
        if settings.max_segment != 0 {
            // Before the SYN, which says so.
            interface.engine.set_max_segment(flow, settings.max_segment);
        }
        self.sockets.bind_flow(side, flow, id);
        let socket = self.sockets.at_mut(id);
        socket.begin_anew();
        // Also the one that ended the connection before (tcp_connect_init() in Linux).
        socket.take_error();
        socket.state = SocketState::Connecting;
        socket.forks = self.forks;
        (socket.passive, socket.at_any, socket.bound_since) = (false, false, false);
        socket.local = local;
        socket.remote = remote;
        self.settle(id, &Settings::DEFAULT, settings);
        // The socket is ours from now on, and so is what watches it.
        let mut index = self.sockets.at(id).interests;
        while index != NONE {
            self.sockets.interests.take_over(index);
            index = self.sockets.interests.at(index).next;
        }
        self.connects += 1;
        self.connects_within_host += u64::from(side == Side::Loopback);
        Ok(())
    }

    /// The SYN of a connection just begun may carry data (TCP Fast Open): as much of `source` as the socket has room for is
    /// written if the server is known to take it, else nothing, and the server is asked for its cookie. Returns the bytes.
    pub fn open_with_data<'b>(&mut self, id: SocketId, source: impl Iterator<Item = &'b [u8]>) -> usize {
        let socket = self.sockets.at(id);
        let (local, remote) = (socket.local, socket.remote);
        let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) else {
            return 0;
        };
        let now = interface.engine.may_open_fast(self.now, local.ip(), remote);
        interface.engine.set_fast_open(flow);
        if !now {
            return 0;
        }
        let socket = self.sockets.at_mut(id);
        let mut written = 0;
        for piece in source {
            let length = piece.len().min(socket.space());
            let taken = socket.send.push_some(&piece[..length]);
            written += taken;
            if taken < length {
                break;
            }
        }
        self.promise(id, written);
        written
    }

    /// Reads into `target`. `peek` leaves the data in the queue. `Ok(0)` is the end of the stream.
    pub fn read<'b>(
        &mut self,
        id: SocketId,
        target: impl Iterator<Item = &'b mut [MaybeUninit<u8>]>,
        peek: bool,
    ) -> Result<usize, Errno> {
        let socket = self.sockets.at_mut(id);
        if socket.receive.is_empty() {
            return match socket.state {
                // After the end of the stream comes nothing, not even an error (SOCK_DONE in tcp_recvmsg_locked()).
                SocketState::Connected | SocketState::Ended if socket.remote_closed => Ok(0),
                _ if socket.pending_error().is_some() => Err(socket.take_error().unwrap_or(Errno::IO)),
                SocketState::Connected if socket.read_shut => Ok(0),
                SocketState::Connected | SocketState::Connecting => Err(Errno::AGAIN),
                SocketState::Ended if socket.disconnected && !socket.read_shut => Err(Errno::NOTCONN),
                SocketState::Ended => Ok(0),
                SocketState::Free
                | SocketState::Candidate
                | SocketState::Listening
                | SocketState::Datagram
                | SocketState::Lost => Err(Errno::NOTCONN),
            };
        }
        let mut copied = 0;
        for piece in target {
            copied += socket.receive.copy_to(copied, piece);
            if copied == socket.receive.len() {
                break;
            }
        }
        if !peek {
            self.consume(id, copied);
        }
        Ok(copied)
    }

    /// What is left to read, if the program wants to be told (TCP_INQ). The end of the stream counts as one byte (tcp_inq_hint() in
    /// net/ipv4/tcp.c).
    pub fn unread_told(&self, id: SocketId) -> Option<i32> {
        let socket = self.sockets.at(id);
        let unread = socket.receive.len() + usize::from(socket.remote_closed);
        socket.settings.says_inq.then_some(unread as i32)
    }

    /// Drops `count` received bytes (MSG_TRUNC, and what [`Stack::read`] copied).
    pub fn consume(&mut self, id: SocketId, count: usize) -> usize {
        let socket = self.sockets.at_mut(id);
        let count = count.min(socket.receive.len());
        socket.has_read(count);
        self.taken += count;
        if let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) {
            if socket.read_shut {
                interface.engine.consumed_in_silence(flow, count);
            } else {
                interface.engine.consumed(flow, count);
            }
        }
        count
    }

    /// Why a write cannot go on, or the space that there is.
    pub(super) fn space(&mut self, id: SocketId) -> Result<usize, Errno> {
        let socket = self.sockets.at_mut(id);
        if let Some(error) = socket.take_error() {
            return Err(error);
        }
        match socket.state {
            SocketState::Connected if !socket.write_shut => {}
            SocketState::Connecting => return Err(Errno::AGAIN),
            SocketState::Connected | SocketState::Ended | SocketState::Candidate | SocketState::Listening => {
                return Err(Errno::PIPE);
            }
            SocketState::Free | SocketState::Datagram | SocketState::Lost => return Err(Errno::NOTCONN),
        }
        let space = socket.space();
        if space == 0 {
            if socket.space_again() {
                return Ok(socket.space());
            }
            socket.no_space = true;
            return Err(Errno::AGAIN);
        }
        Ok(space)
    }

    pub(super) fn promise(&mut self, id: SocketId, bytes: usize) {
        let socket = self.sockets.at(id);
        if let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) {
            interface.engine.send(flow, bytes);
        }
    }

    /// Writes as much of `source` as there is space for.
    pub fn write<'b>(
        &mut self,
        id: SocketId,
        source: impl Iterator<Item = &'b [u8]>,
    ) -> Result<usize, Errno> {
        let mut space = self.space(id)?;
        let socket = self.sockets.at_mut(id);
        let mut written = 0;
        for piece in source {
            let length = piece.len().min(space);
            let taken = socket.send.push_some(&piece[..length]);
            written += taken;
            space -= taken;
            if taken < piece.len() {
                socket.no_space = true;
                if taken < length {
                    socket.has_no_memory();
                    if written == 0 {
                        return Err(socket.why_no_memory());
                    }
                }
                break;
            }
        }
        if written > 0 {
            self.promise(id, written);
        }
        Ok(written)
    }

    /// Lets `produce` write up to `wanted` bytes straight into the send queue: it is given the space and returns how much
    /// it used (sendfile). Returns its error, or the bytes written.
    pub fn write_with(
        &mut self,
        id: SocketId,
        wanted: usize,
        mut produce: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut space = self.space(id)?.min(wanted);
        let mut written = 0;
        let mut outcome = Ok(());
        let socket = self.sockets.at_mut(id);
        while space > 0 {
            let spare = socket.send.spare(space);
            let offered = spare.len();
            if offered == 0 {
                socket.no_space = true;
                socket.has_no_memory();
                outcome = Err(socket.why_no_memory());
                break;
            }
            match produce(spare) {
                Ok(0) => break,
                Ok(length) => {
                    let length = length.min(offered);
                    socket.send.commit(length);
                    written += length;
                    space -= length;
                    if length < offered {
                        break;
                    }
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if space == 0 && written < wanted {
            socket.no_space = true;
        }
        if written > 0 {
            self.promise(id, written);
            return Ok(written);
        }
        outcome.map(|()| 0)
    }

    /// Whether what waits to be read wakes nobody: less than SO_RCVLOWAT says, and more may come (tcp_data_ready() in Linux,
    /// net/ipv4/tcp_input.c).
    pub(crate) fn has_too_little(&self, id: SocketId) -> bool {
        let socket = self.sockets.at(id);
        let more_may_come = socket.state == SocketState::Connected
            && !socket.remote_closed
            && !socket.read_shut
            && socket.pending_error().is_none();
        more_may_come && !socket.receive.is_empty() && socket.receive.len() < socket.low_water()
    }

    /// shutdown(). Errors as Linux has them.
    pub fn shutdown(&mut self, id: SocketId, read: bool, write: bool) -> Result<(), Errno> {
        let outcome = self.shut(id, read, write);
        // Whoever waits looks again, also where nothing can be shut any more (inet_shutdown() in Linux, net/ipv4/af_inet.c).
        let all = bits::IN | bits::OUT | bits::RDNORM | bits::WRNORM | bits::RDHUP | bits::ERR | bits::HUP;
        self.sockets.wake(id, all);
        outcome
    }

    /// As [`Stack::shutdown`], and nobody hears of it: the descriptor is about to be closed.
    pub(crate) fn shut(&mut self, id: SocketId, read: bool, write: bool) -> Result<(), Errno> {
        let over = self.is_over(id);
        let socket = self.sockets.at_mut(id);
        socket.read_shut |= read;
        let first = write && !socket.write_shut;
        socket.write_shut |= write;
        socket.shut_first |= first && !socket.remote_closed;
        if let (true, false, Some(flow), Some(interface)) =
            (first, over, socket.flow, &mut self.interfaces[socket.side.index()])
        {
            interface.engine.shutdown(flow);
        }
        if over { Err(Errno::NOTCONN) } else { Ok(()) }
    }

    /// Both ends have sent their last: as far as a program can see, Linux has no connection any more then.
    #[must_use]
    pub fn is_over(&self, id: SocketId) -> bool {
        use overfly_engine::State::{Closed, TimeWait};
        match self.sockets.at(id).state {
            SocketState::Connecting => false,
            SocketState::Connected => {
                self.info(id).is_some_and(|info| matches!(info.state, Closed | TimeWait))
            }
            _ => true,
        }
    }

    /// For how long the last who has the socket, a descriptor or a call that waits, waits at its end until the peer has everything
    /// (SO_LINGER); `None` if it has, or if unread data will make the end a reset, or if others have the socket.
    pub(crate) fn lingers(&self, id: SocketId) -> Option<Duration> {
        use overfly_engine::State::{CloseWait, Closing, Established, FinWait1, LastAck};
        let socket = self.sockets.at(id);
        let time = socket.settings.linger.filter(|time| !time.is_zero())?;
        let is_last = socket.references + socket.holders == 1;
        let open = matches!(self.info(id)?.state, Established | CloseWait | FinWait1 | Closing | LastAck);
        (is_last && open && socket.receive.is_empty()).then_some(time)
    }

    /// Bytes that were written and not acknowledged, and those of them that were not sent.
    pub(crate) fn waiting(&self, id: SocketId) -> (usize, usize) {
        use overfly_engine::State::{Closing, FinWait1, LastAck};
        let socket = self.sockets.at(id);
        // The FIN has a number as well (tcp_ioctl() in net/ipv4/tcp.c).
        let closing = socket.write_shut
            && self.info(id).is_some_and(|info| matches!(info.state, FinWait1 | Closing | LastAck));
        (socket.send.len() + usize::from(closing), socket.unsent())
    }

    /// SO_ERROR: the pending error, taken.
    pub fn take_error(&mut self, id: SocketId) -> Option<Errno> {
        self.sockets.at_mut(id).take_error()
    }
}
