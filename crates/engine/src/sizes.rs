//! How large segments and windows are to begin with.

use crate::config::Config;
use crate::congestion::initial_window;
use crate::shared::Shared;
use crate::tuple::Tuple;

impl Shared {
    /// Payload of the largest segment without options that the link and the route take to a destination of the tuple's family: what we
    /// say in the MSS option (RFC 6691 section 2, RFC 9293 section 3.7.1).
    pub(crate) fn largest_segment(&self, tuple: &Tuple) -> u16 {
        let (headers, least) = if tuple.is_v4() { (40, 68) } else { (60, 1280) };
        let mtu = match self.config.route(tuple).map_or(0, |route| route.mtu) {
            0 => self.config.mtu,
            mtu => mtu.clamp(least, self.config.mtu),
        };
        mtu - headers
    }

    pub(crate) fn initial_window(&self, tuple: &Tuple, mss: u32) -> u32 {
        let segments = self.config.route(tuple).map_or(0, |route| route.initial_window);
        match (segments, self.config.initial_window) {
            (0, 0) => initial_window(mss),
            (0, bytes) => bytes.max(mss),
            (segments, _) => segments.saturating_mul(mss),
        }
    }
}

/// The least window that can be told, with half of it taken, by a shift (RFC 7323 section 2.3).
pub(crate) fn least_window(shift: u8) -> u32 {
    2 << shift
}

/// The shift that we offer: the least that lets 16 bits tell the receive window (RFC 7323 section 2.2), or what the configuration
/// says. At least 1: a flow with 0 is one that does not scale, or whose peer does not, and the option is not sent.
pub(crate) fn window_shift(config: &Config) -> u8 {
    if !config.window_scaling {
        return 0;
    }
    let mut shift = config.window_scale.max(1);
    while config.receive_window >> shift > 0xffff {
        shift += 1;
    }
    shift
}
