//! How a run is going: what the live line and the terminal screen show of it.

use std::collections::VecDeque;
use std::time::Duration;

use super::units;
use crate::record::Record;

/// Rates that are kept: a second each, as many as any terminal is wide.
const RATES_KEPT: usize = 1024;

/// How a run is going.
#[derive(Debug)]
pub(crate) struct Board {
    /// What is loaded and how, in one line.
    pub(crate) title: String,
    /// Warm-up and measured part together; `None`: until the requests are done.
    pub(crate) length: Option<Duration>,
    /// Since the start, warm-up included.
    pub(crate) elapsed: Duration,
    pub(crate) warming_up: bool,
    /// Connections that are open now.
    pub(crate) open: u64,
    /// Requests ended.
    pub(crate) requests: u64,
    /// All intervals together.
    pub(crate) total: Record,
    /// The interval before now.
    pub(crate) last: Record,
    /// Its length.
    pub(crate) last_length: Duration,
    /// Successes per second by interval, the last one last.
    pub(crate) rates: VecDeque<u64>,
}

impl Board {
    pub(crate) fn new(title: String, length: Option<Duration>) -> Board {
        Board {
            title,
            length,
            elapsed: Duration::ZERO,
            warming_up: true,
            open: 0,
            requests: 0,
            total: Record::new(),
            last: Record::new(),
            last_length: Duration::ZERO,
            rates: VecDeque::new(),
        }
    }

    /// One more interval is over.
    pub(crate) fn add(&mut self, record: &Record, length: Duration) {
        self.total.merge(record);
        self.last.clone_from(record);
        self.last_length = length;
        if self.rates.len() == RATES_KEPT {
            self.rates.pop_front();
        }
        self.rates.push_back(self.per_s(record.succeeded) as u64);
    }

    /// Of the interval before now.
    pub(crate) fn per_s(&self, count: u64) -> f64 {
        if self.last_length.is_zero() { 0.0 } else { count as f64 / self.last_length.as_secs_f64() }
    }

    /// `3 s of 10 s`.
    pub(crate) fn clock(&self) -> String {
        let elapsed_s = self.elapsed.as_secs();
        match self.length {
            Some(length) => format!("{elapsed_s} s of {} s", length.as_secs_f64()),
            None => format!("{elapsed_s} s"),
        }
    }

    /// How it goes, in a line.
    pub(crate) fn line(&self) -> String {
        let clock = self.clock();
        if self.warming_up {
            return format!("{clock}: warming up, {} connections open", units::grouped(self.open));
        }
        let mut line = format!("{clock}: {} requests", units::grouped(self.requests));
        if let Some(rate) = self.rates.back() {
            line += &format!(", {}/s", units::grouped(*rate));
        }
        if !self.last.latency_ns.is_empty() {
            let at = |quantile| units::time(self.last.latency_ns.value_at_quantile(quantile) as f64 / 1e3);
            line += &format!(", p50 {}, p99 {}", at(0.5), at(0.99));
        }
        line + &format!(
            ", {} open, {} failed",
            units::grouped(self.open),
            units::grouped(self.total.failed())
        )
    }
}
