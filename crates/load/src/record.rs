//! What a run counts. Each thread has its own [`Record`]; merging them loses nothing.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::output::by_name::ByName;
use crate::output::histogram;
use crate::response::Malformed;

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The server answered the SYN with a reset.
    ConnectRefused,
    /// The connection was reset while it was being made.
    ConnectReset,
    /// Nobody answered the SYN in time.
    ConnectTimeout,
    /// No connection for another reason: no port free, host or network unreachable.
    ConnectOther,
    /// Reading failed: mostly a reset on an open connection.
    Read,
    /// Writing failed.
    Write,
    /// No complete response in time on an open connection.
    Timeout,
    /// A complete response with another status than expected.
    WrongStatus,
    /// A complete response with another content size than expected.
    WrongSize,
    /// A complete response with other content than expected, by its digest.
    WrongContent,
    /// What came is not HTTP/1.x.
    Malformed,
    /// The server closed before the response was complete.
    ClosedEarly,
    /// No TLS connection: the handshake failed, or the certificate is not to be trusted.
    Tls,
}

impl Failure {
    /// Every kind, in the order of its index.
    pub const ALL: [Failure; 13] = [
        Failure::ConnectRefused,
        Failure::ConnectReset,
        Failure::ConnectTimeout,
        Failure::ConnectOther,
        Failure::Read,
        Failure::Write,
        Failure::Timeout,
        Failure::WrongStatus,
        Failure::WrongSize,
        Failure::WrongContent,
        Failure::Malformed,
        Failure::ClosedEarly,
        Failure::Tls,
    ];

    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Failure::ConnectRefused => "connect_refused",
            Failure::ConnectReset => "connect_reset",
            Failure::ConnectTimeout => "connect_timeout",
            Failure::ConnectOther => "connect_other",
            Failure::Read => "read",
            Failure::Write => "write",
            Failure::Timeout => "timeout",
            Failure::WrongStatus => "wrong_status",
            Failure::WrongSize => "wrong_size",
            Failure::WrongContent => "wrong_content",
            Failure::Malformed => "malformed",
            Failure::ClosedEarly => "closed_early",
            Failure::Tls => "tls",
        }
    }

    /// Whether no connection came about.
    #[must_use]
    pub fn is_connect(self) -> bool {
        matches!(
            self,
            Failure::ConnectRefused
                | Failure::ConnectReset
                | Failure::ConnectTimeout
                | Failure::ConnectOther
                | Failure::Tls
        )
    }
}

/// Processor time of one thread, or of several added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// In user mode, s.
    pub user_s: f64,
    /// In the kernel on the thread's behalf, s.
    pub system_s: f64,
}

impl CpuTime {
    /// The calling thread's time since it started.
    ///
    /// The sum is exact (CLOCK_THREAD_CPUTIME_ID); how it splits into user and system is what the
    /// kernel says in `/proc/thread-self/stat`, fields 14 and 15, to 10 ms.
    #[must_use]
    pub fn of_this_thread() -> CpuTime {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let total_s = clock.tv_sec as f64 + clock.tv_nsec as f64 * 1e-9;
        let (user, system) = thread_ticks().unwrap_or((1, 0));
        let share = if user + system == 0 { 1.0 } else { user as f64 / (user + system) as f64 };
        CpuTime { user_s: total_s * share, system_s: total_s * (1.0 - share) }
    }

    /// Both kinds together, s.
    #[must_use]
    pub fn total_s(self) -> f64 {
        self.user_s + self.system_s
    }
}

impl std::ops::Sub for CpuTime {
    type Output = CpuTime;
    fn sub(self, earlier: CpuTime) -> CpuTime {
        // Each snapshot splits its own sum, so a part may seem to run backwards by a tick.
        let total_s = (self.total_s() - earlier.total_s()).max(0.0);
        let user_s = (self.user_s - earlier.user_s).clamp(0.0, total_s);
        CpuTime { user_s, system_s: total_s - user_s }
    }
}

impl std::ops::AddAssign for CpuTime {
    fn add_assign(&mut self, other: CpuTime) {
        self.user_s += other.user_s;
        self.system_s += other.system_s;
    }
}

