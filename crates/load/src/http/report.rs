//! What a run found out: the figures, as JSON has them. How they are laid out for people is `output::page`'s.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::tally::Summary;
use super::{Rate, Settings};
use crate::output::verdict;
use crate::record::{Failure, Record};
use crate::response::Malformed;

/// A distribution of times, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Smallest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stdev: f64,
    /// Median.
    pub p50: f64,
    /// 75th percentile.
    pub p75: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// 99.999th percentile.
    pub p99_999: f64,
    /// 99.9999th percentile.
    pub p99_9999: f64,
    /// Largest.
    pub max: f64,
}

impl Latency {
    /// Of a histogram in ns. All zero if it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let us = |ns: u64| (ns as f64 / 10.0).round() / 100.0;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        Latency {
            min: us(histogram.min()),
            mean: us(histogram.mean() as u64),
            stdev: us(histogram.stdev() as u64),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            p99_999: at(0.99999),
            p99_9999: at(0.999_999),
            max: us(histogram.max()),
        }
    }
}

/// What was asked of an open loop and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenLoop {
    /// Requests per second asked for, on average over the measured part.
    pub asked_per_s: f64,
    /// Requests per second that were sent.
    pub sent_per_s: f64,
    /// Requests that were due in the measured part and never sent: no connection was free.
    pub unsent: u64,
    /// `even` or `poisson`.
    pub arrivals: String,
    /// Seed of Poisson arrivals: the same one makes the same arrivals.
    pub seed: u64,
    /// How late the generator itself was, µs: from the moment that a request was due and had a connection to the moment
    /// that it was sent.
    pub send_lag_us: Latency,
}

/// The result of one run. Counts and times are of the measured part, without the warm-up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// What was asked for.
    pub url: String,
    /// `xdp` or `kernel`.
    pub link: String,
    /// Generator threads.
    pub threads: usize,
    /// Connections asked for.
    pub connections: usize,
    /// A new connection for each request.
    pub close: bool,
    /// Requests that ended, either way.
    pub requests: u64,
    /// Requests with a complete and expected response.
    pub succeeded: u64,
    /// Requests that failed.
    pub failed_total: u64,
    /// Requests that failed, by kind; every kind is there.
    pub failed: BTreeMap<String, u64>,
    /// Malformed responses, by kind; only kinds that came up.
    pub malformed: BTreeMap<String, u64>,
    /// Length of the measured part, s.
    pub duration_s: f64,
    /// Successes per second.
    pub requests_per_s: f64,
    /// Stream bytes received, heads included, per second.
    pub bytes_in_per_s: f64,
    /// Intended start of a request (in a closed loop its start; with `close` that of its connection) to the end of its
    /// response, µs.
    pub latency_us: Latency,
    /// The request handed over to the end of its response, µs: what the server took, whatever waited before it.
    pub service_us: Latency,
    /// The request handed over to the first byte of its response, µs.
    pub first_byte_us: Latency,
    /// The open loop's rate; nothing in a closed loop.
    pub open_loop: Option<OpenLoop>,
    /// What a reader should know before believing the figures, in sentences: the rate was missed and why, the generator
    /// was the limit, fewer connections than asked for. Empty where there is nothing to say.
    pub remarks: Vec<String>,
    /// SYN to established, µs, over the connections made in the measured part.
    pub connect_us: Latency,
    /// Connections made in the measured part.
    pub connections_made: u64,
    /// Open connections that the server ended, by a FIN or a RST, while the generator would have gone on with them.
    #[serde(default)]
    pub connections_closed_by_server: u64,
    /// Stream bytes received.
    pub bytes_in: u64,
    /// Stream bytes sent.
    pub bytes_out: u64,
    /// The generator threads' processor time, s.
    pub cpu_s: f64,
    /// Its part in user mode, s.
    pub cpu_user_s: f64,
    /// Its part in the kernel, s.
    pub cpu_system_s: f64,
    /// Processor time over requests, µs.
    pub cpu_us_per_request: f64,
    /// Most connections open at once, warm-up included.
    pub connections_open_max: u64,
    /// Counters of the user-level stack and its link, whole run; empty over kernel sockets.
    pub counters: BTreeMap<String, u64>,
    /// All that was counted, for other layouts and for merging with other generators'.
    pub record: Record,
}

