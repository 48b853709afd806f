//! What an owner sets for one flow, or for the connections of a listener.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::congestion::{Congestion, CongestionControl};
use crate::engine::Engine;
use crate::fastopen::{Opening, ServerCookies};
use crate::flow::{Flags, KeepAlive, State};
use crate::handshake::MIN_MSS;
use crate::owner::{FlowId, ListenerId};
use crate::path_mtu;
use crate::sizes::least_window;
use crate::time::{Instant, Ticks};

impl Engine {
    /// Turns Nagle's algorithm (RFC 9293 section 3.7.4) off or on, in Minshall's form: a small segment waits while another is in
    /// flight. Off, and off again, also lets go what [`Engine::set_cork`] holds back (TCP_NAGLE_PUSH in Linux's
    /// net/ipv4/tcp.c); what is promised later waits as before.
    pub fn set_no_delay(&mut self, flow: FlowId, on: bool) {
        let block = self.flows.at_mut(flow.0);
        block.flags.put(Flags::NO_DELAY, on);
        if on && block.state.is_synchronized() && block.unsent() > 0 {
            block.flags.set(Flags::FORCE);
        }
        self.enqueue(flow.0);
    }

    /// Holds partial segments back until this is turned off, or the flow is shut down.
    pub fn set_cork(&mut self, flow: FlowId, on: bool) {
        self.flows.at_mut(flow.0).flags.put(Flags::CORK, on);
        self.enqueue(flow.0);
    }

    /// Probes a peer that was silent for `idle`, then every `interval`; `probes` without an answer end the flow (RFC 9293
    /// section 3.8.4). `None` turns that off.
    pub fn set_keep_alive(&mut self, now: Instant, flow: FlowId, keep_alive: Option<crate::KeepAlive>) {
        let block = self.flows.at_mut(flow.0);
        block.flags.put(Flags::KEEP_ALIVE, keep_alive.is_some());
        if let Some(keep_alive) = keep_alive {
            let whole = |duration: Duration| Ticks::from(duration).max(Ticks::ONE);
            block.settings_mut().keep_alive = KeepAlive {
                idle: whole(keep_alive.idle),
                interval: whole(keep_alive.interval),
                probes: keep_alive.probes.max(1),
            };
        }
        if matches!(block.state, State::Established | State::CloseWait) {
            block.restart_keep_alive(now.tick());
            self.settle(flow.0);
        }
    }

    /// The flow fails when data stays unacknowledged, or the peer's window closed, for so long (TCP_USER_TIMEOUT, RFC 5482
    /// section 3's local half);
    /// [`Duration::ZERO`] leaves it to `data_retries`.
    pub fn set_user_timeout(&mut self, flow: FlowId, timeout: Duration) {
        let block = self.flows.at_mut(flow.0);
        if !timeout.is_zero() || block.settings().is_some() {
            block.settings_mut().user_timeout = Ticks::from(timeout);
        }
    }

    /// The SYN of a flow that is being opened goes again so often before the flow fails, and as often more as
    /// [`Config::syn_linear_timeouts`](crate::Config::syn_linear_timeouts) says (TCP_SYNCNT); 0 leaves it to
    /// [`Config::syn_retries`](crate::Config::syn_retries).
    pub fn set_syn_retries(&mut self, flow: FlowId, retries: u8) {
        let block = self.flows.at_mut(flow.0);
        if retries > 0 || block.settings().is_some() {
            block.settings_mut().syn_retries = retries;
        }
    }

    /// The SYN of a flow just opened may carry what was promised before the next [`Engine::transmit`] (RFC 7413 section 4.2.1;
    /// MSG_FASTOPEN, TCP_FASTOPEN_CONNECT), if the server gave a cookie before; else it asks for one.
    pub fn set_fast_open(&mut self, flow: FlowId) {
        let client = self.shared.config.fast_open_client;
        let block = self.flows.at_mut(flow.0);
        if client && block.state == State::SynSent && block.all_acknowledged() {
            block.flags.set(Flags::FAST_OPEN);
        }
    }

    /// Whether a connection with [`Engine::set_fast_open`] would carry data in its SYN: the server gave a cookie, and nothing
    /// went wrong since.
    pub fn may_open_fast(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) -> bool {
        let client = self.shared.config.fast_open_client;
        let without = self.shared.config.fast_open_client_without_cookie;
        client
            && match self.shared.servers.opening(now, local, remote) {
                Opening::Data { .. } => true,
                Opening::Request => without,
                Opening::Plain => false,
            }
    }

    /// A listener takes data in a SYN with a cookie of ours (RFC 7413 section 4.2.2; TCP_FASTOPEN), from `max` connections at
    /// a time whose handshake is not done; from none if `max` is 0. In place of [`Config::fast_open_server`] and
    /// [`Config::max_fast_open`].
    pub fn set_listener_fast_open(&mut self, listener: ListenerId, max: u32) {
        self.shared.listeners.set_fast_open(listener, max);
    }

