//! One look at a process, and what has changed since the one before.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use overfly_terminal::Foreign;
use serde_json::{Map, Value, json};

use super::{Choice, Left, Subject};

/// Counters, and the time on a core, at one moment.
struct Reading {
    at: Instant,
    cpu: Option<Duration>,
    counters: Vec<(Foreign, u64)>,
}

/// A process now, and how fast its counters grow.
#[derive(Clone)]
pub(super) struct Sample {
    pub(super) process: u32,
    pub(super) program: Foreign,
    pub(super) user: u32,
    pub(super) interface: Foreign,
    pub(super) stack: Option<u16>,
    /// Since it showed its counters last, in milliseconds.
    pub(super) age_ms: u64,
    /// Of one core; `None` at the first look.
    pub(super) cpu_percent: Option<f64>,
    /// By the names that the process has for them.
    pub(super) counters: Vec<(Foreign, u64)>,
    /// Counters' growth a second, in the same order; empty at the first look.
    pub(super) rates: Vec<f64>,
}

impl Sample {
    /// A counter; 0 where the process has none of that name.
    pub(super) fn count(&self, name: &str) -> u64 {
        self.counters.iter().find(|(its, _)| its.raw() == name).map_or(0, |&(_, value)| value)
    }

    /// A counter's growth a second.
    pub(super) fn rate(&self, name: &str) -> f64 {
        let index = self.counters.iter().position(|(its, _)| its.raw() == name);
        index.and_then(|index| self.rates.get(index).copied()).unwrap_or(0.0)
    }

    /// The growth a second of all counters that `is_meant`.
    pub(super) fn rate_of(&self, is_meant: impl Fn(&str) -> bool) -> f64 {
        let named = self.counters.iter().zip(&self.rates);
        named.filter(|((name, _), _)| is_meant(name.raw())).map(|(_, rate)| rate).sum()
    }

    /// Why sockets are the kernel's, and how many for each reason.
    pub(super) fn reasons(&self) -> impl Iterator<Item = (Foreign, u64)> {
        self.counters
            .iter()
            .filter_map(|(name, value)| Some((name.raw().strip_prefix("kernel.")?.into(), *value)))
            .filter(|(_, value)| *value > 0)
    }

    /// Everything as JSON.
    pub(super) fn json(&self) -> Value {
        let counters: Map<String, Value> =
            self.counters.iter().map(|(name, value)| (name.raw().to_owned(), json!(value))).collect();
        let rates: Map<String, Value> = self
            .counters
            .iter()
            .zip(&self.rates)
            .filter(|((name, _), _)| !name.raw().starts_with("now."))
            .map(|((name, _), rate)| (name.raw().to_owned(), json!(rate)))
            .collect();
        json!({
            "process": self.process,
            "program": self.program.raw(),
            "user": self.user,
            "interface": self.interface.raw(),
            "stack": self.stack,
            "age_ms": self.age_ms,
            "cpu_percent": self.cpu_percent,
            "left_to_kernel": self.reasons().map(|(why, count)| (why.raw().to_owned(), json!(count))).collect::<Map<_, _>>(),
            "counters": counters,
            "rates_per_s": rates,
        })
    }
}

/// Whether a counter counts frames or datagrams that were lost here.
pub(super) fn is_drop(name: &str) -> bool {
    let name = name.split_once('.').map_or(name, |(_, name)| name);
    name.starts_with("drop_")
        || name.starts_with("dropped_")
        || matches!(
            name,
            "receive_invalid"
                | "receive_too_long"
                | "receive_unfinished"
                | "receive_missed"
                | "transmit_dropped"
                | "transmit_no_room"
                | "transmit_no_memory"
                | "transmit_interface_down"
                | "transmit_failed"
                | "datagram_overflows"
        )
}

/// Looks again and again.
pub(super) struct Sampler {
    choice: Choice,
    /// By process and stack: a process may have several.
    before: HashMap<(u32, Option<u16>), Reading>,
}

impl Sampler {
    pub(super) fn new(choice: &Choice) -> Sampler {
        Sampler { choice: choice.clone(), before: HashMap::new() }
    }

    /// Every process that is meant, as it is now, and what no stack was given.
    ///
    /// # Errors
    /// Those of [`Choice::subjects`].
    pub(super) fn look(&mut self) -> Result<(Vec<Sample>, Vec<Left>), String> {
        let (subjects, left) = self.choice.subjects()?;
        let mut now = HashMap::new();
        let samples = subjects
            .into_iter()
            .map(|subject| {
                let counters = subject.watched.view.counters().into_iter();
                let reading = Reading {
                    at: Instant::now(),
                    cpu: cpu_time(subject.watched.process),
                    counters: counters.map(|(name, value)| (name.into(), value)).collect(),
                };
                let key = (subject.watched.process, subject.watched.stack);
                let sample = compare(&subject, self.before.get(&key), &reading);
                now.insert(key, reading);
                sample
            })
            .collect();
        self.before = now;
        Ok((samples, left))
    }
}

fn compare(subject: &Subject, before: Option<&Reading>, now: &Reading) -> Sample {
    let comparable = before.filter(|before| before.counters.len() == now.counters.len());
    let seconds = comparable.map(|before| (now.at - before.at).as_secs_f64().max(1e-6));
    let rates = comparable.zip(seconds).map(|(before, seconds)| {
        let pairs = before.counters.iter().zip(&now.counters);
        pairs.map(|((_, then), (_, now))| now.saturating_sub(*then) as f64 / seconds).collect()
    });
    let cpu_percent = before.and_then(|before| {
        let used = now.cpu?.saturating_sub(before.cpu?);
        Some(100.0 * used.as_secs_f64() / (now.at - before.at).as_secs_f64().max(1e-6))
    });
    Sample {
        process: subject.watched.process,
        program: subject.program.clone(),
        user: subject.watched.user,
        interface: subject.interface.clone(),
        stack: subject.watched.stack,
        age_ms: super::monotonic_us().saturating_sub(subject.watched.view.shown_us()) / 1000,
        cpu_percent,
        counters: now.counters.clone(),
        rates: rates.unwrap_or_default(),
    }
}

/// What a process has used of cores since it began (proc_pid_stat(5), fields 14 and 15).
fn cpu_time(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_is_known_by_its_name() {
        for name in [
            "engine.drop_checksum",
            "link.transmit_dropped",
            "link.dropped_full",
            "link.receive_missed",
            "sockets.datagram_overflows",
        ] {
            assert!(is_drop(name), "{name}");
        }
        for name in ["engine.rx_frames", "link.kicks", "kernel.rule"] {
            assert!(!is_drop(name), "{name}");
        }
    }

    #[test]
    fn this_process_has_used_some_time() {
        assert!(cpu_time(std::process::id()).is_some());
        assert_eq!(cpu_time(u32::MAX), None);
    }
}