/// utime and stime of the calling thread, in clock ticks (proc_pid_stat(5)).
fn thread_ticks() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// When the parts of one exchange happened, ns on the run's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// When the request should have started.
    pub intended_ns: u64,
    /// When it was handed over to an open connection.
    pub sent_ns: u64,
    /// When the first byte of the response came.
    pub first_byte_ns: u64,
    /// When the last byte of the response came.
    pub ended_ns: u64,
}

/// What one thread has counted. Written out, its histograms are in HdrHistogram's V2 encoding, and kinds that never came up
/// are left out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Requests with a complete and expected response.
    pub succeeded: u64,
    #[serde(with = "ByName::<Failure>")]
    failures: [u64; Failure::ALL.len()],
    #[serde(with = "ByName::<Malformed>")]
    malformed: [u64; Malformed::ALL.len()],
    /// Connections that were not made, by the reason in words.
    reasons: BTreeMap<String, u64>,
    /// Responses with a wrong status, by that: the first [`DIFFERENT_MAX`] that came.
    wrong_statuses: BTreeMap<u16, u64>,
    /// Responses with a wrong size of content, by that: as above.
    wrong_sizes: BTreeMap<u64, u64>,
    /// Intended start of the request to the last byte of its response, ns. Successes only. In a closed loop a request is
    /// intended when it is begun; with a connection of its own, when that is begun.
    #[serde(with = "histogram")]
    pub latency_ns: Histogram<u64>,
    /// The request handed over to the last byte of its response, ns: what a coordinated measurement would call latency.
    /// Successes only.
    #[serde(with = "histogram")]
    pub service_ns: Histogram<u64>,
    /// The request handed over to the first byte of its response, ns. Successes only.
    #[serde(with = "histogram")]
    pub first_byte_ns: Histogram<u64>,
    /// SYN to established (TLS handshake included where there is one), ns.
    #[serde(with = "histogram")]
    pub connect_ns: Histogram<u64>,
    /// Open loop: how late the generator itself was, ns. From the moment that a request was due and had a connection to the
    /// moment that it was sent.
    #[serde(with = "histogram")]
    pub send_lag_ns: Histogram<u64>,
    /// Requests handed over to a connection.
    pub sent: u64,
    /// Open loop: requests whose time came within the run and that never found a connection.
    pub unsent: u64,
    /// Stream bytes received, heads included.
    pub bytes_in: u64,
    /// Stream bytes sent.
    pub bytes_out: u64,
    /// Open connections that the server ended, by a FIN or a RST, before the generator asked for their end.
    pub closed_by_server: u64,
    /// Largest number of connections that were open at once over all threads.
    pub open_max: u64,
    /// Processor time of the measured part.
    pub cpu: CpuTime,
    /// Time in which the thread had something to do, ns: a thread that spins has less of it than processor time.
    pub busy_ns: u64,
}

impl Default for Record {
    fn default() -> Self {
        Record::new()
    }
}

impl Record {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Record {
        Record {
            succeeded: 0,
            failures: [0; Failure::ALL.len()],
            malformed: [0; Malformed::ALL.len()],
            reasons: BTreeMap::new(),
            wrong_statuses: BTreeMap::new(),
            wrong_sizes: BTreeMap::new(),
            latency_ns: histogram::of_times(),
            service_ns: histogram::of_times(),
            first_byte_ns: histogram::of_times(),
            connect_ns: histogram::of_times(),
            send_lag_ns: histogram::of_times(),
            sent: 0,
            unsent: 0,
            bytes_in: 0,
            bytes_out: 0,
            closed_by_server: 0,
            open_max: 0,
            cpu: CpuTime::default(),
            busy_ns: 0,
        }
    }

    /// Forgets everything but the connections that are open: the warm-up is over.
    pub fn restart(&mut self) {
        self.succeeded = 0;
        self.failures = [0; Failure::ALL.len()];
        self.malformed = [0; Malformed::ALL.len()];
        self.reasons.clear();
        self.wrong_statuses.clear();
        self.wrong_sizes.clear();
        for histogram in self.histograms_mut() {
            histogram.reset();
        }
        self.sent = 0;
        self.unsent = 0;
        self.bytes_in = 0;
        self.bytes_out = 0;
        self.closed_by_server = 0;
        self.cpu = CpuTime::default();
        self.busy_ns = 0;
    }

