//! What is set on connections and listeners, as the engine follows it.

use core::net::SocketAddr;
use core::time::Duration;

use overfly_engine::{Algorithm, Engine, Error, Info, KeepAlive, ListenerId, State as FlowState};
use overfly_profile::sysctls::FastOpenKeys;

use super::{Interface, Stack};
use crate::interest::bits;
use crate::socket::{Settings, SocketId};
use overfly_link::Link;

impl<T: Link> Stack<T> {
    /// Tells the engine in what a socket's settings differ from those that it has, `before`.
    pub(super) fn settle(&mut self, id: SocketId, before: &Settings, settings: Settings) {
        if settings == *before {
            return;
        }
        let socket = self.sockets.at_mut(id);
        socket.settings = settings;
        let (Some(flow), Some(Interface { engine, .. })) =
            (socket.flow, &mut self.interfaces[socket.side.index()])
        else {
            return;
        };
        if settings.no_delay != before.no_delay {
            engine.set_no_delay(flow, settings.no_delay);
        }
        if settings.cork != before.cork {
            engine.set_cork(flow, settings.cork);
        }
        let keep_alive = |settings: &Settings| {
            settings.keep_alive.then_some(KeepAlive {
                idle: settings.keep_idle,
                interval: settings.keep_interval,
                probes: settings.keep_probes,
            })
        };
        if keep_alive(&settings) != keep_alive(before) {
            engine.set_keep_alive(self.now, flow, keep_alive(&settings));
        }
        if settings.user_timeout != before.user_timeout {
            engine.set_user_timeout(flow, settings.user_timeout);
        }
        if settings.syn_retries != before.syn_retries {
            engine.set_syn_retries(flow, settings.syn_retries);
        }
        if let Some(on) = settings.quick_ack
            && settings.quick_ack != before.quick_ack
        {
            engine.set_quick_ack(flow, on);
        }
        if settings.traffic_class != before.traffic_class {
            engine.set_traffic_class(flow, settings.traffic_class);
        }
        if settings.hops() != before.hops() {
            let (hops, hops6) = settings.hops();
            let is_ipv4 = engine.tuple(flow).1.is_ipv4();
            engine.set_hop_limit(flow, if is_ipv4 { hops } else { hops6 });
        }
        if let Some(algorithm) = settings.congestion
            && settings.congestion != before.congestion
        {
            engine.set_congestion(flow, algorithm);
        }
        if let Some(bytes) = settings.receive_limit
            && settings.receive_limit != before.receive_limit
        {
            engine.set_receive_window(flow, bytes);
        }
    }

    /// Changes a socket's settings.
    pub fn change(&mut self, id: SocketId, change: impl FnOnce(&mut Settings)) {
        let before = self.sockets.at(id).settings;
        let mut settings = before;
        change(&mut settings);
        self.settle(id, &before, settings);
    }

