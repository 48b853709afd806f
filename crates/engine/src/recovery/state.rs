//! What congestion control is doing.

/// Linux's `tcp_ca_state`, with its numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum CongestionState {
    /// Nothing is wrong.
    #[default]
    Open = 0,
    /// Duplicate acknowledgments or SACKs, no loss yet.
    Disorder = 1,
    /// The window was reduced because of ECN.
    Reduced = 2,
    /// Fast recovery.
    Recovery = 3,
    /// After a retransmission timeout.
    Loss = 4,
}
