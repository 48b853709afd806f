//! How connections begin (RFC 9293 sections 3.5, 3.10.7.2 and 3.10.7.3), and SYN cookies (RFC 4987).

use overfly_wire::tcp::{Flags as TcpFlags, Options, Timestamps};

use crate::answers::StatelessReply;
use crate::config::{Ecn, SynCookies};
use crate::congestion::CongestionControl;
use crate::cookies::{self, Offer};
use crate::engine::Engine;
use crate::fastopen::{Cookie, Validity};
use crate::flow::{Flags, Flow, State};
use crate::owner::{Act, Event, Failure, ListenerId, Owner};
use crate::path_mtu;
use crate::receive::Arrival;
use crate::sequence::{Sequence, at_or_before, before, distance, later};
use crate::shared::{NO_LISTENER, Shared, Turn, Verdict};
use crate::sizes::window_shift;
use crate::time::{Deadline, Instant};

/// The least MSS that is believed: less would make every byte a segment.
pub(crate) const MIN_MSS: u16 = 64;
/// RFC 9293 section 3.7.1: without the option.
const DEFAULT_MSS: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;
/// Bytes of the timestamps option with its padding.
pub(crate) const TIMESTAMPS_LEN: u16 = 12;

impl Engine {
    /// RFC 9293 section 3.10.7.2, second and third.
    pub(crate) fn syn_arrives<O: Owner>(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        listener: u32,
        iss: Option<Sequence>,
        owner: &mut O,
    ) {
        if self.shared.listeners.accept_queue_is_full(listener) {
            self.shared.counters.drop_backlog += 1;
            return;
        }
        let policy = self.shared.config.syn_cookies;
        if policy == SynCookies::Always
            || self.shared.listeners.syn_queue_is_full(listener, self.shared.config.min_half_open)
        {
            if policy == SynCookies::Off {
                self.shared.counters.drop_backlog += 1;
            } else {
                self.shared.answer_with_cookie(now, arrival, listener);
            }
            return;
        }
        let iss = iss.unwrap_or_else(|| self.shared.initial_sequence(now, &arrival.tuple));
        let mut flow = self.shared.new_flow(now, arrival.tuple, iss);
        flow.state = State::SynReceived;
        flow.next_hop = arrival.next_hop;
        self.shared.inherit(&mut flow, listener);
        flow.flags.set(Flags::HALF_OPEN);
        // The owner does not know the flow until it is established.
        flow.flags.set(Flags::RELEASED);
        self.shared.learn_from_syn(now, &mut flow, arrival);
        flow.flags.set(Flags::SYN_WANTED);
        let with_data = self.shared.fast_open_asked(&mut flow, arrival);
        match self.flows.insert(flow) {
            Some(index) => {
                self.shared.listeners.half_opened(listener);
                let max = self.shared.max_fast_open(listener);
                if with_data && self.shared.listeners.fast_opened(listener, max) {
                    self.turn(now, index, owner).opened_fast(arrival);
                }
                self.enqueue(index);
            }
            None => self.shared.counters.drop_no_flows += 1,
        }
    }

    /// An acknowledgment for no flow, while cookies are out (RFC 4987 section 3.6): the third segment of a handshake, perhaps.
    pub(crate) fn cookie_arrives<O: Owner>(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        listener: u32,
        owner: &mut O,
    ) {
        let Some(flow) = self.shared.flow_from_cookie(now, arrival, listener) else {
            self.shared.counters.drop_bad_cookie += 1;
            self.shared.answer_with_reset(arrival);
            return;
        };
        if self.shared.listeners.accept_queue_is_full(listener) {
            self.shared.counters.drop_backlog += 1;
            return;
        }
        match self.flows.insert(flow) {
            Some(index) => {
                self.shared.counters.syn_cookies_accepted += 1;
                self.with_flow(now, index, arrival, owner);
            }
            None => self.shared.counters.drop_no_flows += 1,
        }
    }
}

