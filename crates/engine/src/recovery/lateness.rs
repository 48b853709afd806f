//! How late a segment may be before it is taken as lost.

/// What a flow has learnt of reordering on its path (RFC 8985 section 6.2 step 4), between scoreboards too; one byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lateness {
    /// Quarters of the least round trip that a segment may be late, in the low half; recoveries for which that holds, in the
    /// high half.
    packed: u8,
}

impl Lateness {
    const MOST: u8 = 15;

    pub(crate) const fn new() -> Self {
        Self { packed: 1 }
    }

    pub(super) const fn quarters(self) -> u32 {
        (self.packed & 0xf) as u32
    }

    /// A repetition was for nothing: later is allowed, for sixteen recoveries (this one and fifteen).
    pub(super) fn grow(&mut self) {
        let quarters = (self.packed & 0xf).saturating_add(1).min(Self::MOST);
        self.packed = Self::MOST << 4 | quarters;
    }

    pub(super) fn recovered(&mut self) {
        let left = self.packed >> 4;
        self.packed = if left == 0 { 1 } else { (left - 1) << 4 | (self.packed & 0xf) };
    }
}
