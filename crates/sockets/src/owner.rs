//! The program's sockets as an engine's owner: takes what flows receive, gives what they send, and notes what is news.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use overfly_engine::{
    Datagram, Event, Failure, FlowId, Instant, ListenerId, Owner, REFUSED, Report, UNWANTED, UdpId,
    Unreachable,
};
use overfly_wire::checksum::Sum;
use overfly_wire::{Promised, Promises};
use rustix::io::Errno;

use crate::interest::{NONE, bits};
use crate::socket::{Side, SocketId, SocketState, TOGETHER};
use crate::socket_table::{AfterCallback, SocketTable};

/// Payload of fewer bytes is copied into its frame: that costs no more than two more pieces of it.
const PROMISED_MIN: usize = 4096;

/// What an engine is told to call back, while it is called.
pub(crate) struct EngineOwner<'a> {
    pub(crate) sockets: &'a mut SocketTable,
    /// Which engine calls.
    pub(crate) side: Side,
    /// When it was called.
    pub(crate) now: Instant,
}

impl EngineOwner<'_> {
    /// Whether the kernel could take a connection over, now or when it is accepted.
    fn can_hand_over(&self, id: SocketId) -> bool {
        let socket = self.sockets.at(id);
        // What only a call that waits has still (its descriptor was closed) has nobody to hand it over to.
        let is_held = socket.references == 0 && socket.holders > 0;
        (self.sockets.can_hand_over || self.side == Side::Loopback)
            && !(socket.is_orphan() || is_held || socket.stays || socket.is_shut_both_ways())
    }

    /// What a peer has sent together came together: the kernel goes on with a large upload, if it is to, from the next call on.
    #[cold]
    fn came_together(&mut self, id: SocketId, bytes: usize) {
        let limit = self.sockets.upload_limit;
        if limit == 0 || self.side == Side::Loopback || !self.can_hand_over(id) {
            return;
        }
        let socket = self.sockets.at_mut(id);
        let is_large = socket.upload.came(bytes, socket.sent_to, limit);
        // One that waits for accept() has no descriptor yet: it asks when more comes.
        if is_large && !socket.wants_kernel && !socket.queued {
            socket.wants_kernel = true;
            socket.upload.is_large = true;
        }
    }

    fn incoming(&mut self, flow: FlowId, listener: ListenerId) {
        let Self { side, now, .. } = *self;
        let sockets = &mut *self.sockets;
        let mut ports = sockets.ports.iter_mut();
        let Some(port) = ports.find(|port| (port.side, port.listener) == (side, listener)) else {
            sockets.after_callbacks.push(AfterCallback::Abort(side, flow));
            return;
        };
        let (local, member) = (port.local, port.next_member());
        let id = if sockets.has_room_for(side, flow) { sockets.open() } else { None };
        let Some(id) = id else {
            sockets.after_callbacks.push(AfterCallback::Abort(side, flow));
            return;
        };
        sockets.bind_flow(side, flow, id);
        let Some(member) = member else {
            sockets.at_mut(id).waits_for(SocketId(NONE));
            sockets.leaving.push((id, local));
            return;
        };
        sockets.unnamed = Some(id);
        let (settings, v6) = (sockets.at(member).settings, sockets.at(member).v6);
        let socket = sockets.at_mut(id);
        socket.v6 = v6;
        socket.settings = settings;
        let defer = sockets.at(member).listening.as_ref().map_or(Duration::ZERO, |listening| listening.defer);
        if defer.is_zero() {
            sockets.queue(id, member);
        } else {
            sockets.defer(id, member, now + defer);
        }
    }

    fn acknowledged(&mut self, id: SocketId, offset: u64) {
        let socket = self.sockets.at_mut(id);
        let count = offset.saturating_sub(socket.send_base);
        socket.send.discard(usize::try_from(count).unwrap_or(usize::MAX));
        socket.send_base = socket.send_base.max(offset);
        if socket.more {
            self.sockets.after_callbacks.push(AfterCallback::Push(id));
        }
        let socket = self.sockets.at_mut(id);
        if socket.no_space && socket.has_space() {
            socket.no_space = false;
            self.sockets.wake(id, bits::OUT | bits::WRNORM);
        }
    }

    /// A segment takes the stream up to `end`: that may be all that a writer waits for (TCP_NOTSENT_LOWAT).
    fn sent(&mut self, id: SocketId, end: u64) {
        let socket = self.sockets.at_mut(id);
        socket.sent_to = socket.sent_to.max(end);
        if socket.no_space && socket.settings.unsent_low_water != 0 && socket.has_space() {
            socket.no_space = false;
            self.sockets.wake(id, bits::OUT | bits::WRNORM);
        }
    }

    fn failed(&mut self, id: SocketId, failure: Failure) {
        let socket = self.sockets.at_mut(id);
        socket.error = Some(match failure {
            Failure::Refused => Errno::CONNREFUSED,
            // tcp_reset() in net/ipv4/tcp_input.c: in CLOSE-WAIT only, not once the program has closed its direction too.
            Failure::Reset if socket.remote_closed && !socket.write_shut => Errno::PIPE,
            Failure::Reset => Errno::CONNRESET,
            Failure::TimedOut => Errno::TIMEDOUT,
            Failure::Unreachable(why) => unreachable(why, socket.remote),
        });
        // Once the engine has let go nothing will be acknowledged: what waits to be sent is lost.
        socket.send.recycle();
    }

    fn released(&mut self, flow: FlowId, id: SocketId) {
        self.sockets.unbind_flow(self.side, flow);
        let socket = self.sockets.at_mut(id);
        socket.flow = None;
        socket.state = SocketState::Ended;
        let (side, local, remote) = (self.side, socket.local, socket.remote);
        let after = (!socket.passive).then_some(AfterCallback::Disconnected {
            side,
            local,
            remote,
            descriptor: if socket.is_orphan() { socket.descriptor } else { -1 },
        });
        self.sockets.after_callbacks.extend(after);
        let socket = self.sockets.at(id);
        if socket.queued {
            self.sockets.bury(id);
        } else if socket.is_orphan() {
            self.sockets.release(id);
        } else {
            self.sockets.wake(
                id,
                bits::IN | bits::OUT | bits::ERR | bits::HUP | bits::RDHUP | bits::RDNORM | bits::WRNORM,
            );
        }
    }
}

