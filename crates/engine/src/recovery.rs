//! What became of the bytes in flight, once something went wrong: the SACK scoreboard (RFC 2018, 6675), RACK's loss detection
//! (RFC 8985), proportional rate reduction (RFC 6937), and NewReno (RFC 6582) where the peer has no SACK.
//!
//! A flow has no `Recovery` while its bytes are acknowledged in order: nothing is kept for each segment then. It is made at
//! the first sign of loss or reordering, with one run for all bytes in flight, and dropped when they have arrived. Bytes sent
//! before that count as sent when the flow last sent: never earlier than they were, so RACK may only be late, by less than
//! its reordering window.

mod found;
mod lateness;
mod state;

use std::collections::VecDeque;

use overfly_wire::tcp::Sacks;

pub(crate) use found::{Delivered, Latest, Losses};
pub(crate) use lateness::Lateness;
pub use state::CongestionState;

use crate::rtt::Rtt;
use crate::sequence::{Sequence, at_or_before, before, distance, earlier, later};
use crate::time::{Micros, Moment, is_older};

/// What a scoreboard holds at most (see [`crate::Config`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Runs: the cost of one acknowledgment is bounded by it. What a SACK would split further is taken as not received.
    pub(crate) runs: u16,
    /// Ranges sent again in one recovery whose duplicates are waited for: beyond, nothing is undone.
    pub(crate) repeated: u16,
}

/// Bytes of memory that a run takes.
pub(crate) const RANGE_BYTES: usize = size_of::<Run>();

/// Segments that arrived after a hole and make it a loss (RFC 6675 section 2's DupThresh).
const DUPLICATE_THRESHOLD: u32 = 3;

/// Bytes in flight that share a fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// The sequence number after the last byte; the run begins where the one before ends.
    end: Sequence,
    /// When it was last sent.
    sent_at: Moment,
    fate: Fate,
    /// It was sent more than once.
    again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// On its way, as far as we know.
    Flying,
    /// The receiver has it, out of order.
    Sacked,
    /// It must be sent again.
    Lost,
}

/// A tail loss probe that was sent (RFC 8985 section 7).
#[derive(Clone, Copy, Debug)]
struct Probe {
    end: Sequence,
    /// It repeated data: a DSACK for it says that nothing was lost.
    repeated: bool,
}

/// Sizes in bytes.
#[derive(Debug)]
pub(crate) struct Recovery {
    bounds: Bounds,
    runs: VecDeque<Run>,
    /// Runs as last told to who adds up those of all flows.
    counted: usize,
    /// Runs that a SACK may leave: what `bounds` and the budget of all flows allow.
    allowed: usize,
    state: CongestionState,
    /// RFC 6582's recover, RFC 6675's RecoveryPoint: SND.NXT when the window was reduced.
    recover: Sequence,
    sacked: u32,
    lost: u32,
    /// Bytes presumed to have arrived: a peer without SACK sent that many duplicates.
    presumed: u32,
    highest_sacked: Sequence,

    // RFC 8985 section 5.2.
    rack_sent_at: Moment,
    rack_end: Sequence,
    rack_rtt: Micros,
    rack_valid: bool,
    rack_again: bool,
    rack_advanced: bool,
    reordering_seen: bool,
    lateness: Lateness,
    dsack_round: Option<Sequence>,

    // RFC 6937 section 3.
    delivered: u32,
    sent: u32,
    flight_at_loss: u32,

    /// What was repeated because of a loss, and no duplicate of it was reported yet (RFC 3708 section 2).
    repeated: Vec<(Sequence, Sequence)>,
    /// More was repeated than `repeated` holds.
    repeated_more: bool,
    /// The timestamp of the first repetition (RFC 3522).
    first_repetition: Option<u32>,
    /// SND.NXT when recovery ended: once something beyond it is acknowledged, no duplicate from before it can arrive any more.
    ended_at: Option<Sequence>,
    probe: Option<Probe>,
}

