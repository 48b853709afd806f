//! What wrk counts, from the exchanges of a run.

use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;

use super::page::{Errors, Results};
use crate::http::Exchange;
use crate::record::Failure;

/// How often wrk samples the rate of a thread.
const WINDOW_NS: u64 = 100_000_000;
/// Longest latency told apart, in ns: one hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Highest rate told apart, requests/s.
const RATE_MAX: u64 = 1_000_000_000;

fn histogram(highest: u64) -> Histogram<u64> {
    Histogram::new_with_bounds(1, highest, 3)
        .expect("bounds and digits are constants that hdrhistogram accepts")
}

/// From where a latency is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LatencyFrom {
    /// The moment that the request was sent: wrk.
    Sent,
    /// The moment that it was due: wrk2.
    Due,
}

/// How far a connection's batch has come.
#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    answered: usize,
    /// The last response said that the server closes: what is left of the batch has no answer, and that is no error.
    closing: bool,
}

/// The counts of one thread.
#[derive(Debug)]
pub(super) struct Counts {
    from: LatencyFrom,
    /// Requests that a connection sends together.
    at_once: usize,
    /// Only the last response of such a batch counts for the latency.
    batch_latency: bool,
    /// By connection, where there are batches.
    batches: Vec<Batch>,
    latency_ns: Histogram<u64>,
    service_ns: Histogram<u64>,
    rates: Histogram<u64>,
    completed: u64,
    errors: Errors,
    /// The window that responses fall into now, from the run's beginning, and how many have.
    window: u64,
    in_window: u64,
}

impl Counts {
    pub(super) fn new(from: LatencyFrom, at_once: usize, batch_latency: bool) -> Counts {
        Counts {
            from,
            at_once,
            batch_latency,
            batches: Vec::new(),
            latency_ns: histogram(LATENCY_MAX_NS),
            service_ns: histogram(LATENCY_MAX_NS),
            rates: histogram(RATE_MAX),
            completed: 0,
            errors: Errors::default(),
            window: 0,
            in_window: 0,
        }
    }

    /// One more request has ended.
    pub(super) fn count(&mut self, exchange: &Exchange<'_>) {
        match exchange.failure {
            None | Some(Failure::WrongStatus | Failure::WrongSize) => {
                let ends_batch = self.answer(exchange);
                self.complete(exchange, ends_batch || !self.batch_latency);
            }
            Some(failure) => {
                let closing = self.break_off(exchange.connection);
                match failure {
                    Failure::ClosedEarly if closing => {}
                    Failure::Write => self.errors.write += 1,
                    Failure::Timeout => self.errors.timeout += 1,
                    _ if failure.is_connect() => self.errors.connect += 1,
                    _ => self.errors.read += 1,
                }
            }
        }
    }

    /// One more response of a connection's batch; whether it is the last.
    fn answer(&mut self, exchange: &Exchange<'_>) -> bool {
        if self.at_once < 2 {
            return true;
        }
        if self.batches.len() <= exchange.connection {
            self.batches.resize(exchange.connection + 1, Batch::default());
        }
        let batch = &mut self.batches[exchange.connection];
        batch.answered = (batch.answered + 1) % self.at_once;
        batch.closing = !exchange.keep_alive;
        batch.answered == 0
    }

    /// The connection has gone, and its batch with it; whether the server had said so.
    fn break_off(&mut self, connection: usize) -> bool {
        self.batches.get_mut(connection).is_some_and(|batch| {
            batch.answered = 0;
            batch.closing
        })
    }

    fn complete(&mut self, exchange: &Exchange<'_>, counts_for_latency: bool) {
        let times = &exchange.times;
        let service_ns = times.ended_ns.saturating_sub(times.sent_ns).max(1);
        let latency_ns = match self.from {
            LatencyFrom::Sent => service_ns,
            LatencyFrom::Due => times.ended_ns.saturating_sub(times.intended_ns).max(1),
        };
        if counts_for_latency {
            self.latency_ns.saturating_record(latency_ns);
            self.service_ns.saturating_record(service_ns);
        }
        self.completed += 1;
        self.errors.status += u64::from(exchange.status > 399);
        self.close_windows(times.ended_ns / WINDOW_NS);
        self.in_window += 1;
    }