impl Owner for EngineOwner<'_> {
    fn datagram(&mut self, socket: UdpId, datagram: Datagram<'_>) {
        self.sockets.datagram_arrived(self.now, socket, &datagram);
    }

    fn datagram_failed(&mut self, socket: UdpId, remote: SocketAddr, why: Unreachable, report: &Report<'_>) {
        self.sockets.datagram_failed_at(self.now, socket, remote, why, report);
    }

    fn unheard(&mut self, remote: IpAddr) {
        self.sockets.unheard.note(self.side, remote);
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        if let Event::Incoming { listener } = event {
            self.incoming(flow, listener);
            return;
        }
        let Some(id) = self.sockets.socket_of(self.side, flow) else { return };
        match event {
            Event::Incoming { .. } => {}
            Event::Connected => {
                let socket = self.sockets.at_mut(id);
                socket.state = SocketState::Connected;
                self.sockets.wake(id, bits::OUT | bits::WRNORM);
            }
            Event::Acknowledged { offset } => self.acknowledged(id, offset),
            Event::RemoteClosed => {
                let socket = self.sockets.at_mut(id);
                socket.remote_closed = true;
                if socket.more {
                    self.sockets.after_callbacks.push(AfterCallback::Push(id));
                }
                self.sockets.promote(id);
                self.sockets.wake(id, bits::IN | bits::RDNORM | bits::RDHUP | bits::HUP);
            }
            Event::Failed(failure) => self.failed(id, failure),
            Event::Released => self.released(flow, id),
        }
    }

    fn urgent(&mut self, flow: FlowId) -> bool {
        let Some(id) = self.sockets.socket_of(self.side, flow) else { return false };
        let can = self.can_hand_over(id);
        let socket = self.sockets.at_mut(id);
        // One that is shut both ways is reset by any data, which counts as come (tcp_urg() in net/ipv4/tcp_input.c).
        socket.urgent_unread |= socket.is_shut_both_ways();
        if !can {
            return false;
        }
        socket.wants_kernel = true;
        socket.upload.is_large = false;
        // A connection that waits for accept() has no descriptor yet.
        let waits = socket.queued;
        self.sockets.promote(id);
        if !waits {
            self.sockets.urgent.push(id);
            self.sockets.news = true;
            self.sockets.note(id);
        }
        true
    }

    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let Some(id) = self.sockets.socket_of(self.side, flow) else { return data.len() };
        let socket = self.sockets.at_mut(id);
        if socket.is_orphan() {
            return data.len();
        }
        if socket.is_shut_both_ways() {
            // Nobody will read it, and nobody answers: as after a close() (tcp_rcv_state_process() in net/ipv4/tcp_input.c).
            socket.error = Some(Errno::CONNRESET);
            return UNWANTED;
        }
        if !socket.receive.push(data) {
            return REFUSED;
        }
        let waits = socket.queued;
        if data.len() >= TOGETHER {
            self.came_together(id, data.len());
        }
        if !self.sockets.promote(id) && !waits {
            self.sockets.wake(id, bits::IN | bits::RDNORM);
        }
        0
    }

    fn is_unread(&self, flow: FlowId) -> bool {
        self.sockets.socket_of(self.side, flow).is_some_and(|id| !self.sockets.at(id).receive.is_empty())
    }

    fn fill_and_sum(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) -> Option<Sum> {
        let id = self.sockets.socket_of(self.side, flow)?;
        let socket = self.sockets.at(id);
        let place = usize::try_from(offset.saturating_sub(socket.send_base)).unwrap_or(usize::MAX);
        let sum = socket.send.fill_and_sum(place, buffer);
        if sum.is_none() {
            self.fill(flow, offset, buffer);
        } else {
            self.sent(id, offset + buffer.len() as u64);
        }
        sum
    }

    fn promise(&mut self, flow: FlowId, offset: u64, length: usize) -> bool {
        let id = self.sockets.socket_of(self.side, flow).filter(|_| length >= PROMISED_MIN);
        if let Some(id) = id {
            self.sent(id, offset + length as u64);
        }
        id.is_some()
    }

    fn fill(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) {
        if let Some(id) = self.sockets.socket_of(self.side, flow) {
            let socket = self.sockets.at(id);
            socket
                .send
                .fill(usize::try_from(offset.saturating_sub(socket.send_base)).unwrap_or(usize::MAX), buffer);
            self.sent(id, offset + buffer.len() as u64);
        }
    }
}