impl Recovery {
    /// All of `[una, next)` is on its way, last sent at `sent_at`.
    pub(crate) fn new(
        una: Sequence,
        next: Sequence,
        sent_at: Moment,
        reordering_seen: bool,
        lateness: Lateness,
        bounds: Bounds,
    ) -> Self {
        let mut runs = VecDeque::new();
        if una != next {
            runs.push_back(Run { end: next, sent_at, fate: Fate::Flying, again: false });
        }
        Self {
            bounds,
            runs,
            counted: 0,
            allowed: usize::from(bounds.runs),
            state: CongestionState::Open,
            recover: una,
            sacked: 0,
            lost: 0,
            presumed: 0,
            highest_sacked: una,
            rack_sent_at: Moment::default(),
            rack_end: una,
            rack_rtt: Micros::ZERO,
            rack_valid: false,
            rack_again: false,
            rack_advanced: false,
            reordering_seen,
            lateness,
            dsack_round: None,
            delivered: 0,
            sent: 0,
            flight_at_loss: 0,
            repeated: Vec::new(),
            repeated_more: false,
            first_repetition: None,
            ended_at: None,
            probe: None,
        }
    }

    /// All flows together may have so many more runs.
    pub(crate) fn allow(&mut self, more: usize) {
        self.allowed = (self.counted + more).min(self.bounds.runs.into());
    }

    /// The runs as last counted.
    pub(crate) fn counted(&self) -> usize {
        self.counted
    }

    /// Counts the runs.
    pub(crate) fn count(&mut self) -> usize {
        self.counted = self.runs.len();
        self.counted
    }

    /// New bytes up to `next` were sent.
    pub(crate) fn sent_new(&mut self, next: Sequence, now: Moment, bytes: u32) {
        self.sent = self.sent.saturating_add(bytes);
        let full = self.runs.len() >= usize::from(self.bounds.runs);
        if let Some(last) = self.runs.back_mut()
            && last.fate == Fate::Flying
            && !last.again
            && (last.sent_at == now || full)
        {
            last.end = next;
            last.sent_at = now;
            return;
        }
        self.runs.push_back(Run { end: next, sent_at: now, fate: Fate::Flying, again: false });
    }

    /// Bytes that are in the network (RFC 6675 section 4's pipe), of `flight` bytes between SND.UNA and SND.NXT.
    pub(crate) fn pipe(&self, flight: u32) -> u32 {
        flight.saturating_sub(self.sacked + self.lost + self.presumed)
    }

    pub(crate) const fn state(&self) -> CongestionState {
        self.state
    }

    pub(crate) fn sacked(&self) -> u32 {
        self.sacked + self.presumed
    }

    /// Bytes from `una` on that were sent again and are on their way.
    pub(crate) fn repeating(&self, una: Sequence) -> u32 {
        let mut start = una;
        let mut bytes = 0;
        for run in &self.runs {
            if run.again && run.fate == Fate::Flying {
                bytes += distance(start, run.end);
            }
            start = run.end;
        }
        bytes
    }

    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    /// The most recently sent of what has arrived (RFC 8985 section 5.2's RACK.segment), if it has since this was last asked.
    pub(crate) fn take_latest(&mut self) -> Option<Latest> {
        let Self { rack_end: end, rack_sent_at: sent_at, rack_again: again, .. } = *self;
        core::mem::take(&mut self.rack_advanced).then_some(Latest { end, sent_at, again })
    }