impl Shared {
    /// What a connection has of its listener.
    fn inherit(&self, flow: &mut Flow, listener: u32) {
        let inherited = self.listeners.inherited(listener);
        flow.listener = listener;
        flow.mss = flow.mss.min(inherited.max_segment);
        flow.traffic_class = inherited.traffic_class;
        let is_ipv4 = flow.tuple.remote().ip().is_ipv4();
        let hops = if is_ipv4 { inherited.hop_limit } else { inherited.hop_limit6 };
        if hops > 0 {
            flow.hop_limit = hops;
        }
    }

    /// Half-open connections of a listener that may have brought data.
    fn max_fast_open(&self, listener: u32) -> u32 {
        let default = if self.config.fast_open_server { self.config.max_fast_open } else { 0 };
        self.listeners.max_fast_open(listener, default)
    }

    /// The scale of a peer's windows (RFC 7323 section 2.2): none if ours have none.
    fn scale_of(&self, options: &Options) -> Option<u8> {
        options.window_scale.filter(|_| self.config.window_scaling)
    }

    /// What a SYN asks of Fast Open (RFC 7413 section 4.2.2). True if its data may be taken.
    fn fast_open_asked(&self, flow: &mut Flow, arrival: &Arrival<'_>) -> bool {
        let has_data = !arrival.segment.payload().is_empty();
        let without = self.config.fast_open_server_without_cookie;
        if arrival.options.fast_open.is_none() && !(without && has_data)
            || self.max_fast_open(flow.listener) == 0
        {
            return false;
        }
        if without && has_data {
            return true;
        }
        let Some(asked) = arrival.options.fast_open else { return false };
        let (client, server) = (arrival.tuple.remote.ip(), arrival.tuple.local.ip());
        let validity = self.fast_open.check(client, server, asked.cookie());
        flow.flags.put(Flags::FAST_OPEN_COOKIE, validity != Validity::Current);
        validity != Validity::Invalid && has_data
    }

    /// Answers a SYN without keeping anything of it (RFC 4987 section 3.6): the cookie holds the MSS, the timestamp the other
    /// options.
    fn answer_with_cookie(&mut self, now: Instant, arrival: &Arrival<'_>, listener: u32) {
        let (tuple, options) = (arrival.tuple, arrival.options);
        let default = if tuple.is_v4() { DEFAULT_MSS } else { DEFAULT_MSS_V6 };
        let mss = options.mss.unwrap_or(default);
        let syn = arrival.sequence();
        let cookie = self.cookies.make(now, tuple.local(), tuple.remote(), syn.number(), mss);
        let asked = arrival.segment.flags().contains(TcpFlags::ECE | TcpFlags::CWR);
        let mut flags = TcpFlags::SYN | TcpFlags::ACK;
        let most = self.listeners.inherited(listener).max_segment;
        let mut answer = Options { mss: Some(self.largest_segment(&tuple).min(most)), ..Options::NONE };
        if let Some(timestamps) = options.timestamps
            && self.config.timestamps
        {
            let offer = Offer {
                window_scale: self.scale_of(options),
                sack_permitted: options.sack_permitted && self.config.sack,
                ecn: asked && self.config.ecn != Ecn::Off,
            };
            let clock = now.tick().0.wrapping_add(self.secret.addresses(&tuple));
            answer.timestamps =
                Some(Timestamps { value: cookies::encode_timestamp(clock, offer), echo: timestamps.value });
            answer.sack_permitted = offer.sack_permitted;
            answer.window_scale = offer.window_scale.map(|_| window_shift(&self.config));
            if offer.ecn {
                flags |= TcpFlags::ECE;
            }
        }
        self.counters.syn_cookies_sent += 1;
        self.answer(StatelessReply::Tcp {
            next_hop: arrival.next_hop,
            tuple,
            sequence: Sequence::new(cookie),
            acknowledgment: syn + 1,
            flags,
            window: self.config.initial_receive_window.min(0xffff) as u16,
            options: answer,
        });
    }

