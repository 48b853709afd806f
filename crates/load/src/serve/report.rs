//! What a server did, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use super::counts::Counts;
use super::run::Outcome;
use super::settings::Settings;
use crate::record::CpuTime;

/// The result of one server's run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where it listened.
    pub address: SocketAddr,
    /// What carried the connections.
    pub link: String,
    /// Threads, each with a listener of its own.
    pub threads: usize,
    /// Start to end, s.
    pub duration_s: f64,
    /// First answer to last, s.
    pub served_s: f64,
    /// Requests answered.
    pub requests: u64,
    /// Over `served_s`.
    pub requests_per_s: f64,
    /// Stream bytes that clients took, over `served_s`.
    pub bytes_out_per_s: f64,
    /// Requests that were none.
    pub malformed: u64,
    /// The threads' processor time, s.
    pub cpu_s: f64,
    /// Everything counted, by name ([`Counts::by_name`]).
    pub counts: BTreeMap<String, u64>,
    /// Counters of the user-level stack and its link; empty over kernel sockets.
    pub counters: BTreeMap<String, u64>,
}

impl Report {
    pub(crate) fn new(
        settings: &Settings,
        address: SocketAddr,
        duration: Duration,
        outcomes: Vec<(Outcome, CpuTime)>,
    ) -> Report {
        let mut counts = Counts::default();
        let mut counters = BTreeMap::new();
        let mut cpu_s = 0.0;
        for (outcome, cpu) in outcomes {
            counts.add(&outcome.counts);
            cpu_s += cpu.total_s();
            for (name, count) in outcome.counters {
                *counters.entry(name).or_insert(0) += count;
            }
        }
        let served_s = counts.last_ns.saturating_sub(counts.first_ns) as f64 * 1e-9;
        let per_s = |count: u64| if served_s > 0.0 { count as f64 / served_s } else { 0.0 };
        Report {
            address,
            link: settings.link.name().to_string(),
            threads: settings.threads,
            duration_s: duration.as_secs_f64(),
            served_s,
            requests: counts.requests,
            requests_per_s: per_s(counts.requests),
            bytes_out_per_s: per_s(counts.bytes_out),
            malformed: counts.malformed_total(),
            cpu_s,
            counts: counts.by_name(),
            counters,
        }
    }

    /// As one JSON object on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { requests, served_s, requests_per_s, cpu_s, duration_s, .. } = self;
        writeln!(f, "{requests} requests in {served_s:.2} s: {requests_per_s:.0} requests/s")?;
        writeln!(f, "  sent        {:.1} MB/s", self.bytes_out_per_s / 1e6)?;
        writeln!(f, "  connections {}", self.counts.get("accepted").copied().unwrap_or_default())?;
        writeln!(f, "  processor   {cpu_s:.2} s of {duration_s:.2} s")?;
        let trouble = self.counts.iter().filter(|(name, count)| {
            **count > 0
                && !["accepted", "closed", "requests", "bytes_in", "bytes_out"].contains(&name.as_str())
        });
        for (name, count) in trouble {
            writeln!(f, "  {name}: {count}")?;
        }
        Ok(())
    }
}
