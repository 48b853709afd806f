//! What ab counts, from the exchanges of a run.

use super::distribution::Distribution;
use crate::http::Exchange;
use crate::record::{Failure, Times};

/// One request, as a line of the `-g` file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// Start, ns after the run's.
    pub(super) started_ns: u64,
    pub(super) connect_ns: u64,
    pub(super) wait_ns: u64,
    pub(super) total_ns: u64,
}

impl Row {
    fn of(times: &Times) -> Row {
        // A request with a connection of its own is intended when that is begun.
        Row {
            started_ns: times.intended_ns,
            connect_ns: times.sent_ns.saturating_sub(times.intended_ns),
            wait_ns: times.first_byte_ns.saturating_sub(times.sent_ns),
            total_ns: times.ended_ns.saturating_sub(times.intended_ns),
        }
    }

    /// What is not connecting.
    pub(super) fn processing_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.connect_ns)
    }
}

/// Counts of one thread, or of all.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    pub(super) connect: Distribution,
    pub(super) processing: Distribution,
    pub(super) waiting: Distribution,
    pub(super) total: Distribution,
    /// Every request, if somebody wants to see them.
    pub(super) rows: Option<Vec<Row>>,
    /// Complete responses.
    pub(super) complete: u64,
    /// Those of the expected length.
    pub(super) good: u64,
    /// Complete responses with another status than 2xx.
    pub(super) not_2xx: u64,
    /// Complete responses over connections that stayed open.
    pub(super) kept_alive: u64,
    /// Content received, bytes.
    pub(super) html_bytes: u64,
    pub(super) connect_errors: u64,
    pub(super) receive_errors: u64,
    pub(super) length_errors: u64,
    pub(super) exceptions: u64,
    pub(super) write_errors: u64,
}

impl Counts {
    pub(super) fn new(rows: bool) -> Counts {
        Counts {
            connect: Distribution::new(),
            processing: Distribution::new(),
            waiting: Distribution::new(),
            total: Distribution::new(),
            rows: rows.then(Vec::new),
            complete: 0,
            good: 0,
            not_2xx: 0,
            kept_alive: 0,
            html_bytes: 0,
            connect_errors: 0,
            receive_errors: 0,
            length_errors: 0,
            exceptions: 0,
            write_errors: 0,
        }
    }

    /// One more request has ended. `length`: the content's expected size, if there is one.
    pub(super) fn count(&mut self, exchange: &Exchange<'_>, length: Option<u64>) {
        match exchange.failure {
            None | Some(Failure::WrongStatus | Failure::WrongSize) => self.complete(exchange, length),
            Some(failure) if failure.is_connect() => self.connect_errors += 1,
            Some(Failure::Read) => self.receive_errors += 1,
            Some(Failure::ClosedEarly) => self.length_errors += 1,
            Some(Failure::Write) => self.write_errors += 1,
            Some(_) => self.exceptions += 1,
        }
    }

    fn complete(&mut self, exchange: &Exchange<'_>, length: Option<u64>) {
        let row = Row::of(&exchange.times);
        self.connect.record(row.connect_ns);
        self.processing.record(row.processing_ns());
        self.waiting.record(row.wait_ns);
        self.total.record(row.total_ns);
        if let Some(rows) = &mut self.rows {
            rows.push(row);
        }
        self.complete += 1;
        self.html_bytes += exchange.body_bytes;
        self.not_2xx += u64::from(exchange.status / 100 != 2);
        self.kept_alive += u64::from(exchange.keep_alive);
        if length.is_none_or(|length| length == exchange.body_bytes) {
            self.good += 1;
        } else {
            self.length_errors += 1;
        }
    }

    /// Requests that failed in one of ab's ways.
    pub(super) fn failed(&self) -> u64 {
        self.connect_errors + self.receive_errors + self.length_errors + self.exceptions
    }

    /// Adds what another thread counted.
    pub(super) fn merge(&mut self, other: Counts) {
        self.connect.merge(&other.connect);
        self.processing.merge(&other.processing);
        self.waiting.merge(&other.waiting);
        self.total.merge(&other.total);
        if let (Some(rows), Some(more)) = (&mut self.rows, other.rows) {
            rows.extend(more);
        }
        self.complete += other.complete;
        self.good += other.good;
        self.not_2xx += other.not_2xx;
        self.kept_alive += other.kept_alive;
        self.html_bytes += other.html_bytes;
        self.connect_errors += other.connect_errors;
        self.receive_errors += other.receive_errors;
        self.length_errors += other.length_errors;
        self.exceptions += other.exceptions;
        self.write_errors += other.write_errors;
    }
}