    /// The control block of a handshake whose third segment this is, if its acknowledgment is a cookie of ours.
    fn flow_from_cookie(&mut self, now: Instant, arrival: &Arrival<'_>, listener: u32) -> Option<Flow> {
        let (tuple, sequence, acknowledgment) = (arrival.tuple, arrival.sequence(), arrival.acknowledgment());
        let numbers = (sequence.number(), acknowledgment.number());
        let mss = self.cookies.check(now, tuple.local(), tuple.remote(), numbers.0, numbers.1)?;
        let mut flow = self.new_flow(now, tuple, acknowledgment - 1);
        self.inherit(&mut flow, listener);
        flow.state = State::SynReceived;
        flow.next_hop = arrival.next_hop;
        flow.flags.set(Flags::RELEASED);
        flow.send_next = acknowledgment;
        flow.receive_next = sequence;
        flow.acked_next = sequence;
        flow.receive_edge = sequence + flow.receive_limit.min(0xffff);
        flow.window_sequence = sequence;
        let mut mss = mss.min(flow.mss);
        let mut offer = Offer::default();
        if let Some(timestamps) = arrival.options.timestamps {
            offer = cookies::decode_timestamp(timestamps.echo);
            flow.flags.set(Flags::TIMESTAMPS);
            flow.timestamp_recent = timestamps.value;
            mss = mss.saturating_sub(TIMESTAMPS_LEN).max(MIN_MSS - TIMESTAMPS_LEN);
        }
        flow.mss = mss;
        flow.flags.put(Flags::SACK, offer.sack_permitted);
        flow.flags.put(Flags::ECN, offer.ecn);
        flow.take_scale(offer.window_scale);
        flow.congestion.set_window(self.initial_window(&flow.tuple, u32::from(mss)));
        Some(flow)
    }

    /// Takes the options and the initial sequence number of a SYN (RFC 9293 section 3.7.1, RFC 7323, RFC 2018, RFC 3168).
    fn learn_from_syn(&self, now: Instant, flow: &mut Flow, arrival: &Arrival<'_>) {
        let (segment, options) = (&arrival.segment, arrival.options);
        flow.receive_next = arrival.sequence() + 1;
        flow.acked_next = flow.receive_next;
        // The SYN's answer offers an unscaled window (RFC 7323 section 2.2).
        flow.receive_edge = flow.receive_next + flow.receive_limit.min(0xffff);
        let default = if flow.tuple.is_v4() { DEFAULT_MSS } else { DEFAULT_MSS_V6 };
        // What the link takes, or the owner wants.
        let mut mss = options.mss.unwrap_or(default).max(MIN_MSS).min(flow.mss);
        if let Some(timestamps) = options.timestamps
            && self.config.timestamps
        {
            flow.flags.set(Flags::TIMESTAMPS);
            flow.timestamp_recent = timestamps.value;
            flow.timestamp_recent_at = now.tick();
            // RFC 6691: the option's bytes are not in the MSS.
            mss = mss.saturating_sub(TIMESTAMPS_LEN).max(MIN_MSS - TIMESTAMPS_LEN);
        }
        flow.mss = mss;
        path_mtu::hold_to_segment(flow);
        // RFC 2018 section 2.
        flow.flags.put(Flags::SACK, self.config.sack && options.sack_permitted);
        flow.take_scale(self.scale_of(options));
        // RFC 3168 section 6.1.1: a SYN asks with ECE and CWR, its answer agrees with ECE alone.
        let flags = segment.flags();
        let asked = flags.contains(TcpFlags::ECE | TcpFlags::CWR) && self.config.ecn != Ecn::Off;
        let agreed = flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR);
        flow.flags.put(
            Flags::ECN,
            if flags.contains(TcpFlags::ACK) {
                agreed && self.config.ecn == Ecn::Ask && flow.flags.has(Flags::ECN)
            } else {
                asked
            },
        );
        flow.send_window = u32::from(segment.window());
        flow.send_window_max = flow.send_window;
        flow.window_sequence = arrival.sequence();
        flow.congestion.set_window(self.initial_window(&flow.tuple, u32::from(mss)));
    }
}