/// What a run was, beside what it counted.
#[derive(Debug, Clone)]
struct About {
    url: String,
    link: String,
    threads: usize,
    connections: usize,
    close: bool,
    duration_s: f64,
    asked: Option<Asked>,
    /// Each connection has exactly one request under way, from the beginning to the end.
    steady: bool,
}

/// What was asked of an open loop.
#[derive(Debug, Clone)]
struct Asked {
    /// In the measured part.
    requests: f64,
    arrivals: String,
    seed: u64,
}

impl OpenLoop {
    fn new(asked: Asked, record: &Record, duration_s: f64) -> OpenLoop {
        OpenLoop {
            asked_per_s: per_s(asked.requests, duration_s),
            sent_per_s: per_s(record.sent as f64, duration_s),
            unsent: record.unsent,
            arrivals: asked.arrivals,
            seed: asked.seed,
            send_lag_us: Latency::of(&record.send_lag_ns),
        }
    }
}

fn per_s(count: f64, duration_s: f64) -> f64 {
    if duration_s > 0.0 { count / duration_s } else { 0.0 }
}

impl Report {
    pub(crate) fn new(settings: &Settings, summary: Summary) -> Report {
        let Summary { record, duration, counters } = summary;
        let asked = |rate: &Rate| Asked {
            requests: rate.due(duration),
            arrivals: rate.arrivals.name().to_string(),
            seed: rate.seed,
        };
        let about = About {
            url: settings.targets[0].url().to_string(),
            link: settings.link.name().to_string(),
            threads: settings.threads,
            connections: settings.connections,
            close: settings.close,
            duration_s: duration.as_secs_f64(),
            asked: settings.rate.as_ref().map(asked),
            steady: settings.rate.is_none()
                && settings.workload.is_none()
                && settings.pipeline == 1
                && settings.requests_per_connection.is_none()
                && !settings.close,
        };
        Report::of(about, record, counters)
    }

    fn of(about: About, record: Record, counters: BTreeMap<String, u64>) -> Report {
        let About { url, link, threads, connections, close, duration_s, asked, steady } = about;
        let requests = record.requests();
        let cpu_s = record.cpu.total_s();
        let malformed = Malformed::ALL.map(|kind| (kind.name().to_string(), record.malformed(kind)));
        let mut report = Report {
            url,
            link,
            threads,
            connections,
            close,
            requests,
            succeeded: record.succeeded,
            failed_total: record.failed(),
            failed: Failure::ALL.map(|kind| (kind.name().to_string(), record.failures(kind))).into(),
            malformed: malformed.into_iter().filter(|(_, count)| *count > 0).collect(),
            duration_s,
            requests_per_s: per_s(record.succeeded as f64, duration_s),
            bytes_in_per_s: per_s(record.bytes_in as f64, duration_s),
            latency_us: Latency::of(&record.latency_ns),
            service_us: Latency::of(&record.service_ns),
            first_byte_us: Latency::of(&record.first_byte_ns),
            open_loop: asked.map(|asked| OpenLoop::new(asked, &record, duration_s)),
            remarks: Vec::new(),
            connect_us: Latency::of(&record.connect_ns),
            connections_made: record.connect_ns.len(),
            connections_closed_by_server: record.closed_by_server,
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
            cpu_s,
            cpu_user_s: record.cpu.user_s,
            cpu_system_s: record.cpu.system_s,
            cpu_us_per_request: if requests > 0 { cpu_s * 1e6 / requests as f64 } else { 0.0 },
            connections_open_max: record.open_max,
            counters,
            record,
        };
        report.remarks = verdict::remarks(&report, steady);
        report
    }

    /// What several generators found out at the same time: counts and histograms are added up, nothing is averaged. The
    /// duration is the longest one's. `None` of none.
    #[must_use]
    pub fn merge(reports: Vec<Report>) -> Option<Report> {
        let mut reports = reports.into_iter();
        let first = reports.next()?;
        let mut about = first.about();
        let (mut record, mut counters) = (first.record, first.counters);
        for other in reports {
            about.add(other.about());
            // Each one's most may have been at another time than the others': so many were open at once at most.
            let open_max = record.open_max + other.record.open_max;
            record.merge(&other.record);
            record.open_max = open_max;
            for (name, count) in other.counters {
                *counters.entry(name).or_insert(0) += count;
            }
        }
        Some(Report::of(about, record, counters))
    }

