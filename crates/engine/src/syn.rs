//! Our SYN, and our answer to one: what they offer.

use overfly_wire::ip;
use overfly_wire::tcp::{FastOpen, Flags as TcpFlags, Options, Timestamps};

use crate::config::Ecn;
use crate::fastopen::Opening;
use crate::flow::{Flags, Flow, State};
use crate::sequence::distance;
use crate::shared::Shared;
use crate::time::Instant;
use crate::transmit::Outgoing;

/// RFC 9293 section 3.1: what the data offset leaves room for.
const MAX_OPTIONS_LEN: u16 = 40;

impl Shared {
    /// A SYN offers every option; its answer those that were offered (RFC 7323 sections 2.2 and 3.2, RFC 2018 section 2).
    pub(crate) fn syn(&mut self, now: Instant, flow: &mut Flow) -> Outgoing {
        let passive = flow.state == State::SynReceived;
        let mut flags = if passive { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN };
        if passive {
            if flow.flags.has(Flags::ECN) {
                flags |= TcpFlags::ECE;
            }
        } else {
            // RFC 3168 section 6.1.1.1: a SYN that may have been lost because of its flags goes without them.
            let ask = self.config.ecn == Ecn::Ask && flow.all_acknowledged();
            flow.flags.put(Flags::ECN, ask);
            if ask {
                flags |= TcpFlags::ECE | TcpFlags::CWR;
            }
        }
        let wants_timestamps =
            if passive { flow.flags.has(Flags::TIMESTAMPS) } else { self.config.timestamps };
        let mut options = Options {
            mss: Some(self.offered_segment(flow)),
            window_scale: (flow.receive_shift > 0).then_some(flow.receive_shift),
            sack_permitted: if passive { flow.flags.has(Flags::SACK) } else { self.config.sack },
            timestamps: wants_timestamps
                .then(|| Timestamps { value: self.clock(now.tick(), flow), echo: flow.timestamp_recent }),
            ..Options::NONE
        };
        // Never scaled (RFC 7323 section 2.2).
        let window = match passive {
            true => distance(flow.receive_next, flow.receive_edge),
            false => flow.receive_limit,
        };
        let window = window.min(0xffff) as u16;
        let mut length = 0;
        if passive && flow.flags.has(Flags::FAST_OPEN_COOKIE) {
            options.fast_open =
                FastOpen::with_cookie(&self.fast_open.make(flow.tuple.remote.ip(), flow.tuple.local.ip()));
        } else if !passive && flow.flags.has(Flags::FAST_OPEN) {
            length = self.fast_open_syn(now, flow, &mut options);
        }
        Outgoing { sequence: flow.send_una, flags, options, length, window, ecn: ip::Ecn::NotEct }
    }

    /// What our MSS option says (RFC 6691 section 2, RFC 9293 section 3.7.1): what the link takes, or less if the owner wants.
    fn offered_segment(&self, flow: &Flow) -> u16 {
        let wanted = match flow.state {
            State::SynSent => flow.mss,
            // The flow's own is by now what the peer takes.
            _ => self.listeners.inherited(flow.listener).max_segment,
        };
        let advertised = self.config.route(&flow.tuple).map_or(0, |route| route.advertised_segment);
        let least = self.largest_segment(&flow.tuple).min(wanted);
        if advertised == 0 { least } else { least.min(advertised) }
    }

    /// The Fast Open option of our SYN, and how much data goes with it (RFC 7413 section 4.2.1).
    fn fast_open_syn(&mut self, now: Instant, flow: &mut Flow, options: &mut Options) -> u32 {
        let (client, server) = (flow.tuple.local.ip(), flow.tuple.remote());
        if !flow.all_acknowledged() {
            // Section 4.1.3.1: what was lost may have been lost because of the option.
            self.servers.refused(now, client, server);
            flow.flags.clear(Flags::FAST_OPEN);
            return 0;
        }
        match self.servers.opening(now, client, server) {
            Opening::Request if self.config.fast_open_client_without_cookie => {
                let segment = self.largest_segment(&flow.tuple);
                let room = u64::from(segment.saturating_sub(MAX_OPTIONS_LEN).min(flow.mss));
                flow.promised.min(room) as u32
            }
            Opening::Data { cookie, mss } => {
                options.fast_open = FastOpen::with_cookie(cookie.as_bytes());
                let segment = mss.min(self.largest_segment(&flow.tuple));
                // Nor more than the owner's largest segment: a link must not cut a SYN.
                let room = u64::from(segment.saturating_sub(MAX_OPTIONS_LEN).min(flow.mss));
                flow.promised.min(room) as u32
            }
            Opening::Request => {
                options.fast_open = Some(FastOpen::REQUEST);
                0
            }
            Opening::Plain => {
                flow.flags.clear(Flags::FAST_OPEN);
                0
            }
        }
    }
}
