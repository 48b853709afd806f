//! The sockets as an observer sees them.

use overfly_broker::watch::{self, Row};
use overfly_engine::{Instant, State as Flow, Timer};

use super::Stack;
use crate::socket::{Socket, SocketState};

/// What Linux calls a state (include/net/tcp_states.h).
pub(crate) const fn state_number(state: Flow) -> u8 {
    match state {
        Flow::Established => 1,
        Flow::SynSent => 2,
        Flow::SynReceived => 3,
        Flow::FinWait1 => 4,
        Flow::FinWait2 => 5,
        Flow::TimeWait => 6,
        Flow::Closed => CLOSED,
        Flow::CloseWait => 8,
        Flow::LastAck => 9,
        Flow::Closing => 11,
    }
}

const CLOSED: u8 = 7;
const LISTEN: u8 = 10;

fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl<T> Stack<T> {
    /// Sockets that the stack carries.
    pub(crate) fn shown_sockets(&self) -> impl Iterator<Item = &Socket> {
        self.sockets.ids().map(|id| self.sockets.at(id)).filter(|socket| match socket.state {
            SocketState::Listening => socket.listening.as_ref().is_some_and(|part| !part.joined.is_empty()),
            SocketState::Datagram => socket.datagrams.as_ref().is_some_and(|part| !part.places.is_empty()),
            SocketState::Connecting | SocketState::Connected => true,
            SocketState::Ended | SocketState::Free | SocketState::Candidate | SocketState::Lost => false,
        })
    }

    /// Every socket that the stack carries, as an observer sees it; one at two addresses is two.
    pub(crate) fn rows(&self, now: Instant) -> impl Iterator<Item = Row> {
        self.shown_sockets().flat_map(move |socket| {
            let listening = socket.listening.iter().flat_map(|part| {
                part.joined.iter().map(|&local| {
                    let mut row = Row::new(watch::Kind::Listener, socket.descriptor, local, None);
                    row.state = LISTEN;
                    row.receive_queue = size(part.queue.len());
                    row.send_queue = part.backlog;
                    row
                })
            });
            let datagrams = socket.datagrams.iter().flat_map(|part| {
                part.places.iter().map(|place| {
                    let kind = watch::Kind::Datagram;
                    let mut row = Row::new(kind, socket.descriptor, place.local, place.remote);
                    row.state = if place.remote.is_some() { 1 } else { CLOSED };
                    row.receive_queue = size(socket.receive.len());
                    row
                })
            });
            let connection = matches!(socket.state, SocketState::Connecting | SocketState::Connected);
            let connection = connection.then(|| self.connection_row(now, socket));
            listening.chain(datagrams).chain(connection)
        })
    }

    fn connection_row(&self, now: Instant, socket: &Socket) -> Row {
        let engine = self.interfaces[socket.side.index()].as_ref().map(|interface| &interface.engine);
        let flow = engine.zip(socket.flow);
        // One that waits to be accepted does not know its ends yet.
        let (local, remote) = match flow {
            Some((engine, flow)) if socket.queued => engine.tuple(flow),
            _ => (socket.local, socket.remote),
        };
        let mut row = Row::new(watch::Kind::Connection, socket.descriptor, local, Some(remote));
        row.receive_queue = size(socket.receive.len());
        row.send_queue = size(socket.send.len());
        row.passive = u8::from(socket.passive);
        row.state = CLOSED;
        let Some((engine, flow)) = flow else { return row };
        let info = engine.info(flow);
        row.state = state_number(info.state);
        row.congestion_window = info.congestion_window;
        row.slow_start_threshold = info.slow_start_threshold;
        row.rtt_us = info.rtt_us;
        row.rtt_variation_us = info.rtt_variation_us;
        row.min_rtt_us = info.min_rtt_us;
        row.rto_us = u32::try_from(info.rto_us).unwrap_or(u32::MAX);
        row.send_window = info.send_window;
        row.receive_window = info.receive_window;
        row.flight = info.flight;
        row.sacked = info.sacked;
        row.lost = info.lost;
        row.mss = info.mss;
        row.retries = info.retries;
        row.backoff = info.backoff;
        (row.send_shift, row.receive_shift) = info.window_shift;
        row.timestamps = u8::from(info.timestamps);
        row.sack = u8::from(info.sack);
        row.ecn = u8::from(info.ecn);
        row.acknowledged = info.acknowledged;
        row.received = u64::from(info.received);
        row.set_timer(engine.timer(now, flow).map(|(timer, left)| {
            let timer = match timer {
                Timer::Retransmission => watch::Timer::Retransmission,
                Timer::Persist => watch::Timer::Persist,
                Timer::DelayedAck => watch::Timer::DelayedAck,
                Timer::Linger => watch::Timer::Linger,
            };
            (timer, left)
        }));
        row
    }
}
