//! The intervals of several generators, which began together, put on one another.

use std::collections::BTreeMap;
use std::time::Duration;

use super::channel::Part;
use crate::output::watch::Span;
use crate::record::Record;

/// Intervals kept for generators that are behind: a record is 1.4 MB.
const HELD_MAX: usize = 100;

/// An interval that some generators have not come to the end of.
#[derive(Debug)]
struct Begun {
    until: Duration,
    record: Record,
}

/// The intervals of all generators.
#[derive(Debug)]
pub(super) struct Timeline {
    /// By generator: how many intervals it has ended; `None`: it has none left.
    ended: Vec<Option<u64>>,
    /// By generator: connections that are open.
    open: Vec<u64>,
    begun: BTreeMap<u64, Begun>,
    /// When the interval before the next one ended.
    shown_until: Duration,
}

impl Timeline {
    pub(super) fn new(generators: usize) -> Timeline {
        Timeline {
            ended: vec![Some(0); generators],
            open: vec![0; generators],
            begun: BTreeMap::new(),
            shown_until: Duration::ZERO,
        }
    }

    /// Connections that are open, over all generators.
    pub(super) fn open(&self) -> u64 {
        self.open.iter().sum()
    }

    /// One generator's share of one interval.
    pub(super) fn add(&mut self, generator: usize, part: &Part) {
        // What another machine says: a time that is none counts as 0.
        let until = Duration::try_from_secs_f64(part.until_s).unwrap_or_default();
        let begun = self
            .begun
            .entry(part.index)
            .or_insert_with(|| Begun { until: Duration::ZERO, record: Record::new() });
        begun.record.merge(&part.record);
        begun.until = begun.until.max(until);
        self.open[generator] = part.open;
        self.ended[generator] = Some(part.index.saturating_add(1));
    }

    /// This generator has no more of them.
    pub(super) fn end(&mut self, generator: usize) {
        self.open[generator] = 0;
        self.ended[generator] = None;
    }

    /// Shows the intervals that all generators have left. Whoever is far behind is not waited for: its share is shown as
    /// intervals of no length when it comes.
    pub(super) fn show(&mut self, mut show: impl FnMut(Span<'_>)) {
        let complete = self.ended.iter().flatten().min().copied().unwrap_or(u64::MAX);
        while let held = self.begun.len()
            && let Some(first) = self.begun.first_entry()
            && (*first.key() < complete || held > HELD_MAX)
        {
            let Begun { until, record } = first.remove();
            let from = self.shown_until;
            self.shown_until = until.max(from);
            show(Span { from, until: self.shown_until, record: &record });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(index: u64, until_s: f64, succeeded: u64) -> Part {
        let mut record = Record::new();
        record.succeeded = succeeded;
        Part { index, until_s, open: succeeded, record }
    }

    #[test]
    fn intervals_are_shown_when_all_have_left_them() {
        let mut timeline = Timeline::new(2);
        let mut shown = Vec::new();
        let mut show = |timeline: &mut Timeline| {
            timeline.show(|span| {
                shown.push((span.from.as_millis(), span.until.as_millis(), span.record.succeeded));
            });
            shown.len()
        };
        timeline.add(0, &part(0, 1.0, 1));
        timeline.add(0, &part(1, 2.0, 2));
        assert_eq!(show(&mut timeline), 0);
        timeline.add(1, &part(0, 1.0, 10));
        assert_eq!((show(&mut timeline), timeline.open()), (1, 12));
        // The other one dies: nobody waits for it.
        timeline.end(1);
        assert_eq!((show(&mut timeline), timeline.open()), (2, 2));
        timeline.add(0, &part(2, 2.5, 3));
        assert_eq!(show(&mut timeline), 3);
        assert_eq!(shown, [(0, 1000, 11), (1000, 2000, 2), (2000, 2500, 3)]);
    }

    #[test]
    fn nobody_is_waited_for_without_end() {
        let mut timeline = Timeline::new(2);
        let (mut shown, mut until) = (0, Duration::ZERO);
        let mut show = |timeline: &mut Timeline| {
            timeline.show(|span| {
                shown += span.record.succeeded;
                until = span.until;
            });
            (shown, until.as_secs())
        };
        for index in 0..150 {
            timeline.add(0, &part(index, index as f64 + 1.0, 1));
        }
        assert_eq!(show(&mut timeline), (50, 50));
        timeline.add(1, &part(0, 1.0, 7));
        assert_eq!(show(&mut timeline), (57, 50), "late, but not lost");
        timeline.end(1);
        assert_eq!(show(&mut timeline), (157, 150));
    }

    #[test]
    fn nonsense_from_another_machine_does_no_harm() {
        let mut timeline = Timeline::new(1);
        for until_s in [f64::NAN, -1.0, f64::INFINITY, 1e300] {
            timeline.add(0, &part(u64::MAX, until_s, 1));
        }
        timeline.end(0);
        let mut shown = 0;
        timeline.show(|span| shown += span.record.succeeded);
        assert_eq!(shown, 0, "u64::MAX is never left");
    }
}