impl Promises for EngineOwner<'_> {
    fn pieces(&self, promised: Promised) -> (&[u8], &[u8]) {
        let Some(id) = self.sockets.socket_of(self.side, FlowId::at(promised.flow)) else {
            return (&[], &[]);
        };
        let socket = self.sockets.at(id);
        let place = usize::try_from(promised.offset.saturating_sub(socket.send_base)).unwrap_or(usize::MAX);
        socket.send.pieces(place, promised.length)
    }
}

/// What connect() says of a destination that cannot be reached, and a connection that timed out of why: icmp_err_convert[] in net/ipv4/icmp.c, icmpv6_err_convert() in
/// net/ipv6/icmp.c.
fn unreachable(why: Unreachable, remote: SocketAddr) -> Errno {
    match why {
        Unreachable::Port => Errno::CONNREFUSED,
        Unreachable::Protocol => Errno::NOPROTOOPT,
        Unreachable::Network | Unreachable::NetworkUnknown => Errno::NETUNREACH,
        Unreachable::HostUnknown => Errno::HOSTDOWN,
        Unreachable::HostIsolated => Errno::NONET,
        Unreachable::SourceRoute => Errno::OPNOTSUPP,
        Unreachable::Prohibited if remote.is_ipv6() => Errno::ACCESS,
        Unreachable::Host | Unreachable::Prohibited | Unreachable::Expired => Errno::HOSTUNREACH,
        Unreachable::Header => Errno::PROTO,
        Unreachable::TooBig(_) => Errno::MSGSIZE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;
    const FLOW: FlowId = FlowId::at(3);

    /// One connection, which the kernel may have when it has taken an upload of [`LIMIT`].
    fn one() -> (SocketTable, SocketId) {
        let mut sockets = SocketTable::new();
        sockets.can_hand_over = true;
        sockets.upload_limit = LIMIT;
        let id = sockets.open().unwrap();
        sockets.bind_flow(Side::Network, FLOW, id);
        let socket = sockets.at_mut(id);
        socket.state = SocketState::Connected;
        socket.references = 1;
        (sockets, id)
    }

    /// So many bytes come, in packets of that size; whether the connection wants the kernel then.
    fn comes(sockets: &mut SocketTable, id: SocketId, bytes: u64, size: usize) -> bool {
        let data = vec![0; size];
        let side = sockets.at(id).side;
        for _ in 0..bytes / size as u64 {
            let mut owner = EngineOwner { sockets, side, now: Instant::from_micros(0) };
            assert_eq!(owner.deliver(FLOW, &data), 0);
            sockets.at_mut(id).receive.recycle();
        }
        let socket = sockets.at(id);
        assert!(!socket.upload.is_large || socket.wants_kernel);
        socket.upload.is_large
    }

    fn sends(sockets: &mut SocketTable, id: SocketId, bytes: u64) {
        sockets.at_mut(id).sent_to += bytes;
    }

    #[test]
    fn a_large_upload_of_packets_of_several_segments_wants_the_kernel() {
        for size in [TOGETHER, 65_536] {
            let (mut sockets, id) = one();
            assert!(!comes(&mut sockets, id, LIMIT - size as u64, size));
            assert!(comes(&mut sockets, id, size as u64, size));
        }
    }

    #[test]
    fn single_segments_are_no_upload() {
        let (mut sockets, id) = one();
        assert!(!comes(&mut sockets, id, 4 * LIMIT, 8948));
        assert!(!comes(&mut sockets, id, 4 * LIMIT, TOGETHER - 1));
        assert!(!comes(&mut sockets, id, LIMIT / 2, TOGETHER));
    }

    #[test]
    fn more_than_a_little_that_is_sent_begins_the_count_anew() {
        let (mut sockets, id) = one();
        for _ in 0..10 {
            assert!(!comes(&mut sockets, id, LIMIT / 2, 65_536));
            sends(&mut sockets, id, LIMIT / 256 + 1);
        }
        assert!(!comes(&mut sockets, id, LIMIT - 65_536, 65_536));
        assert!(comes(&mut sockets, id, 65_536, 65_536));
        // A little does not, and what was sent before is no part of it.
        let (mut sockets, id) = one();
        sends(&mut sockets, id, 1 << 40);
        assert!(!comes(&mut sockets, id, LIMIT / 2, 65_536));
        sends(&mut sockets, id, LIMIT / 256);
        assert!(comes(&mut sockets, id, LIMIT / 2, 65_536));
    }

    #[test]
    fn nothing_is_asked_for_where_nothing_moves() {
        type Change = fn(&mut SocketTable, SocketId);
        let changes: [(&str, Change); 7] = [
            ("never", |sockets, _| sockets.upload_limit = 0),
            ("no broker", |sockets, _| sockets.can_hand_over = false),
            ("refused before", |sockets, id| sockets.at_mut(id).stays = true),
            ("waits for accept", |sockets, id| sockets.at_mut(id).queued = true),
            ("closed", |sockets, id| {
                sockets.at_mut(id).references = 0;
                sockets.at_mut(id).holders = 1;
            }),
            ("wants it for something else", |sockets, id| sockets.at_mut(id).wants_kernel = true),
            ("within the host", |sockets, id| {
                sockets.bind_flow(Side::Loopback, FLOW, id);
            }),
        ];
        for (name, change) in changes {
            let (mut sockets, id) = one();
            change(&mut sockets, id);
            assert!(!comes(&mut sockets, id, 4 * LIMIT, 65_536), "{name}");
        }
    }

    #[test]
    fn what_waited_for_accept_asks_when_more_comes() {
        let (mut sockets, id) = one();
        sockets.at_mut(id).queued = true;
        assert!(!comes(&mut sockets, id, 2 * LIMIT, 65_536));
        sockets.at_mut(id).queued = false;
        assert!(comes(&mut sockets, id, 65_536, 65_536));
    }

    #[test]
    fn urgent_data_is_a_better_reason() {
        let (mut sockets, id) = one();
        assert!(comes(&mut sockets, id, LIMIT, 65_536));
        let mut owner =
            EngineOwner { sockets: &mut sockets, side: Side::Network, now: Instant::from_micros(0) };
        assert!(owner.urgent(FLOW));
        let socket = sockets.at(id);
        assert_eq!((socket.wants_kernel, socket.upload.is_large), (true, false));
    }
}