    fn histograms_mut(&mut self) -> [&mut Histogram<u64>; 5] {
        [
            &mut self.latency_ns,
            &mut self.service_ns,
            &mut self.first_byte_ns,
            &mut self.connect_ns,
            &mut self.send_lag_ns,
        ]
    }

    fn histograms(&self) -> [&Histogram<u64>; 5] {
        [&self.latency_ns, &self.service_ns, &self.first_byte_ns, &self.connect_ns, &self.send_lag_ns]
    }

    /// One more success.
    #[inline]
    pub fn succeed(&mut self, times: Times) {
        self.succeeded += 1;
        let since = |start_ns: u64, end_ns: u64| end_ns.saturating_sub(start_ns).max(1);
        self.latency_ns.saturating_record(since(times.intended_ns, times.ended_ns));
        self.service_ns.saturating_record(since(times.sent_ns, times.ended_ns));
        self.first_byte_ns.saturating_record(since(times.sent_ns, times.first_byte_ns));
    }

    /// One more failure.
    pub fn fail(&mut self, failure: Failure) {
        self.failures[failure as usize] += 1;
    }

    /// One more failure because of a malformed response.
    pub fn fail_malformed(&mut self, kind: Malformed) {
        self.fail(Failure::Malformed);
        self.malformed[kind as usize] += 1;
    }

    /// One more failure because of a response's status.
    pub fn fail_status(&mut self, status: u16) {
        self.fail(Failure::WrongStatus);
        count_different(&mut self.wrong_statuses, status);
    }

    /// One more failure because of the size of a response's content.
    pub fn fail_size(&mut self, body_bytes: u64) {
        self.fail(Failure::WrongSize);
        count_different(&mut self.wrong_sizes, body_bytes);
    }

    /// Wrong statuses that came, and how often.
    pub fn wrong_statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        self.wrong_statuses.iter().map(|(status, count)| (*status, *count))
    }

    /// Wrong sizes of content that came, and how often.
    pub fn wrong_sizes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.wrong_sizes.iter().map(|(size, count)| (*size, *count))
    }

    /// One more connection was not made.
    pub fn explain(&mut self, reason: &str) {
        match self.reasons.get_mut(reason) {
            Some(count) => *count += 1,
            None => drop(self.reasons.insert(reason.to_string(), 1)),
        }
    }

    /// Why connections were not made, in words, and how many for each reason.
    pub fn reasons(&self) -> impl Iterator<Item = (&str, u64)> {
        self.reasons.iter().map(|(reason, count)| (reason.as_str(), *count))
    }

    /// How many requests failed in this way.
    #[must_use]
    pub fn failures(&self, failure: Failure) -> u64 {
        self.failures[failure as usize]
    }

    /// How many responses were malformed in this way.
    #[must_use]
    pub fn malformed(&self, kind: Malformed) -> u64 {
        self.malformed[kind as usize]
    }

    /// How many requests failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// How many requests ended, either way.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.succeeded + self.failed()
    }

    /// Adds what another thread counted.
    pub fn merge(&mut self, other: &Record) {
        self.succeeded += other.succeeded;
        for (sum, more) in self.failures.iter_mut().zip(other.failures) {
            *sum += more;
        }
        for (sum, more) in self.malformed.iter_mut().zip(other.malformed) {
            *sum += more;
        }
        for (reason, more) in &other.reasons {
            match self.reasons.get_mut(reason) {
                Some(sum) => *sum += more,
                None => drop(self.reasons.insert(reason.clone(), *more)),
            }
        }
        for (status, more) in &other.wrong_statuses {
            *self.wrong_statuses.entry(*status).or_insert(0) += more;
        }
        for (size, more) in &other.wrong_sizes {
            *self.wrong_sizes.entry(*size).or_insert(0) += more;
        }
        for (sum, more) in self.histograms_mut().into_iter().zip(other.histograms()) {
            *sum += more;
        }
        self.sent += other.sent;
        self.unsent += other.unsent;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.closed_by_server += other.closed_by_server;
        // Each thread notes the sum over all threads when it opens one: the largest note is exact.
        self.open_max = self.open_max.max(other.open_max);
        self.cpu += other.cpu;
        self.busy_ns += other.busy_ns;
    }
}

