//! What a run counted, second by second.
//!
//! At the end of each interval a thread hands its record over and goes on with an empty one, so that counting costs no lock
//! and no copy. The thread that waits for the run adds the records up: what the intervals hold is what the total holds.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::record::Record;

/// A part of the measured time. Interval after interval, nothing is left out and nothing counted twice.
#[derive(Debug, Clone)]
pub struct Interval {
    /// Its number, from 0. An interval in which nothing happened is there too.
    pub index: u64,
    /// Its beginning, after that of the measured part.
    pub from: Duration,
    /// Its end. The last one ends with the run.
    pub until: Duration,
    /// What ended in it, over all threads.
    pub record: Record,
    /// Requests that succeeded in it, by thread.
    pub succeeded_by_thread: Vec<u64>,
}

/// One thread's record of one interval.
#[derive(Debug)]
struct Part {
    thread: usize,
    index: u64,
    record: Record,
}

/// A thread's end: where its records go, and empty ones come from.
#[derive(Debug)]
pub(crate) struct Handover {
    thread: usize,
    every_ns: u64,
    index: u64,
    parts: Sender<Part>,
    empty: Receiver<Record>,
}

impl Handover {
    /// When the next one is due, ns after the beginning of the measured part.
    #[inline]
    pub(super) fn due_ns(&self) -> u64 {
        (self.index + 1).saturating_mul(self.every_ns)
    }

    /// Hands `record` over: an interval has ended, or several have. `elapsed_ns`: of the measured part.
    pub(super) fn hand_over(&mut self, record: &mut Record, elapsed_ns: u64) {
        self.index = elapsed_ns / self.every_ns;
        let full = std::mem::replace(record, self.empty.try_recv().unwrap_or_default());
        // Nobody listens only when the run has been given up.
        let _ = self.parts.send(Part { thread: self.thread, index: self.index - 1, record: full });
    }
}

/// The other end: puts the intervals together.
#[derive(Debug)]
pub(crate) struct Series {
    every: Duration,
    parts: Receiver<Part>,
    empty: Vec<Sender<Record>>,
    /// Intervals that some threads have not come to the end of.
    begun: BTreeMap<u64, (Record, Vec<u64>)>,
    /// By thread: the interval it is in.
    reached: Vec<u64>,
    next: u64,
    /// Of the intervals that are complete.
    total: Record,
}

impl Series {
    /// With the threads' ends.
    pub(super) fn new(every: Duration, threads: usize) -> (Series, Vec<Handover>) {
        let (parts_sender, parts) = channel();
        let (mut empty, mut ends) = (Vec::new(), Vec::new());
        for thread in 0..threads {
            let (sender, receiver) = channel();
            let _ = sender.send(Record::new());
            empty.push(sender);
            let every_ns = every.as_nanos() as u64;
            ends.push(Handover { thread, every_ns, index: 0, parts: parts_sender.clone(), empty: receiver });
        }
        let reached = vec![0; threads];
        let begun = BTreeMap::new();
        (Series { every, parts, empty, begun, reached, next: 0, total: Record::new() }, ends)
    }

    fn add(&mut self, thread: usize, index: u64, record: &Record) {
        let threads = self.reached.len();
        let (sum, succeeded) = self.begun.entry(index).or_insert_with(|| (Record::new(), vec![0; threads]));
        sum.merge(record);
        succeeded[thread] += record.succeeded;
    }

    /// Takes what the threads have handed over, and shows the intervals that all of them have left.
    pub(super) fn collect(&mut self, mut show: impl FnMut(&Interval)) {
        while let Ok(Part { thread, index, mut record }) = self.parts.try_recv() {
            self.add(thread, index, &record);
            self.reached[thread] = index + 1;
            record.restart();
            let _ = self.empty[thread].send(record);
        }
        let complete = self.reached.iter().copied().min().unwrap_or(0);
        while self.next < complete {
            let until = self.every * (self.next + 1) as u32;
            self.show_next(until, &mut show);
        }
    }

    fn show_next(&mut self, until: Duration, show: &mut impl FnMut(&Interval)) {
        let index = self.next;
        self.next += 1;
        let nothing = || (Record::new(), vec![0; self.reached.len()]);
        let (record, succeeded_by_thread) = self.begun.remove(&index).unwrap_or_else(nothing);
        self.total.merge(&record);
        let from = self.every * index as u32;
        show(&Interval { index, from, until, record, succeeded_by_thread });
    }

    /// The threads have ended, `length` after the beginning of the measured part, with these records. Shows what is left;
    /// returns all that was counted.
    pub(super) fn finish<'r>(
        mut self,
        length: Duration,
        last: impl Iterator<Item = &'r Record>,
        mut show: impl FnMut(&Interval),
    ) -> Record {
        self.collect(&mut show);
        let every_ns = self.every.as_nanos().max(1);
        // The interval that the end falls into; an end on a boundary belongs to the one before.
        let end = (length.as_nanos().saturating_sub(1) / every_ns) as u64;
        for (thread, record) in last.enumerate() {
            self.add(thread, end.max(self.reached[thread]), record);
        }
        while let Some((&highest, _)) = self.begun.last_key_value()
            && self.next <= highest
        {
            let until = (self.every * (self.next + 1) as u32).min(length.max(self.every * self.next as u32));
            self.show_next(until, &mut show);
        }
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Times;

    fn succeed(record: &mut Record, count: u64, latency_ns: u64) {
        for _ in 0..count {
            record.succeed(Times { intended_ns: 0, sent_ns: 0, first_byte_ns: 1, ended_ns: latency_ns });
        }
    }

    #[test]
    fn intervals_hold_all_that_the_total_holds() {
        let (mut series, mut ends) = Series::new(Duration::from_secs(1), 2);
        let mut records = [Record::new(), Record::new()];
        let mut shown = Vec::new();
        succeed(&mut records[0], 3, 100);
        succeed(&mut records[1], 5, 200);
        assert_eq!(ends[0].due_ns(), 1_000_000_000);
        ends[0].hand_over(&mut records[0], 1_000_000_100);
        series.collect(|interval| shown.push(interval.clone()));
        assert!(shown.is_empty(), "the other thread has not come so far");
        // It slept through the end of two intervals.
        ends[1].hand_over(&mut records[1], 2_500_000_000);
        succeed(&mut records[0], 7, 300);
        ends[0].hand_over(&mut records[0], 2_000_000_001);
        succeed(&mut records[1], 11, 400);
        series.collect(|interval| shown.push(interval.clone()));
        let total = series.finish(Duration::from_millis(2700), records.iter(), |i| shown.push(i.clone()));

        let by_thread: Vec<&[u64]> = shown.iter().map(|i| &i.succeeded_by_thread[..]).collect();
        assert_eq!(by_thread, [&[3, 0], &[7, 5], &[0, 11]]);
        let ends: Vec<u64> = shown.iter().map(|i| i.until.as_millis() as u64).collect();
        assert_eq!(ends, [1000, 2000, 2700]);
        let mut sum = Record::new();
        shown.iter().for_each(|interval| sum.merge(&interval.record));
        assert_eq!((total.succeeded, sum.succeeded), (26, 26));
        assert_eq!(total.latency_ns, sum.latency_ns);
    }

    #[test]
    fn a_run_that_ends_on_a_boundary_has_no_empty_last_interval() {
        let (series, _ends) = Series::new(Duration::from_secs(1), 1);
        let mut record = Record::new();
        succeed(&mut record, 1, 1);
        let mut shown = 0;
        series.finish(Duration::from_secs(1), [&record].into_iter(), |_| shown += 1);
        assert_eq!(shown, 1);
    }
}