    fn about(&self) -> About {
        About {
            url: self.url.clone(),
            link: self.link.clone(),
            threads: self.threads,
            connections: self.connections,
            close: self.close,
            duration_s: self.duration_s,
            asked: self.open_loop.as_ref().map(|open_loop| Asked {
                requests: open_loop.asked_per_s * self.duration_s,
                arrivals: open_loop.arrivals.clone(),
                seed: open_loop.seed,
            }),
            // A report does not say.
            steady: false,
        }
    }

    /// The mean number of requests under way, by Little's law: rate × mean time.
    #[must_use]
    pub fn under_way(&self) -> f64 {
        let mean_s = self.record.service_ns.mean() * 1e-9;
        self.requests_per_s * mean_s
    }

    /// One line of JSON with the fields of this struct.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Numbers and strings under string keys: serde_json has nothing to refuse.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl About {
    /// Another generator at the same time.
    fn add(&mut self, other: About) {
        join(&mut self.url, &other.url);
        join(&mut self.link, &other.link);
        self.threads += other.threads;
        self.connections += other.connections;
        self.close |= other.close;
        self.duration_s = self.duration_s.max(other.duration_s);
        match (&mut self.asked, other.asked) {
            (Some(asked), Some(more)) => {
                asked.requests += more.requests;
                join(&mut asked.arrivals, &more.arrivals);
            }
            // Beside a closed loop there is no rate that all were asked for.
            (asked, _) => *asked = None,
        }
    }
}