    /// Everything below `una` has arrived; `from` is where SND.UNA was.
    pub(crate) fn acknowledged(
        &mut self,
        from: Sequence,
        una: Sequence,
        now: Moment,
        min_rtt: Micros,
    ) -> Delivered {
        if self.ended_at.is_some_and(|end| before(end, from)) {
            self.forget_repetitions();
        }
        let mut delivered = Delivered::default();
        let mut repeated = false;
        let mut start = from;
        while let Some(&run) = self.runs.front() {
            let end = earlier(una, run.end);
            let bytes = distance(start, end);
            match run.fate {
                Fate::Flying => {}
                Fate::Sacked => self.sacked -= bytes,
                Fate::Lost => self.lost -= bytes,
            }
            if bytes > 0 && run.fate != Fate::Sacked {
                delivered.bytes += bytes;
                repeated |= run.again;
                if run.fate == Fate::Flying || !run.again {
                    self.arrived(&run, end, now, min_rtt, &mut delivered);
                }
                if !run.again && before(end, self.highest_sacked) {
                    // RFC 8985 section 6.2 step 3: it came after what was sent later.
                    self.reordering_seen = true;
                }
            }
            start = end;
            if end != run.end {
                break;
            }
            self.runs.pop_front();
        }
        if repeated {
            // Karn's algorithm (RFC 6298 section 3): what waited behind a hole says nothing about the path.
            delivered.rtt = None;
        }
        // Duplicates without SACK stood for segments beyond SND.UNA; those below it are counted now.
        let presumed = self.presumed.min(delivered.bytes);
        self.presumed -= presumed;
        delivered.bytes -= presumed;
        self.highest_sacked = later(self.highest_sacked, una);
        delivered
    }

    /// RFC 8985 section 6.2 step 2: the most recently sent segment that was delivered.
    fn arrived(&mut self, run: &Run, end: Sequence, now: Moment, min_rtt: Micros, delivered: &mut Delivered) {
        let rtt = now.since(run.sent_at);
        if run.again {
            // It may have been the first copy that arrived.
            if rtt < min_rtt {
                return;
            }
        } else {
            delivered.rtt = Some(rtt.max(Micros::new(1)));
        }
        let newer = !self.rack_valid
            || self.rack_sent_at.is_before(run.sent_at)
            || (self.rack_sent_at == run.sent_at && before(self.rack_end, end));
        if newer {
            self.rack_valid = true;
            self.rack_sent_at = run.sent_at;
            self.rack_end = end;
            (self.rack_again, self.rack_advanced) = (run.again, true);
            self.rack_rtt = rtt;
        }
    }

    /// The SACK blocks of an acknowledgment of `una`; what lies outside `[una, next)` is ignored, but for a report of a
    /// duplicate (RFC 2883 section 4), which comes first.
    pub(crate) fn sacks(
        &mut self,
        blocks: &[(u32, u32)],
        una: Sequence,
        next: Sequence,
        now: Moment,
        min_rtt: Micros,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        // Ascending: the blocks of one acknowledgment say nothing of the order in which they arrived.
        let mut valid = [(Sequence::default(), Sequence::default()); Sacks::CAPACITY];
        let mut count = 0;
        let block = |&(left, right): &(u32, u32)| (Sequence::new(left), Sequence::new(right));
        for (index, (left, right)) in blocks.iter().map(block).take(valid.len()).enumerate() {
            if !before(left, right) {
                continue;
            }
            let duplicate = index == 0
                && (at_or_before(right, una)
                    || blocks.get(1).map(block).is_some_and(|(outer_left, outer_right)| {
                        at_or_before(outer_left, left) && at_or_before(right, outer_right)
                    }));
            if duplicate {
                delivered.duplicate = true;
                self.duplicate(left, right, una, next);
                continue;
            }
            // A block at SND.UNA contradicts the acknowledgment that brought it.
            if at_or_before(left, una) || before(next, right) {
                continue;
            }
            valid[count] = (left, right);
            count += 1;
        }
        valid[..count].sort_unstable_by_key(|&(left, _)| distance(una, left));
        for &(left, right) in &valid[..count] {
            self.sack(left, right, una, now, min_rtt, &mut delivered);
        }
        delivered
    }

    fn duplicate(&mut self, left: Sequence, right: Sequence, una: Sequence, next: Sequence) {
        if self.probe.is_some_and(|probe| probe.repeated && probe.end == right) {
            // RFC 8985 section 7.4.1: the probe was not needed.
            self.probe = None;
        }
        self.told_twice(left, right);
        // RFC 8985 section 6.2 step 4: the reordering window was too small, once a round trip.
        if self.dsack_round.is_none_or(|round| at_or_before(round, una)) {
            self.dsack_round = Some(next);
            self.lateness.grow();
        }
    }