    /// Windows before `window` are over.
    fn close_windows(&mut self, window: u64) {
        if window > self.window {
            let rate = |count: u64| count * 1_000_000_000 / WINDOW_NS;
            self.rates.saturating_record(rate(self.in_window));
            self.rates.saturating_record_n(0, window - self.window - 1);
            self.window = window;
            self.in_window = 0;
        }
    }
}

/// The counts of all threads: each leaves its own when it is through.
#[derive(Debug, Clone, Default)]
pub(super) struct Collection(Arc<Mutex<Vec<Counts>>>);

impl Collection {
    pub(super) fn add(&self, counts: Counts) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(counts);
    }

    /// All counts together, after a run of `runtime_s` that received `bytes`.
    pub(super) fn results(&self, runtime_s: f64, bytes: u64) -> Results {
        let mut results = Results {
            latency_ns: histogram(LATENCY_MAX_NS),
            service_ns: histogram(LATENCY_MAX_NS),
            rates: histogram(RATE_MAX),
            completed: 0,
            runtime_s,
            bytes,
            errors: Errors::default(),
        };
        let last_window = (runtime_s * 1e9) as u64 / WINDOW_NS;
        for mut counts in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            counts.close_windows(last_window);
            if counts.rates.is_empty() && runtime_s > 0.0 {
                // Not one whole window: what there was, then.
                counts.rates.saturating_record((counts.completed as f64 / runtime_s) as u64);
            }
            results.latency_ns += counts.latency_ns;
            results.service_ns += counts.service_ns;
            results.rates += counts.rates;
            results.completed += counts.completed;
            results.errors += counts.errors;
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Times;

    fn exchange(
        connection: usize,
        ended_ns: u64,
        failure: Option<Failure>,
        keep_alive: bool,
    ) -> Exchange<'static> {
        Exchange {
            connection,
            times: Times { intended_ns: 0, sent_ns: ended_ns / 2, first_byte_ns: ended_ns, ended_ns },
            failure,
            status: if failure.is_some() { 0 } else { 200 },
            body_bytes: 0,
            keep_alive,
            head: &[],
            body: &[],
        }
    }

    fn results(counts: Counts, runtime_s: f64) -> Results {
        let collection = Collection::default();
        collection.add(counts);
        collection.results(runtime_s, 0)
    }

    #[test]
    fn a_batch_that_the_server_cuts_off_is_no_error_and_one_that_breaks_is() {
        let mut counts = Counts::new(LatencyFrom::Sent, 3, true);
        for last in [true, true, false] {
            counts.count(&exchange(0, 1000, None, last));
        }
        counts.count(&exchange(0, 1000, None, false));
        counts.count(&exchange(0, 1000, Some(Failure::ClosedEarly), false));
        counts.count(&exchange(0, 1000, Some(Failure::ClosedEarly), false));
        counts.count(&exchange(1, 1000, None, true));
        counts.count(&exchange(1, 1000, Some(Failure::ClosedEarly), false));
        let results = results(counts, 1.0);
        assert_eq!(results.errors, Errors { read: 1, ..Errors::default() });
        assert_eq!((results.completed, results.latency_ns.len()), (5, 1), "one batch was complete");
    }

    #[test]
    fn rates_are_sampled_in_windows_empty_ones_too() {
        let mut counts = Counts::new(LatencyFrom::Due, 1, false);
        for _ in 0..5 {
            counts.count(&exchange(0, 50_000_000, None, true));
        }
        counts.count(&exchange(0, 350_000_000, None, true));
        let results = results(counts, 0.5);
        // 50/s, nothing, nothing, 10/s, nothing.
        assert_eq!((results.rates.len(), results.rates.max()), (5, 50));
        assert_eq!(results.rates.count_at(0), 3);
        assert!(results.latency_ns.max() > 340_000_000, "from when it was due");
        assert!(results.service_ns.max() < 180_000_000, "from when it was sent");
    }

    #[test]
    fn a_run_shorter_than_a_window_has_its_own_rate() {
        let mut counts = Counts::new(LatencyFrom::Sent, 1, false);
        counts.count(&exchange(0, 10_000_000, None, true));
        assert_eq!(results(counts, 0.02).rates.max(), 50);
    }
}
