//! A player's buffer: fills, then drains by ticks; asks for more below its watermark; has failed when it runs dry.
//!
//! The model is that of a video player which reads its socket only while its buffer has room. Bytes that arrive while it does
//! not read stay where they are, and fill the connection's receive window: the server is held back by nothing else.

/// What all buffers of a run have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes that the buffer holds.
    pub(crate) capacity: u64,
    /// Below so many bytes, more is wanted.
    pub(crate) watermark: u64,
    /// Bytes that one tick takes.
    pub(crate) drain: u64,
}

/// What a player does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The first filling: nothing drains.
    Filling,
    /// Drains, and has enough.
    Content,
    /// Drains, and reads.
    Hungry,
    /// Ran dry.
    Dropped,
}

/// What a tick led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tick {
    /// Nothing.
    Quiet,
    /// More is wanted from now on. So many bytes that waited were taken at once.
    Hungry { taken: u64 },
    /// The buffer ran dry: the stream is over.
    Underrun,
}

/// One stream's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer {
    level: u64,
    /// Content that arrived while nothing was read.
    waiting: u64,
    stage: Stage,
}

impl Buffer {
    /// Empty, and to be filled.
    pub(crate) const EMPTY: Buffer = Buffer { level: 0, waiting: 0, stage: Stage::Filling };

    /// Bytes in it.
    pub(crate) fn level(&self) -> u64 {
        self.level
    }

    /// Bytes that arrived and have no place yet.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The socket is read, and another response would be asked for.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.stage, Stage::Filling | Stage::Hungry)
    }

    /// The first filling is not over.
    #[cfg(test)]
    pub(crate) fn is_filling(&self) -> bool {
        self.stage == Stage::Filling
    }

    /// How many more bytes would be read now.
    pub(crate) fn room(&self, shape: &Shape) -> u64 {
        if self.is_reading() { shape.capacity - self.level } else { 0 }
    }

    /// Content arrived. Returns how much of it was read; the rest waits. True if this ended the first filling.
    pub(crate) fn receive(&mut self, bytes: u64, shape: &Shape) -> (u64, bool) {
        let taken = bytes.min(self.room(shape));
        self.waiting += bytes - taken;
        (taken, self.read(taken, shape))
    }

    /// Reads bytes for which there is room. True if this ended the first filling.
    fn read(&mut self, bytes: u64, shape: &Shape) -> bool {
        self.level += bytes;
        let filled = self.is_reading() && self.level == shape.capacity;
        let first = filled && self.stage == Stage::Filling;
        if filled {
            self.stage = Stage::Content;
        }
        first
    }

    /// Half a second of video has been watched (or whatever the tick is).
    pub(crate) fn tick(&mut self, shape: &Shape) -> Tick {
        let Some(level) = self.level.checked_sub(shape.drain) else {
            self.stage = Stage::Dropped;
            return Tick::Underrun;
        };
        self.level = level;
        if level >= shape.watermark || self.stage != Stage::Content {
            return Tick::Quiet;
        }
        self.stage = Stage::Hungry;
        let taken = self.waiting.min(self.room(shape));
        self.waiting -= taken;
        self.read(taken, shape);
        Tick::Hungry { taken }
    }

    /// The connection is another one: what waited in the old one is lost.
    pub(crate) fn lose_waiting(&mut self) {
        self.waiting = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHAPE: Shape = Shape { capacity: 1000, watermark: 500, drain: 100 };

    #[test]
    fn a_players_life() {
        let mut buffer = Buffer::EMPTY;
        assert_eq!(buffer.receive(999, &SHAPE), (999, false));
        assert!(buffer.is_filling() && buffer.room(&SHAPE) == 1);
        assert_eq!(buffer.receive(51, &SHAPE), (1, true), "50 wait in the connection");
        assert_eq!((buffer.level(), buffer.waiting(), buffer.is_reading()), (1000, 50, false));
        for level in [900, 800, 700, 600, 500] {
            assert_eq!((buffer.tick(&SHAPE), buffer.level()), (Tick::Quiet, level));
        }
        assert_eq!(buffer.tick(&SHAPE), Tick::Hungry { taken: 50 });
        assert_eq!((buffer.level(), buffer.waiting(), buffer.is_reading()), (450, 0, true));
        assert_eq!(buffer.tick(&SHAPE), Tick::Quiet, "it reads already");
        assert_eq!(buffer.receive(700, &SHAPE), (650, false));
        assert_eq!((buffer.level(), buffer.waiting(), buffer.is_reading()), (1000, 50, false));
        for _ in 0..10 {
            buffer.tick(&SHAPE);
        }
        assert_eq!(buffer.level(), 50, "nothing more came");
        assert_eq!(buffer.tick(&SHAPE), Tick::Underrun);
        assert_eq!((buffer.receive(10, &SHAPE), buffer.is_reading()), ((0, false), false));
    }

    #[test]
    fn more_may_wait_than_there_is_room_for() {
        let shape = Shape { capacity: 100, watermark: 100, drain: 10 };
        let mut buffer = Buffer::EMPTY;
        buffer.receive(500, &shape);
        assert_eq!(buffer.tick(&shape), Tick::Hungry { taken: 10 });
        assert_eq!((buffer.level(), buffer.waiting(), buffer.is_reading()), (100, 390, false));
    }

    /// What happens to a player, one after the other.
    #[derive(Debug, Clone, Copy)]
    enum Happening {
        Arrives(u64),
        Tick,
    }

    proptest! {
        /// Against the same rules put differently: as sums over the whole past.
        #[test]
        fn sums_over_the_past_say_the_same(
            capacity in 1..2000_u64,
            share in 0..=100_u64,
            drain in 0..300_u64,
            happenings in prop::collection::vec(
                prop_oneof![(0..400_u64).prop_map(Happening::Arrives), Just(Happening::Tick)], 0..200),
        ) {
            let shape = Shape { capacity, watermark: capacity * share / 100, drain };
            let mut buffer = Buffer::EMPTY;
            // Sums: arrived, read and watched; whether it reads, and whether it has been full.
            let (mut arrived, mut read, mut watched) = (0, 0, 0);
            let (mut reads, mut full_once) = (true, false);
            for happening in happenings {
                let mut dry = false;
                match happening {
                    Happening::Arrives(bytes) => {
                        arrived += bytes;
                        buffer.receive(bytes, &shape);
                    }
                    Happening::Tick if !full_once => continue,
                    Happening::Tick => {
                        dry = read - watched < drain;
                        if !dry {
                            watched += drain;
                            reads |= read - watched < shape.watermark;
                        }
                        prop_assert_eq!(buffer.tick(&shape) == Tick::Underrun, dry);
                    }
                }
                if dry {
                    break;
                }
                if reads {
                    read = arrived.min(watched + capacity);
                    full_once |= read == watched + capacity;
                    reads = read < watched + capacity;
                }
                prop_assert_eq!((buffer.level(), buffer.waiting()), (read - watched, arrived - read));
                prop_assert_eq!((buffer.is_reading(), buffer.is_filling()), (reads, !full_once));
            }
        }
    }
}