    /// Takes `[left, right)` from what was repeated. What was not repeated was doubled by the network (RFC 3708 section 2).
    fn told_twice(&mut self, left: Sequence, right: Sequence) {
        let overlaps = |&(start, end): &(Sequence, Sequence)| before(left, end) && before(start, right);
        let Some(index) = self.repeated.iter().position(overlaps) else { return };
        let (start, end) = self.repeated.remove(index);
        if before(start, left) {
            self.repeated.push((start, left));
        }
        if before(right, end) {
            self.repeated.push((right, end));
        }
    }

    fn forget_repetitions(&mut self) {
        self.repeated = Vec::new();
        self.repeated_more = false;
        self.first_repetition = None;
        self.ended_at = None;
    }

    fn sack(
        &mut self,
        left: Sequence,
        right: Sequence,
        una: Sequence,
        now: Moment,
        min_rtt: Micros,
        delivered: &mut Delivered,
    ) {
        let mut start = una;
        let mut index = 0;
        while let Some(&run) = self.runs.get(index) {
            if at_or_before(right, start) {
                return;
            }
            let from = later(start, left);
            let to = earlier(right, run.end);
            if !before(from, to) || run.fate == Fate::Sacked {
                start = run.end;
                index += 1;
                continue;
            }
            let pieces = usize::from(start != from) + usize::from(to != run.end);
            if pieces > 0 && self.runs.len() + pieces > self.allowed {
                return;
            }
            if start != from {
                self.runs.insert(index, Run { end: from, ..run });
                index += 1;
            }
            let bytes = distance(from, to);
            if run.fate == Fate::Lost {
                self.lost -= bytes;
            }
            self.sacked += bytes;
            delivered.bytes += bytes;
            if run.fate == Fate::Flying || !run.again {
                self.arrived(&run, to, now, min_rtt, delivered);
            }
            if !run.again && before(to, self.highest_sacked) {
                self.reordering_seen = true;
            }
            self.highest_sacked = later(self.highest_sacked, to);
            let sacked = Run { end: to, fate: Fate::Sacked, ..run };
            if to == run.end {
                self.runs[index] = sacked;
            } else {
                self.runs.insert(index, sacked);
            }
            index = self.join(index);
            start = self.runs[index].end;
            index += 1;
        }
    }

    /// Makes the run at `index` one with a SACKed neighbour; returns where it stands now.
    fn join(&mut self, mut index: usize) -> usize {
        if index > 0 && self.runs[index - 1].fate == Fate::Sacked {
            self.runs[index - 1].end = self.runs[index].end;
            self.runs.remove(index);
            index -= 1;
        }
        if self.runs.get(index + 1).is_some_and(|next| next.fate == Fate::Sacked) {
            self.runs.remove(index);
        }
        index
    }

    /// A duplicate acknowledgment of a peer without SACK (RFC 5681 section 2): one segment of `flight` has arrived.
    pub(crate) fn duplicate_without_sack(&mut self, flight: u32, mss: u32) -> u32 {
        let room = flight.saturating_sub(self.lost + self.presumed + mss);
        let bytes = mss.min(room);
        self.presumed += bytes;
        bytes
    }

    /// RFC 5681 section 3.2: so many duplicates that the first segment must be lost.
    pub(crate) fn duplicates_mean_loss(&self, mss: u32) -> bool {
        self.presumed >= DUPLICATE_THRESHOLD * mss
    }

    /// Takes the first segment as lost (NewReno: RFC 6582 section 3.2).
    pub(crate) fn lose_first(&mut self, una: Sequence, mss: u32) -> u32 {
        let Some(&run) = self.runs.front() else { return 0 };
        if run.fate != Fate::Flying {
            return 0;
        }
        let end = una + distance(una, run.end).min(mss);
        self.split(0, una, end);
        self.runs[0].fate = Fate::Lost;
        let bytes = distance(una, end);
        self.lost += bytes;
        self.presumed = self.presumed.saturating_sub(bytes);
        bytes
    }