/// So many different wrong answers are told apart by each thread: a server whose every answer has another size is told by a few.
const DIFFERENT_MAX: usize = 16;

fn count_different<K: Ord>(counts: &mut BTreeMap<K, u64>, what: K) {
    if counts.len() < DIFFERENT_MAX || counts.contains_key(&what) {
        *counts.entry(what).or_insert(0) += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_is_the_same_as_counting_in_one_place() {
        let (mut one, mut two, mut both) = (Record::new(), Record::new(), Record::new());
        for i in 1..10_000u64 {
            let part = if i % 3 == 0 { &mut one } else { &mut two };
            for record in [part, &mut both] {
                record.succeed(Times {
                    intended_ns: 0,
                    sent_ns: i,
                    first_byte_ns: 2 * i,
                    ended_ns: i * i + 3 * i,
                });
                if i % 7 == 0 {
                    record.fail(Failure::ALL[(i % 13) as usize]);
                }
                if i % 100 == 0 {
                    record.fail_malformed(Malformed::ALL[(i / 100 % 10) as usize]);
                }
                record.bytes_in += i;
                record.closed_by_server += i % 5;
                if i % 11 == 0 {
                    record.explain(["refused", "unreachable"][(i % 2) as usize]);
                    record.fail_status(500 + (i % 4) as u16);
                    record.fail_size(i % 5);
                }
                record.open_max = record.open_max.max(i);
            }
        }
        one.merge(&two);
        assert_eq!(one.requests(), both.requests());
        assert_eq!(one.failures, both.failures);
        assert_eq!(one.malformed, both.malformed);
        assert_eq!(one.histograms(), both.histograms());
        assert_eq!((one.bytes_in, one.open_max), (both.bytes_in, both.open_max));
        assert_eq!(one.reasons, both.reasons);
        assert_eq!(one.wrong_statuses, both.wrong_statuses);
        assert_eq!(one.wrong_sizes, both.wrong_sizes);
        assert_eq!(one.closed_by_server, both.closed_by_server);
    }

    #[test]
    fn what_is_written_out_comes_back() {
        let mut record = Record::new();
        record.succeed(Times { intended_ns: 1, sent_ns: 5, first_byte_ns: 70, ended_ns: 900 });
        record.connect_ns.saturating_record(u64::MAX);
        record.fail(Failure::Timeout);
        record.fail_malformed(Malformed::Upgrade);
        record.explain("refused");
        record.fail_status(404);
        record.fail_size(1 << 40);
        (record.sent, record.bytes_in, record.open_max, record.busy_ns) = (3, 4, 5, 6);
        record.cpu = CpuTime { user_s: 0.5, system_s: 0.25 };
        let text = serde_json::to_string(&record).unwrap();
        let back: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(back.histograms(), record.histograms());
        assert_eq!(
            (back.failures, back.malformed, back.cpu),
            (record.failures, record.malformed, record.cpu)
        );
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        for wrong in [r#"{"failures":{"bad_luck":1}}"#, r#"{"latency_ns":"x"}"#, r#"{"succeeded":-1}"#] {
            assert!(serde_json::from_str::<Record>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_differs_each_time_takes_no_more_memory() {
        let mut record = Record::new();
        (0..1000).for_each(|size| record.fail_size(size));
        record.fail_size(3);
        assert_eq!(
            (record.wrong_sizes().count(), record.failures(Failure::WrongSize)),
            (DIFFERENT_MAX, 1001)
        );
        assert!(record.wrong_sizes().any(|size| size == (3, 2)));
    }

    #[test]
    fn names_follow_the_index() {
        for (index, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, index);
        }
        for (index, malformed) in Malformed::ALL.into_iter().enumerate() {
            assert_eq!(malformed as usize, index);
        }
    }

    #[test]
    fn the_processor_time_of_this_thread_grows() {
        let before = CpuTime::of_this_thread();
        let mut sum = 0u64;
        while (CpuTime::of_this_thread() - before).total_s() < 0.02 {
            sum = std::hint::black_box(sum + 1);
        }
        let spent = CpuTime::of_this_thread() - before;
        assert!(spent.user_s >= 0.0 && spent.system_s >= 0.0 && spent.total_s() < 10.0);
    }
}
