//! How long a stack waits for another one's turn on the fill ring.

use core::time::Duration;
use std::time::Instant;

use super::fill::Turn;

/// A turn takes less than 10 µs: a stack that has it for so long does not run. One that has only lost its processor for a while
/// loses no more than the turn.
pub(crate) const TURN_MAX: Duration = Duration::from_millis(1);

/// The turn that was last seen in other hands, and when it was first seen.
#[derive(Debug, Default)]
pub(crate) struct TurnWait(Option<(Turn, Instant)>);

impl TurnWait {
    /// Whether `seen`, which was seen just now, has been held for too long.
    #[cold]
    pub(crate) fn is_over(&mut self, seen: Turn) -> bool {
        match self.0 {
            Some((turn, since)) if turn == seen => seen.is_held() && since.elapsed() >= TURN_MAX,
            _ => {
                self.0 = Some((seen, Instant::now()));
                false
            }
        }
    }
}