    /// Gives Fast Open cookies by the `primary` key, and takes those of the `backup` too (TCP_FASTOPEN_KEY; RFC 7413 section
    /// 4.1.2, item 4). In place of [`Config::hash_key`].
    pub fn set_fast_open_keys(&mut self, primary: [u8; 16], backup: Option<[u8; 16]>) {
        self.shared.fast_open = ServerCookies::new(primary, backup);
    }

    /// Acknowledges every segment at once, or waits for company from now on (TCP_QUICKACK).
    pub fn set_quick_ack(&mut self, flow: FlowId, on: bool) {
        let block = self.flows.at_mut(flow.0);
        block.flags.put(Flags::QUICK_ACK, on);
        if block.state.is_synchronized() {
            block.flags.put(Flags::PINGPONG, !on);
        }
        if on && block.ack_at.is_set() {
            block.flags.set(Flags::ACK_NOW);
            self.enqueue(flow.0);
        }
    }

    /// The owner holds `bytes` at most for this flow: its receive window from now on, without auto-tuning (SO_RCVBUF).
    /// Within 1,024 bytes and [`Config::receive_window`]; at least a 32,767th of the latter, which window scaling can tell.
    pub fn set_receive_window(&mut self, flow: FlowId, bytes: u32) {
        let block = self.flows.at_mut(flow.0);
        let limit = block.largest_window(self.shared.config.receive_window);
        block.receive_limit = bytes.max(least_window(block.receive_shift)).clamp(1024, limit);
        block.flags.set(Flags::FIXED_WINDOW);
        if let Some(extra) = &mut block.extra {
            extra.tuning = None;
            self.shared.sack_ranges -= block.trim();
        }
    }

    /// The largest payload of a segment to the peer from now on (TCP_MAXSEG). Never more than the path takes. Set before the
    /// first [`Engine::transmit`] of an active open, the SYN says so too, and options are deducted once they are agreed on;
    /// later they must be deducted already.
    pub fn set_max_segment(&mut self, flow: FlowId, bytes: u16) {
        let block = self.flows.at_mut(flow.0);
        block.mss = block.mss.min(bytes.max(MIN_MSS));
        path_mtu::hold_to_segment(block);
    }

    /// Segments of the listener's connections carry so many bytes at most from now on, and its answers to SYNs say so
    /// (TCP_MAXSEG). Options are not deducted.
    pub fn set_listener_max_segment(&mut self, listener: ListenerId, bytes: u16) {
        if let Some(inherited) = self.shared.listeners.inherited_mut(listener) {
            inherited.max_segment = bytes.max(MIN_MSS);
        }
    }

    /// The traffic class of the flow's packets (IP_TOS, IPV6_TCLASS; RFC 2474). Its lowest two bits are the engine's (RFC 3168
    /// section 5).
    pub fn set_traffic_class(&mut self, flow: FlowId, class: u8) {
        self.flows.at_mut(flow.0).traffic_class = class & !0b11;
    }

    /// The traffic class of the listener's connections from now on, their SYN and ACK included.
    pub fn set_listener_traffic_class(&mut self, listener: ListenerId, class: u8) {
        if let Some(inherited) = self.shared.listeners.inherited_mut(listener) {
            inherited.traffic_class = class & !0b11;
        }
    }

    /// How many hops the flow's packets may go (IP_TTL, IPV6_UNICAST_HOPS); 0 is what the configuration says.
    pub fn set_hop_limit(&mut self, flow: FlowId, hops: u8) {
        let block = self.flows.at_mut(flow.0);
        let remote = block.tuple.remote().ip();
        block.hop_limit = if hops > 0 { hops } else { self.shared.config.hop_limit_to(remote) };
    }

    /// How many hops packets of the listener's connections may go from now on, their SYN and ACK included: those of IPv4, and
    /// those of IPv6. 0 is what the configuration says.
    pub fn set_listener_hop_limits(&mut self, listener: ListenerId, hops: u8, hops6: u8) {
        if let Some(inherited) = self.shared.listeners.inherited_mut(listener) {
            (inherited.hop_limit, inherited.hop_limit6) = (hops, hops6);
        }
    }

    /// Which algorithm governs the flow's congestion window (TCP_CONGESTION). It starts anew with the present window.
    pub fn set_congestion(&mut self, flow: FlowId, algorithm: crate::Algorithm) {
        let block = self.flows.at_mut(flow.0);
        block.congestion = Congestion::new(algorithm, block.congestion.window());
    }

    /// What governs the flow's congestion window.
    #[must_use]
    pub fn congestion(&self, flow: FlowId) -> crate::Algorithm {
        self.flows.at(flow.0).congestion.algorithm()
    }

    /// The flow's congestion window is `bytes` now, a segment at least: what it begins with, where that is not
    /// [`Config::initial_window`]'s. Before the first data is sent.
    pub fn set_congestion_window(&mut self, flow: FlowId, bytes: u32) {
        let block = self.flows.at_mut(flow.0);
        block.congestion.set_window(bytes.max(u32::from(block.mss)));
    }
}
