//! What a run found out, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::counts::Counts;
use super::ramp::{Ended, Standing};
use super::settings::Settings;
use crate::crew::Outcome;
use crate::record::CpuTime;

/// How the streams did at one time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Moment {
    /// Since the start, s.
    pub at_s: f64,
    /// What had been counted.
    #[serde(flatten)]
    pub standing: Standing,
    /// Content received since the moment before, bits/s.
    pub rate_bps: f64,
    /// The ramp is in its approach.
    pub approaching: bool,
}

/// The result of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was asked for.
    pub url: String,
    /// What carried the streams.
    pub link: String,
    /// Threads of the generator.
    pub threads: usize,
    /// The answer: the most streams that streamed from one look to the next while none was lost.
    pub sustained: u64,
    /// Why the run ended.
    pub ended: Ended,
    /// Why the run ended, in words.
    pub why: String,
    /// Start to end, s.
    pub duration_s: f64,
    /// What had been counted at the end.
    #[serde(flatten)]
    pub standing: Standing,
    /// Streams that are no more, by cause; only causes that came up.
    pub losses: BTreeMap<&'static str, u64>,
    /// Requests for blocks.
    pub requests: u64,
    /// Connections made.
    pub connections: u64,
    /// Attempts to connect that failed.
    pub connects_failed: u64,
    /// The highest rate of content in any second, bits/s.
    pub rate_bps_max: f64,
    /// The least that a buffer held after a tick, bytes; nothing if none drained.
    pub level_min: Option<u64>,
    /// The longest that a tick came late, ms: the generator's own fault.
    pub tick_late_ms_max: f64,
    /// The threads' processor time, s.
    pub cpu_s: f64,
    /// Second by second.
    pub moments: Vec<Moment>,
    /// Counters of the user-level stack and its link; empty over kernel sockets.
    pub counters: BTreeMap<String, u64>,
}

/// A tick that late is a fault of the generator: its buffers then drain in jerks.
const LATE_MS: f64 = 100.0;

impl Report {
    pub(super) fn new(
        settings: &Settings,
        ended: Ended,
        sustained: u64,
        duration_s: f64,
        moments: Vec<Moment>,
        outcomes: Vec<(Outcome<Counts>, CpuTime)>,
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
        Report {
            url: settings.url.clone(),
            link: settings.link.name().to_string(),
            threads: settings.threads,
            sustained,
            ended,
            why: words(ended, &counts, settings),
            duration_s,
            standing: counts.standing,
            losses: counts.losses_by_name(),
            requests: counts.requests,
            connections: counts.connections,
            connects_failed: counts.connects_failed,
            rate_bps_max: moments.iter().map(|moment| moment.rate_bps).fold(0.0, f64::max),
            level_min: counts.level_min,
            tick_late_ms_max: counts.tick_late_ns_max as f64 / 1e6,
            cpu_s,
            moments,
            counters,
        }
    }

    /// As one JSON object on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

fn words(ended: Ended, counts: &Counts, settings: &Settings) -> String {
    let Standing { dropped, failed, streaming, .. } = counts.standing;
    let open = counts.standing.open();
    let causes: Vec<String> =
        counts.losses_by_name().iter().map(|(name, count)| format!("{name} {count}")).collect();
    match ended {
        Ended::Dropped => format!("the buffers of {dropped} streams ran dry"),
        Ended::Failed => format!("the connections of {failed} streams failed ({})", causes.join(", ")),
        Ended::StreamsReached => {
            format!("all {streaming} streams lasted for {} s", settings.ramp.hold.as_secs_f64())
        }
        Ended::NotStreaming => format!(
            "only {streaming} of {open} streams had filled their buffers after {} s",
            settings.ramp.patience.as_secs_f64()
        ),
        Ended::TimeOver => "the time was over (-d)".to_string(),
        Ended::OnRequest => "it was told to stop".to_string(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standing = &self.standing;
        writeln!(
            f,
            "{} streams sustained; ended after {:.1} s: {}",
            self.sustained, self.duration_s, self.why
        )?;
        writeln!(
            f,
            "  opened {}, connecting {}, filling {}, streaming {}, dropped {}, failed {}",
            standing.opened,
            standing.connecting,
            standing.filling,
            standing.streaming,
            standing.dropped,
            standing.failed
        )?;
        writeln!(
            f,
            "  content   {:.3} Gb/s at most, {:.1} MB in {} requests over {} connections",
            self.rate_bps_max / 1e9,
            standing.bytes as f64 / 1e6,
            self.requests,
            self.connections
        )?;
        if let Some(level) = self.level_min {
            writeln!(f, "  buffers   {level} bytes at least")?;
        }
        for (cause, count) in &self.losses {
            writeln!(f, "  {cause}: {count}")?;
        }
        writeln!(f, "  processor {:.2} s of {} threads", self.cpu_s, self.threads)?;
        if self.tick_late_ms_max > LATE_MS {
            writeln!(
                f,
                "  The generator was late by up to {:.0} ms: give it more processors (-t, --cpus), or fewer streams.",
                self.tick_late_ms_max
            )?;
        }
        Ok(())
    }
}