    /// TCP_NODELAY is set, perhaps again: what waits for company goes (tcp_push_pending_frames() in net/ipv4/tcp.c).
    pub(crate) fn no_delay(&mut self, id: SocketId) {
        self.change(id, |settings| settings.no_delay = true);
        let socket = self.sockets.at(id);
        if let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) {
            interface.engine.set_no_delay(flow, true);
        }
    }

    /// SO_RCVLOWAT is set, perhaps again: what there is to read is news once more, if it is enough (tcp_set_rcvlowat() in
    /// net/ipv4/tcp.c).
    pub(crate) fn tell_readers(&mut self, id: SocketId) {
        if self.sockets.level(id) & bits::IN != 0 {
            self.sockets.wake(id, bits::IN | bits::RDNORM);
        }
    }

    /// SO_SNDBUF is set, perhaps again: that there is room is news once more (sk_setsockopt() in net/core/sock.c).
    pub(crate) fn tell_writers(&mut self, id: SocketId) {
        if self.sockets.at(id).has_space() {
            self.sockets.wake(id, bits::OUT | bits::WRNORM);
        }
    }

    /// The next write is not the last of what belongs together (MSG_MORE): its end waits for more, as with TCP_CORK.
    /// A write of nothing changes nothing (tcp_sendmsg_locked() in Linux, net/ipv4/tcp.c). Unlike TCP_CORK that lasts until the peer has
    /// acknowledged something, or closes (tcp_data_snd_check() in net/ipv4/tcp_input.c).
    pub(crate) fn more_follows(&mut self, id: SocketId, more: bool) {
        let socket = self.sockets.at_mut(id);
        if socket.more == more {
            return;
        }
        socket.more = more;
        let cork = more || socket.settings.cork;
        if let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) {
            interface.engine.set_cork(flow, cork);
        }
    }

    /// A listener has other settings than when this process joined it.
    pub(crate) fn change_listener(&mut self, id: SocketId, settings: Settings) {
        self.sockets.at_mut(id).settings = settings;
        for port in self.sockets.ports.iter().filter(|port| port.members.contains(&id)) {
            let Some(interface) = &mut self.interfaces[port.side.index()] else { continue };
            let most = match settings.max_segment {
                0 => u16::MAX,
                bytes => bytes,
            };
            interface.engine.set_listener_max_segment(port.listener, most);
            interface.engine.set_listener_traffic_class(port.listener, settings.traffic_class);
            let (hops, hops6) = settings.hops();
            interface.engine.set_listener_hop_limits(port.listener, hops, hops6);
        }
    }

    /// Connections of the listener are to be accepted once they have data, or after so long (TCP_DEFER_ACCEPT).
    pub fn defer_accept(&mut self, id: SocketId, defer: Duration) {
        if let Some(listening) = &mut self.sockets.at_mut(id).listening {
            listening.defer = defer;
        }
    }

    /// The listener takes data in a SYN (TCP_FASTOPEN), from `max` handshakes at a time; these are the keys of its cookies.
    pub(crate) fn open_fast(&mut self, id: SocketId, max: u32, keys: Option<FastOpenKeys>) {
        for port in self.sockets.ports.iter().filter(|port| port.members.contains(&id)) {
            if let Some(interface) = &mut self.interfaces[port.side.index()] {
                interface.engine.set_listener_fast_open(port.listener, max);
            }
        }
        if let Some((primary, backup)) = keys.filter(|_| max > 0 && keys != self.fast_open_keys) {
            for interface in self.interfaces.iter_mut().flatten() {
                interface.engine.set_fast_open_keys(primary, backup);
            }
            self.fast_open_keys = keys;
        }
    }

    /// The largest packet that the path to the socket's peer takes, in bytes.
    #[must_use]
    pub fn path_mtu(&self, id: SocketId) -> Option<u16> {
        let flow = self.sockets.at(id).flow?;
        self.interface(self.sockets.at(id).side).map(|interface| interface.engine.path_mtu(flow))
    }

    /// What governs the congestion window of the socket's flow.
    #[must_use]
    pub fn congestion(&self, id: SocketId) -> Option<Algorithm> {
        let socket = self.sockets.at(id);
        let interface = self.interface(socket.side)?;
        socket.flow.map(|flow| interface.engine.congestion(flow)).or(socket.settings.congestion)
    }

    /// What the engine knows of the socket's flow.
    #[must_use]
    pub fn info(&self, id: SocketId) -> Option<Info> {
        let socket = self.sockets.at(id);
        let (flow, interface) = socket.flow.zip(self.interface(socket.side))?;
        let mut info = interface.engine.info(flow);
        if socket.write_shut {
            // Whether or not the FIN could be sent yet (tcp_shutdown() in Linux, net/ipv4/tcp.c).
            info.state = match info.state {
                FlowState::Established => FlowState::FinWait1,
                FlowState::CloseWait | FlowState::LastAck if socket.shut_first => FlowState::Closing,
                FlowState::CloseWait => FlowState::LastAck,
                state => state,
            };
        }
        Some(info)
    }
}

/// Opens a port in the engine for a listener with these settings.
pub(super) fn listen(
    engine: &mut Engine,
    local: SocketAddr,
    backlog: u32,
    settings: &Settings,
) -> Result<ListenerId, Error> {
    let listener = engine.listen(local, backlog)?;
    if settings.max_segment != 0 {
        engine.set_listener_max_segment(listener, settings.max_segment);
    }
    engine.set_listener_traffic_class(listener, settings.traffic_class);
    let (hops, hops6) = settings.hops();
    engine.set_listener_hop_limits(listener, hops, hops6);
    Ok(listener)
}