/// Adds a name to others that are separated by spaces, unless it is among them.
fn join(names: &mut String, name: &str) {
    if !names.split(' ').any(|known| known == name) {
        names.push(' ');
        names.push_str(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Times;

    fn report(url: &str, duration_s: f64, latencies_us: impl IntoIterator<Item = u64>) -> Report {
        let about = About {
            url: url.to_string(),
            link: "kernel".to_string(),
            threads: 1,
            connections: 8,
            close: false,
            duration_s,
            asked: Some(Asked { requests: 100.0 * duration_s, arrivals: "even".to_string(), seed: 0 }),
            steady: false,
        };
        let mut record = Record::new();
        for latency_us in latencies_us {
            let ended_ns = latency_us * 1000;
            record.succeed(Times { intended_ns: 0, sent_ns: 100, first_byte_ns: 200, ended_ns });
        }
        record.fail(Failure::Timeout);
        record.open_max = 8;
        Report::of(about, record, BTreeMap::from([("engine.sent".to_string(), 5)]))
    }

    #[test]
    fn merged_reports_are_those_of_one_histogram_of_all_values() {
        let one = report("http://a/", 10.0, (1..1000).map(|i| i * 7));
        let two = report("http://b/", 9.0, (1..3000).map(|i| i * i));
        let all = report("http://a/", 10.0, (1..1000).map(|i| i * 7).chain((1..3000).map(|i| i * i)));
        let merged = Report::merge(vec![one, two]).unwrap();
        assert_eq!(merged.record.latency_ns, all.record.latency_ns);
        assert_eq!((merged.latency_us, merged.service_us), (all.latency_us, all.service_us));
        assert_eq!((merged.threads, merged.connections, merged.connections_open_max), (2, 16, 16));
        assert_eq!((merged.succeeded, merged.failed_total, merged.failed["timeout"]), (3998, 2, 2));
        assert_eq!((merged.url.as_str(), merged.link.as_str()), ("http://a/ http://b/", "kernel"));
        assert_eq!((merged.duration_s, merged.requests_per_s), (10.0, 399.8));
        assert_eq!(merged.open_loop.unwrap().asked_per_s, 190.0);
        assert_eq!(merged.counters["engine.sent"], 10);
        assert!(Report::merge(Vec::new()).is_none());
    }

    #[test]
    fn what_json_says_can_be_read_again() {
        let report = report("http://a/", 10.0, 1..1000);
        let json = report.to_json();
        assert!(!json.contains('\n'));
        let back: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(back.to_json(), json);
        assert_eq!(back.record.latency_ns, report.record.latency_ns);
    }

    /// The remarks of a run of 10 s with 8 connections and 1 ms a request, after a change.
    fn remarks(change: impl FnOnce(&mut About, &mut Record)) -> Vec<String> {
        let mut about = report("http://a/", 10.0, 1..2).about();
        about.asked = None;
        let mut record = Record::new();
        (record.open_max, record.sent) = (8, 80_000);
        for _ in 0..80_000 {
            record.succeed(Times { intended_ns: 0, sent_ns: 0, first_byte_ns: 1, ended_ns: 1_000_000 });
        }
        change(&mut about, &mut record);
        Report::of(about, record, BTreeMap::new()).remarks
    }

    /// Poisson arrivals are as many as chance has it: a rate is missed by what was due and never sent, by nothing else.
    #[test]
    fn a_rate_is_judged_by_what_was_never_sent() {
        let poisson = |unsent: u64| {
            let mut about = report("http://a/", 1.0, 1..2).about();
            about.asked = Some(Asked { requests: 800.0, arrivals: "poisson".to_string(), seed: 3 });
            let mut record = Record::new();
            (record.open_max, record.sent, record.unsent) = (8, 750, unsent);
            for _ in 0..750 {
                record.succeed(Times { intended_ns: 0, sent_ns: 0, first_byte_ns: 1, ended_ns: 1_000_000 });
            }
            Report::of(about, record, BTreeMap::new())
        };
        let kept = poisson(0);
        assert_eq!((kept.remarks.as_slice(), verdict::short_of_load(&kept)), (&[] as &[String], None));
        let missed = poisson(50);
        assert!(
            only(&missed.remarks).contains("missed by 6.25%: 50 of 800 requests"),
            "{:?}",
            missed.remarks
        );
        assert_eq!(verdict::short_of_load(&missed).unwrap(), "rate missed by 6.25%");
    }

    fn only(remarks: &[String]) -> &str {
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        &remarks[0]
    }

    #[test]
    fn the_verdict_says_what_to_know_and_nothing_else() {
        assert_eq!(remarks(|about, _| about.steady = true), [] as [String; 0]);
        let asked =
            |per_s: f64| Some(Asked { requests: 10.0 * per_s, arrivals: "even".to_string(), seed: 0 });
        assert_eq!(remarks(|about, _| about.asked = asked(8000.0)), [] as [String; 0]);

        let missed = remarks(|about, record| (about.asked, record.unsent) = (asked(8040.0), 400));
        assert!(only(&missed).contains("missed by 0.50%") && !missed[0].contains("queue"), "{missed:?}");
        let saturated = remarks(|about, record| (about.asked, record.unsent) = (asked(16_000.0), 80_000));
        let text = only(&saturated);
        assert!(
            text.contains("missed by 50.00%: 80,000 of 160,000 requests that were due were never sent"),
            "{text}"
        );
        assert!(text.contains("8 connections were not enough") && text.contains("The queue grew"), "{text}");
        let limited = remarks(|about, record| {
            (about.asked, record.unsent) = (asked(16_000.0), 80_000);
            record.busy_ns = 9_900_000_000;
        });
        assert!(
            only(&limited).contains("the generator was the limit, its threads were busy 99.00%"),
            "{limited:?}"
        );
        let late = remarks(|about, record| {
            about.asked = asked(8000.0);
            record.send_lag_ns.record_n(2_000_000, 80_000).unwrap();
        });
        assert!(only(&late).contains("sent late: 1 request in 100 by 2.00ms"), "{late:?}");

        let busy = remarks(|_, record| record.busy_ns = 9_900_000_000);
        assert!(only(&busy).starts_with("The generator was the limit"), "{busy:?}");
        let few = remarks(|about, _| about.connections = 9);
        assert!(only(&few).contains("8 of 9 at most"), "{few:?}");
        let idle = remarks(|about, record| {
            (about.steady, about.connections, record.open_max) = (true, 16, 16);
        });
        assert!(only(&idle).contains("8.0 requests were under way, with 16 connections"), "{idle:?}");
        let closed = remarks(|about, record| {
            (about.steady, about.connections, record.open_max) = (true, 16, 16);
            record.closed_by_server = 700;
        });
        let text = only(&closed);
        assert!(text.starts_with("The server closed 700 connections, one for every 114 requests"), "{text}");
        let often = remarks(|_, record| record.closed_by_server = 80_000);
        assert!(
            only(&often).starts_with("The server closed 80,000 connections, one for each request"),
            "{often:?}"
        );
        assert_eq!(
            remarks(|_, record| record.closed_by_server = 80),
            [] as [String; 0],
            "nginx after 1,000 each"
        );
        let nothing = remarks(|_, record| {
            *record = Record::new();
            record.fail(Failure::Timeout);
        });
        assert!(only(&nothing).starts_with("Nothing succeeded"), "{nothing:?}");
        assert!(only(&remarks(|_, record| *record = Record::new())).starts_with("No request ended"));
    }
}