impl<O: Owner> Turn<'_, O> {
    /// RFC 9293 section 3.10.7.3.
    pub(crate) fn syn_sent(&mut self, arrival: &Arrival<'_>) -> Verdict {
        let segment = &arrival.segment;
        let flags = segment.flags();
        let has_ack = flags.contains(TcpFlags::ACK);
        let flow = &mut *self.flow;
        let acknowledgment = arrival.acknowledgment();
        let acceptable =
            before(flow.send_una, acknowledgment) && at_or_before(acknowledgment, flow.send_next);
        if has_ack && !acceptable && !(flow.all_acknowledged() && acknowledgment == flow.send_una + 1) {
            self.shared.counters.drop_bad_ack += 1;
            if !flags.contains(TcpFlags::RST) {
                self.shared.answer_with_reset(arrival);
                // The peer still knows an older connection (RFC 9293 section 3.5.1), which the reset ends: the SYN has its chance
                // behind it, once, without waiting for the timer. Only the first SYN is timed.
                if self.flow.flags.take(Flags::TIMED) {
                    self.flow.flags.set(Flags::SYN_WANTED);
                }
            }
            return Verdict::Keep;
        }
        if flags.contains(TcpFlags::RST) {
            if has_ack && !flow.all_acknowledged() {
                self.shared.counters.resets_received += 1;
                return Verdict::End(Some(Failure::Refused));
            }
            self.shared.counters.drop_bad_ack += 1;
            return Verdict::Keep;
        }
        if !flags.contains(TcpFlags::SYN) || (has_ack && flow.all_acknowledged()) {
            self.shared.counters.drop_bad_ack += 1;
            return Verdict::Keep;
        }
        self.shared.learn_from_syn(self.now, flow, arrival);
        let config = &self.shared.config;
        if flow.flags.has(Flags::NO_NEXT_HOP) || config.alone || config.loopback {
            // Where a kernel shares the link, it has said where the peer is; else whoever answers is there.
            flow.next_hop = arrival.next_hop;
        }
        self.shared.release_from_resolution(self.id.0, flow);
        if !has_ack {
            // Simultaneous open (RFC 9293 section 3.5, figure 7).
            flow.state = State::SynReceived;
            flow.flags.set(Flags::SYN_WANTED);
            // Nothing of RFC 7413 is left: what was not acknowledged waits for the end of the handshake.
            flow.flags.clear(Flags::FAST_OPEN);
            return Verdict::Keep;
        }
        self.establish();
        self.flow.flags.set(Flags::ACK_NOW);
        self.flow.flags.set(Flags::SEND_WANTED);
        self.shared.counters.connects += 1;
        if !self.flow.flags.has(Flags::DETACHED) {
            self.owner.event(self.id, Event::Connected);
        }
        self.fast_open_answered(arrival);
        if segment.payload().is_empty() && !flags.contains(TcpFlags::FIN) {
            return Verdict::Keep;
        }
        self.text_of_answer(arrival)
    }

    /// What the answer to our SYN says of Fast Open (RFC 7413 section 4.2.1).
    fn fast_open_answered(&mut self, arrival: &Arrival<'_>) {
        let (client, server) = (self.flow.tuple.local.ip(), self.flow.tuple.remote());
        // Not any more once the SYN went again without the option.
        let asked = self.flow.flags.take(Flags::FAST_OPEN);
        let cookie = arrival.options.fast_open.and_then(|given| Cookie::new(given.cookie()));
        if asked && let Some(cookie) = cookie {
            let mss = arrival.options.mss.unwrap_or(DEFAULT_MSS);
            self.shared.servers.learned(self.now, client, server.ip(), cookie, mss);
        }
        if self.flow.all_acknowledged() {
            return;
        }
        if before(self.flow.send_una, arrival.acknowledgment()) {
            self.shared.servers.worked(client, server);
            self.flow.extra.get_or_insert_default().syn_data = true;
            // Never a verdict: no FIN was sent.
            let _ = self.acknowledge(arrival);
        } else if asked && cookie.is_none() {
            // RFC 7413 section 4.1.3.1: a negative response.
            self.shared.servers.refused(self.now, client, server);
        }
        if !self.flow.all_acknowledged() {
            // The server did not take the data: it goes again at once.
            let una = self.flow.send_una;
            self.flow.recovery_or_new(self.shared.config.bounds()).lose_all_flying(una);
        }
    }

    /// A SYN came with a cookie of ours and data (RFC 7413 section 4.2.2): the owner has both before the handshake is done.
    fn opened_fast(&mut self, arrival: &Arrival<'_>) {
        self.shared.counters.fast_opens_accepted += 1;
        self.flow.flags.set(Flags::FAST_OPEN);
        self.flow.extra.get_or_insert_default().syn_data = true;
        self.announce();
        let data = arrival.segment.payload();
        let room = distance(self.flow.receive_next, self.flow.receive_edge) as usize;
        self.deliver(&data[..data.len().min(room)]);
    }

    /// Tells the owner of a connection that a peer opened.
    fn announce(&mut self) {
        self.shared.listeners.established(self.flow.listener);
        self.flow.flags.set(Flags::UNACCEPTED);
        self.flow.flags.clear(Flags::RELEASED);
        self.shared.counters.accepts += 1;
        self.owner.event(self.id, Event::Incoming { listener: ListenerId(self.flow.listener) });
        self.owner.acted(self.id, Act::Came { local: self.flow.tuple.local.ip() });
    }

    /// The SYN was acknowledged.
    fn establish(&mut self) {
        let tick = self.tick();
        let flow = &mut *self.flow;
        flow.state = State::Established;
        flow.send_una += 1;
        if flow.flags.take(Flags::TIMED) {
            flow.rtt.sample(self.now.moment().since(flow.timed_at));
            if flow.listener == NO_LISTENER {
                self.owner.acted(self.id, Act::Measured);
            }
        } else if flow.retries > 0 {
            flow.rtt.syn_timed_out();
        }
        flow.retries = 0;
        flow.backoff = 0;
        flow.retransmit_at = Deadline::NEVER;
        // FAST_OPEN_COOKIE was the same bit.
        flow.flags.clear_all(&[Flags::SYN_WANTED, Flags::PINGPONG]);
        if let Some(settings) = flow.extra.as_mut().and_then(|extra| extra.settings.as_mut()) {
            settings.unanswered_since = Deadline::NEVER;
        }
        if flow.flags.has(Flags::KEEP_ALIVE) {
            flow.restart_keep_alive(tick);
        }
        if flow.received > 0 && flow.window_is_worth_telling() {
            // The owner consumed what came with the SYN after its answer went out.
            flow.flags.set(Flags::ACK_NOW);
        }
        flow.receive_edge = later(flow.receive_edge, flow.possible_edge());
    }

    /// SYN-RECEIVED became ESTABLISHED. A verdict, if the flow does not go on.
    pub(crate) fn handshake_done(&mut self) -> Option<Verdict> {
        if self.flow.listener == NO_LISTENER {
            // A simultaneous open.
            self.establish();
            self.resume();
            self.shared.counters.connects += 1;
            if !self.flow.flags.has(Flags::DETACHED) {
                self.owner.event(self.id, Event::Connected);
            }
            return None;
        }
        if !self.flow.flags.has(Flags::FAST_OPEN) && !self.shared.listeners.is_open(self.flow.listener) {
            self.flow.flags.set(Flags::RESET_WANTED);
            return Some(Verdict::Keep);
        }
        if !self.flow.flags.has(Flags::FAST_OPEN)
            && self.shared.listeners.accept_queue_is_full(self.flow.listener)
        {
            // The acknowledgment never came: the SYN's answer goes again, and by the peer's next one there may be room
            // (tcp_v4_syn_recv_sock() in Linux's net/ipv4/tcp_ipv4.c).
            self.shared.counters.drop_backlog += 1;
            return Some(Verdict::Keep);
        }
        if self.flow.flags.take(Flags::HALF_OPEN) {
            self.shared.listeners.half_open_ended(self.flow.listener);
        }
        self.establish();
        if self.flow.flags.take(Flags::FAST_OPEN) {
            self.shared.listeners.fast_open_ended(self.flow.listener);
            self.resume();
        } else {
            self.announce();
        }
        None
    }

    /// What the owner wanted to send during the handshake, and what was sent and may be lost.
    fn resume(&mut self) {
        self.flow.flags.set(Flags::SEND_WANTED);
        if !self.flow.all_acknowledged() {
            self.start_retransmission();
        }
    }
}