    /// Cuts the run at `index`, which begins at `start`, at `end`.
    fn split(&mut self, index: usize, start: Sequence, end: Sequence) {
        let run = self.runs[index];
        debug_assert!(before(start, end) && at_or_before(end, run.end));
        if end != run.end {
            self.runs.insert(index, Run { end, ..run });
        }
    }

    /// RFC 8985 section 6.2 step 4: how long a segment may be late.
    fn reordering_window(&self, rtt: &Rtt, mss: u32) -> Micros {
        if !self.reordering_seen
            && (self.state == CongestionState::Recovery
                || self.state == CongestionState::Loss
                || self.sacked >= DUPLICATE_THRESHOLD * mss)
        {
            return Micros::ZERO;
        }
        Micros::new(self.lateness.quarters() * (rtt.least().number() / 4)).min(rtt.smoothed())
    }

    /// RFC 8985 section 6.2 step 5: segments sent long enough before one that was delivered are lost.
    pub(crate) fn detect(&mut self, una: Sequence, now: Moment, rtt: &Rtt, mss: u32) -> Losses {
        let mut losses = Losses::default();
        if !self.rack_valid {
            return losses;
        }
        let window = self.reordering_window(rtt, mss);
        let mut start = una;
        let mut last_lost = None;
        for run in &mut self.runs {
            let began = start;
            start = run.end;
            if run.fate != Fate::Flying {
                continue;
            }
            let sent_before = run.sent_at.is_before(self.rack_sent_at)
                || (run.sent_at == self.rack_sent_at && at_or_before(run.end, self.rack_end));
            if !sent_before {
                continue;
            }
            let age = now.since(run.sent_at);
            let allowed = self.rack_rtt.saturating_add(window);
            if age >= allowed {
                run.fate = Fate::Lost;
                losses.bytes += distance(began, run.end);
                losses.ranges += u32::from(last_lost != Some(began));
                losses.latest = Some(Latest { end: run.end, sent_at: run.sent_at, again: run.again });
                last_lost = Some(run.end);
            } else {
                let left = allowed.saturating_sub(age);
                losses.again_after = Some(losses.again_after.map_or(left, |other| other.max(left)));
            }
        }
        self.lost += losses.bytes;
        losses
    }

    /// A retransmission timeout: everything that was not SACKed is taken as lost (RFC 6675 section 5.1). A receiver that
    /// SACKed the first byte and never acknowledged it, or does not get on though all that it misses was sent again, has
    /// dropped what it said (RFC 2018 section 8). `first`: of this byte.
    pub(crate) fn timed_out(&mut self, una: Sequence, next: Sequence, first: bool) {
        if !first || self.runs.front().is_some_and(|run| run.fate == Fate::Sacked) {
            for run in &mut self.runs {
                run.fate = Fate::Flying;
            }
            self.sacked = 0;
        }
        let mut start = una;
        self.lost = 0;
        for run in &mut self.runs {
            if run.fate != Fate::Sacked {
                run.fate = Fate::Lost;
                self.lost += distance(start, run.end);
            }
            start = run.end;
        }
        self.presumed = 0;
        self.probe = None;
        if self.state < CongestionState::Recovery {
            self.forget_repetitions();
        }
        self.state = CongestionState::Loss;
        self.recover = next;
    }

    /// The path takes smaller packets only: what was larger must be sent again (RFC 1191 section 6.4), and is not a sign of
    /// congestion.
    pub(crate) fn lose_all_flying(&mut self, una: Sequence) {
        let mut start = una;
        for run in &mut self.runs {
            if run.fate == Fate::Flying {
                run.fate = Fate::Lost;
                self.lost += distance(start, run.end);
            }
            start = run.end;
        }
    }

    /// The lost bytes, if they are one range: the first, and after the last.
    pub(crate) fn only_loss(&self, una: Sequence) -> Option<(Sequence, Sequence)> {
        let mut start = una;
        for run in &self.runs {
            if run.fate == Fate::Lost {
                return (self.lost == distance(start, run.end)).then_some((start, run.end));
            }
            start = run.end;
        }
        None
    }

