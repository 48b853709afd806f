//! What acknowledgments and timers show of what was in flight.

use crate::sequence::Sequence;
use crate::time::{Micros, Moment};

/// The most recently sent of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Latest {
    pub(crate) end: Sequence,
    /// Where they were sent once, before the scoreboard was made: not earlier than they were.
    pub(crate) sent_at: Moment,
    /// They were sent more than once.
    pub(crate) again: bool,
}

/// What an acknowledgment brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Delivered {
    /// Bytes that left the network: acknowledged, or newly in SACK blocks.
    pub(crate) bytes: u32,
    /// A duplicate was reported (RFC 2883).
    pub(crate) duplicate: bool,
    /// A round trip that the newly delivered bytes measured.
    pub(crate) rtt: Option<Micros>,
}

/// What RACK found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Losses {
    /// Bytes newly taken as lost.
    pub(crate) bytes: u32,
    /// Ranges of them that do not touch.
    pub(crate) ranges: u32,
    /// The last of them.
    pub(crate) latest: Option<Latest>,
    /// When to look again.
    pub(crate) again_after: Option<Micros>,
}
