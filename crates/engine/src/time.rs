//! Time as the engine sees it: the caller passes it in.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: microseconds since an epoch that the caller chooses once per engine, never going back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The point `micros` microseconds after the caller's epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the caller's epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// What of it is compared within a round trip, in half the memory.
    pub(crate) const fn moment(self) -> Moment {
        Moment(self.0 as u32)
    }

    /// The timer wheel's and the timestamp option's unit: 1.024 ms, which RFC 7323 section 5.4 allows (1 ms to 1 s).
    pub(crate) const fn tick(self) -> Tick {
        Tick((self.0 >> TICK_SHIFT) as u32)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration.as_micros() as u64)
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Saturates at zero.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in microseconds, 71 minutes at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Micros(u32);

impl Micros {
    pub(crate) const ZERO: Self = Self(0);

    pub(crate) const fn new(micros: u32) -> Self {
        Self(micros)
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    pub(crate) const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Zero if `other` is longer.
    pub(crate) const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// The low 32 bits of an [`Instant`]: they wrap after 71 minutes, and are compared as sequence numbers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Moment(u32);

impl Moment {
    pub(crate) const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// From `earlier` to this one.
    pub(crate) const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.wrapping_sub(earlier.0))
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

/// log2 of a tick in microseconds.
pub(crate) const TICK_SHIFT: u32 = 10;

/// A count of 1.024 ms ticks that wraps after 50 days; compared as sequence numbers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Tick(pub(crate) u32);

impl Tick {
    pub(crate) const fn after(self, ticks: Ticks) -> Self {
        Self(self.0.wrapping_add(ticks.0))
    }

    /// So long before.
    pub(crate) const fn ago(self, ticks: Ticks) -> Self {
        Self(self.0.wrapping_sub(ticks.0))
    }

    pub(crate) const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// From `earlier` to this one.
    pub(crate) const fn since(self, earlier: Self) -> Ticks {
        Ticks(self.0.wrapping_sub(earlier.0))
    }
}

/// A length of time in ticks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Ticks(pub(crate) u32);

impl Ticks {
    pub(crate) const ZERO: Self = Self(0);
    pub(crate) const ONE: Self = Self(1);

    /// Rounded up, so that a timer never fires early; 12 days at most, so that ticks compare.
    pub(crate) const fn from_micros(micros: u64) -> Self {
        let ticks = micros.div_ceil(1 << TICK_SHIFT);
        Self(if ticks > MAX_TICKS as u64 { MAX_TICKS } else { ticks as u32 })
    }
}

impl From<Micros> for Ticks {
    #[inline]
    fn from(time: Micros) -> Self {
        Self::from_micros(time.0.into())
    }
}

impl From<Duration> for Ticks {
    #[inline]
    fn from(time: Duration) -> Self {
        Self::from_micros(time.as_micros() as u64)
    }
}

const MAX_TICKS: u32 = 1 << 30;

/// Whether a peer's timestamp is older than another of its (RFC 7323 section 5.2).
#[inline]
pub(crate) const fn is_older(timestamp: u32, other: u32) -> bool {
    (timestamp.wrapping_sub(other) as i32) < 0
}

/// When a timer fires, or never; four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Deadline(u32);

impl Deadline {
    pub(crate) const NEVER: Self = Self(0);

    /// Tick zero stands for never; the tick after it is near enough.
    pub(crate) const fn at(tick: Tick) -> Self {
        Self(if tick.0 == 0 { 1 } else { tick.0 })
    }

    pub(crate) const fn is_set(self) -> bool {
        self.0 != 0
    }

    pub(crate) const fn tick(self) -> Option<Tick> {
        if self.0 == 0 { None } else { Some(Tick(self.0)) }
    }

    pub(crate) const fn is_due(self, now: Tick) -> bool {
        self.0 != 0 && !now.is_before(Tick(self.0))
    }

    /// The earlier of the two that are set.
    pub(crate) const fn earlier(self, other: Self) -> Self {
        if self.0 == 0 || (other.0 != 0 && Tick(other.0).is_before(Tick(self.0))) { other } else { self }
    }
}