    /// The first lost bytes, at most `mss` of them: (sequence number, length).
    pub(crate) fn next_lost(&self, una: Sequence, mss: u32) -> Option<(Sequence, u32)> {
        if self.lost == 0 {
            return None;
        }
        let mut start = una;
        let mut found: Option<(Sequence, u32)> = None;
        for run in &self.runs {
            match (&mut found, run.fate) {
                (None, Fate::Lost) => found = Some((start, distance(start, run.end))),
                (Some((_, length)), Fate::Lost) => *length += distance(start, run.end),
                (Some(_), _) => break,
                (None, _) => {}
            }
            if found.is_some_and(|(_, length)| length >= mss) {
                break;
            }
            start = run.end;
        }
        found.map(|(sequence, length)| (sequence, length.min(mss)))
    }

    /// `[sequence, end)` was sent again; `timestamp` is the TSval that it carried.
    pub(crate) fn sent_again(
        &mut self,
        una: Sequence,
        sequence: Sequence,
        end: Sequence,
        now: Moment,
        timestamp: u32,
    ) {
        let bytes = distance(sequence, end);
        self.sent = self.sent.saturating_add(bytes);
        if self.state >= CongestionState::Recovery {
            // Only what was repeated because of a loss: not a probe, nor what a smaller path MTU asked for.
            self.first_repetition.get_or_insert(timestamp);
            let room = self.repeated.len() < usize::from(self.bounds.repeated);
            match self.repeated.last_mut() {
                Some((_, last)) if *last == sequence => *last = end,
                _ if room => self.repeated.push((sequence, end)),
                _ => self.repeated_more = true,
            }
        }
        let mut start = una;
        let mut index = 0;
        while let Some(&run) = self.runs.get(index) {
            if at_or_before(end, start) {
                break;
            }
            if before(start, run.end) && at_or_before(run.end, sequence) {
                start = run.end;
                index += 1;
                continue;
            }
            let (from, to) = (later(start, sequence), earlier(end, run.end));
            if from != start {
                self.split(index, start, from);
                index += 1;
            }
            self.split(index, from, to);
            let run = &mut self.runs[index];
            if run.fate == Fate::Lost {
                self.lost -= distance(from, to);
            }
            if run.fate != Fate::Sacked {
                run.fate = Fate::Flying;
                run.again = true;
                run.sent_at = now;
            }
            start = to;
            index += 1;
            if index >= 2 && self.runs[index - 2].fate == Fate::Flying && {
                let (a, b) = (self.runs[index - 2], self.runs[index - 1]);
                (a.again, a.sent_at, a.fate) == (b.again, b.sent_at, b.fate)
            } {
                self.runs[index - 2].end = to;
                self.runs.remove(index - 1);
                index -= 1;
            }
        }
    }

    /// The window is being reduced because of a loss or a mark; `next` is SND.NXT.
    pub(crate) fn enter(&mut self, state: CongestionState, flight: u32, next: Sequence) {
        self.state = state;
        self.recover = next;
        self.delivered = 0;
        self.sent = 0;
        self.flight_at_loss = flight.max(1);
        if state == CongestionState::Recovery {
            self.forget_repetitions();
        }
    }

    /// The window is being reduced, or opens again after a timeout.
    pub(crate) fn is_reducing(&self) -> bool {
        matches!(self.state, CongestionState::Reduced | CongestionState::Recovery)
    }

    /// Losses of this window have been answered.
    pub(crate) fn may_end(&self, una: Sequence) -> bool {
        if self.state == CongestionState::Reduced {
            // RFC 3168 section 6.1.2: until CWR has arrived, which went with what was sent after, the peer goes on echoing.
            return before(self.recover, una);
        }
        at_or_before(self.recover, una)
    }

    /// RFC 6582 section 3.2 step 1: not again for losses of the same window.
    pub(crate) fn is_new_loss(&self, una: Sequence) -> bool {
        self.state < CongestionState::Reduced || at_or_before(self.recover, una)
    }

    /// RFC 6937 section 3.1: the window that lets the right amount go for what was `delivered`.
    pub(crate) fn proportional_window(&mut self, delivered: u32, pipe: u32, threshold: u32, mss: u32) -> u32 {
        self.delivered = self.delivered.saturating_add(delivered);
        let allowed = if pipe > threshold {
            let proportional = (u64::from(self.delivered) * u64::from(threshold))
                .div_ceil(u64::from(self.flight_at_loss)) as u32;
            proportional.saturating_sub(self.sent)
        } else {
            // Slow start reduction bound.
            let limit = self.delivered.saturating_sub(self.sent).max(delivered) + mss;
            (threshold - pipe).min(limit)
        };
        // The first lost segment goes at once.
        let allowed = if self.sent == 0 { allowed.max(mss) } else { allowed };
        pipe.saturating_add(allowed)
    }

    /// Everything that was repeated had arrived the first time (RFC 3708 section 2).
    pub(crate) fn was_spurious(&self) -> bool {
        self.first_repetition.is_some() && self.repeated.is_empty() && !self.repeated_more
    }

    /// RFC 3522 section 3.2 step 5: the acknowledgment echoes a timestamp from before the first repetition.
    pub(crate) fn echo_shows_spurious(&self, echo: u32) -> bool {
        self.first_repetition.is_some_and(|first| is_older(echo, first))
    }

    /// The reduction was wrong: what is not SACKed is on its way, not lost.
    pub(crate) fn undo(&mut self) {
        for run in &mut self.runs {
            if run.fate == Fate::Lost {
                run.fate = Fate::Flying;
            }
        }
        self.lost = 0;
        self.forget_repetitions();
        self.reordering_seen = true;
        // RFC 8985 section 6.2 step 2: what arrived was the first copy, not the one whose time RACK took.
        self.rack_valid = false;
        self.state = CongestionState::Open;
    }

    /// Something is out of order, or it is no longer.
    pub(crate) fn note_disorder(&mut self) {
        if self.state <= CongestionState::Disorder {
            let calm = self.sacked + self.presumed + self.lost == 0;
            self.state = if calm { CongestionState::Open } else { CongestionState::Disorder };
        }
    }

    /// Recovery ended.
    pub(crate) fn end(&mut self) {
        self.state = CongestionState::Open;
        self.presumed = 0;
        if self.first_repetition.is_some() {
            self.ended_at = Some(self.runs.back().map_or(self.highest_sacked, |run| run.end));
        }
        // RFC 8985 section 6.2 step 4: the larger reordering window persists for 16 recoveries.
        self.lateness.recovered();
    }

    pub(crate) fn lateness(&self) -> Lateness {
        self.lateness
    }

    pub(crate) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// Nothing in here says more than SND.UNA and SND.NXT do.
    pub(crate) fn is_idle(&self, una: Sequence, next: Sequence) -> bool {
        self.first_repetition.is_none()
            && self.probe.is_none()
            && (una == next
                || (self.state == CongestionState::Open
                    && self.sacked == 0
                    && self.lost == 0
                    && self.presumed == 0))
    }

    /// RFC 8985 section 7.3: a probe went out, and `end` is SND.NXT after it.
    pub(crate) fn probed(&mut self, end: Sequence, repeated: bool) {
        self.probe = Some(Probe { end, repeated });
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// RFC 8985 section 7.4.2: whether an acknowledgment shows that the probe repaired a loss. `bare`: without data, SACK or
    /// a new window.
    pub(crate) fn probe_repaired(&mut self, acknowledgment: Sequence, duplicate: bool, bare: bool) -> bool {
        let Some(probe) = self.probe else { return false };
        if before(acknowledgment, probe.end) {
            return false;
        }
        if !probe.repeated || duplicate {
            self.probe = None;
            return false;
        }
        if before(probe.end, acknowledgment) {
            self.probe = None;
            return true;
        }
        if bare && acknowledgment == probe.end {
            // A duplicate of the acknowledgment: the repetition was not needed.
            self.probe = None;
        }
        false
    }
}
