//! `--find-max`: the largest number of connections, or the highest rate, at which a server keeps what was asked for.
//!
//! [`Goal`] is what was asked for and judges one run. [`Search`] says which load to try next, given what the
//! runs so far have shown: it doubles until a run fails, halves the bracket until it is narrow, then repeats both of
//! its ends, since one run at the edge proves little.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

use crate::arguments::{count, fraction, number, time};
use crate::error::Error;
use crate::output::units;

const OPTION: &str = "--find-max";
const SHAPE: &str = "conditions such as 'p99<1000ms' or 'p50<5ms,p99.9<80ms,errors<0.1%'";
/// A quantile that rests on fewer requests than this is said to.
const REQUESTS_BEYOND: f64 = 10.0;

/// What a condition looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Measure {
    /// The latency that this share of all requests kept; a request that failed kept none.
    Quantile(f64),
    /// Failed requests over all requests.
    Errors,
}

/// `p99<1000ms`.
#[derive(Debug, Clone, PartialEq)]
struct Condition {
    measure: Measure,
    /// ns, or a share.
    below: f64,
    text: String,
}

/// What one run showed.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Latency of the requests that succeeded, ns.
    pub latency_ns: &'a Histogram<u64>,
    /// Requests that failed.
    pub failed: u64,
    /// Why the run was not the load that was asked for, if it was not: a rate missed, connections never open.
    pub short_of_load: Option<String>,
}

/// What must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    conditions: Vec<Condition>,
}

impl Goal {
    /// Reads conditions joined by commas: `p50`, `p99`, `p99.9` and so on and `max` below a time, `errors` below a
    /// share.
    ///
    /// # Errors
    /// [`Error::Usage`] for anything else.
    pub fn parse(given: &str) -> Result<Goal, Error> {
        let conditions =
            given.split(',').map(|part| condition(given, part.trim())).collect::<Result<_, _>>()?;
        Ok(Goal { conditions })
    }

    /// Why a run does not hold; `None` if it does.
    #[must_use]
    pub fn broken_by(&self, run: &Evidence<'_>) -> Option<String> {
        let requests = run.latency_ns.len() + run.failed;
        if requests == 0 {
            return Some("no request ended".to_string());
        }
        if run.short_of_load.is_some() {
            return run.short_of_load.clone();
        }
        self.conditions.iter().find_map(|condition| {
            let (value, text) = condition.of(run, requests);
            (value >= condition.below).then_some(text)
        })
    }

    /// What to distrust: a quantile that rests on a handful of requests.
    #[must_use]
    pub fn doubt(&self, requests: u64) -> Option<String> {
        let beyond = |condition: &&Condition| match condition.measure {
            Measure::Quantile(quantile) if quantile < 1.0 => {
                (1.0 - quantile) * (requests as f64) < REQUESTS_BEYOND
            }
            _ => false,
        };
        self.conditions.iter().rfind(beyond).map(|condition| {
            format!("{requests} requests are few for {}: longer runs (-d) would be surer", condition.name())
        })
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.conditions.iter().map(|condition| condition.text.as_str()).collect();
        f.write_str(&texts.join(", "))
    }
}

impl Condition {
    fn name(&self) -> &str {
        self.text.split('<').next().unwrap_or_default().trim_end()
    }

    /// The measured value, and how to say it.
    fn of(&self, run: &Evidence<'_>, requests: u64) -> (f64, String) {
        match self.measure {
            Measure::Quantile(quantile) => {
                let succeeded = run.latency_ns.len() as f64;
                let share = quantile * requests as f64 / succeeded;
                if share > 1.0 + 1e-9 {
                    return (f64::INFINITY, format!("{} is a failed request", self.name()));
                }
                let value_ns = run.latency_ns.value_at_quantile(share) as f64;
                (value_ns, format!("{} {}", self.name(), units::time(value_ns / 1e3)))
            }
            Measure::Errors => {
                let share = run.failed as f64 / requests as f64;
                (share, format!("errors {}", units::percent(share)))
            }
        }
    }
}

fn condition(given: &str, part: &str) -> Result<Condition, Error> {
    let wrong = || Error::usage(OPTION, given, SHAPE);
    let (name, limit) = part.split_once('<').ok_or_else(wrong)?;
    let (name, limit) = (name.trim(), limit.trim());
    let measure = match name {
        "errors" => Measure::Errors,
        "max" => Measure::Quantile(1.0),
        _ => {
            let percent = name.strip_prefix('p').and_then(|digits| digits.parse::<f64>().ok());
            let percent = percent.filter(|percent| (0.0..100.0).contains(percent)).ok_or_else(wrong)?;
            Measure::Quantile(percent / 100.0)
        }
    };
    let below = match measure {
        Measure::Errors => fraction(OPTION, limit)?,
        // A bare number would be seconds elsewhere: here it is more often a mistake.
        Measure::Quantile(_) if limit.ends_with(|c: char| c.is_ascii_digit()) => return Err(wrong()),
        Measure::Quantile(_) => time(OPTION, limit)?.as_nanos() as f64,
    };
    // `errors<1` is meant as a percentage, and every run would hold.
    if below <= 0.0 || measure == Measure::Errors && below >= 1.0 {
        return Err(wrong());
    }
    Ok(Condition { measure, below, text: format!("{name} < {limit}") })
}

/// Loads to look among: `-c 16:4096` or `-R 1k:100k`, both ends included. A number alone is where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The smallest load of interest.
    pub low: u64,
    /// The largest.
    pub high: u64,
}

impl Range {
    /// Reads `LOW:HIGH` or `LOW`, which has no end but `largest`.
    ///
    /// # Errors
    /// [`Error::Usage`] naming `option`.
    pub fn parse(option: &'static str, given: &str, largest: u64) -> Result<Range, Error> {
        let (low, high) = match given.split_once(':') {
            Some((low, high)) => (count(option, low)?, count(option, high)?),
            None => (count(option, given)?, largest),
        };
        if low == 0 || low > high || high > largest {
            return Err(Error::usage(
                option,
                given,
                format!("LOW:HIGH from 1 to {largest}, such as 16:4096"),
            ));
        }
        Ok(Range { low, high })
    }
}

/// A search, on the command line.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Search for the largest load")]
pub struct SearchArgs {
    /// Find the largest -c LOW:HIGH, or -R LOW:HIGH, that keeps 'p99<1000ms' or 'p50<5ms,p99.9<80ms,errors<0.1%'
    #[arg(long, value_name = "CONDITIONS")]
    pub find_max: Option<String>,
    /// Runs at the answer, and at the load next to it that fails [default: 5]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub find_repeats: Option<String>,
    /// How close the two are, as a share of the answer [default: 2%]
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub find_precision: Option<String>,
}

impl SearchArgs {
    /// The search that was asked for.
    pub(crate) fn search(&self, range: Range) -> Result<Search, Error> {
        let repeats = self.find_repeats.as_deref().unwrap_or("5");
        let precision = self.find_precision.as_deref().unwrap_or("2%");
        let search = Search {
            range,
            precision: fraction("--find-precision", precision)?,
            repeats: number("--find-repeats", repeats)?,
        };
        if !(1..=100).contains(&search.repeats) {
            return Err(Error::usage("--find-repeats", repeats, "1 to 100 runs"));
        }
        Ok(search)
    }
}

/// How to look.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// Where to look.
    pub range: Range,
    /// The answer and the next load that fails are no further apart than this share of the answer.
    pub precision: f64,
    /// Runs at the answer and at the load that fails next to it.
    pub repeats: u32,
}

/// What the runs at one load showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// Connections, or requests/s.
    pub load: u64,
    /// How often it was run.
    pub runs: u32,
    /// How many of them held.
    pub held: u32,
    first_held: bool,
}

impl Edge {
    fn holds(&self) -> bool {
        // A tie is not over yet: until the next run, what the first one said stands.
        2 * self.held > self.runs || (2 * self.held == self.runs && self.first_held)
    }

    /// How sure it is that most runs at this load would end as most of these did (sign test): 1 − the chance of as
    /// many, or more, ending so by luck if each were as likely to end one way as the other.
    #[must_use]
    pub fn confidence(&self) -> f64 {
        let agreeing = self.held.max(self.runs - self.held);
        let mut ways = 1.0;
        let mut by_luck = 0.0;
        for k in 0..=self.runs {
            if k >= agreeing {
                by_luck += ways;
            }
            ways *= f64::from(self.runs - k) / f64::from(k + 1);
        }
        1.0 - by_luck / 2f64.powi(self.runs as i32)
    }
}

/// Where a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The largest load that holds; `None`: not even the smallest one does.
    pub holds: Option<Edge>,
    /// The next load above it that was tried and fails; `None`: the largest one holds.
    pub fails: Option<Edge>,
}

impl Bounds {
    /// What these runs show, each a load and whether it held.
    #[must_use]
    pub fn of(runs: impl IntoIterator<Item = (u64, bool)>) -> Bounds {
        let mut seen = BTreeMap::new();
        for (load, held) in runs {
            note(&mut seen, load, held);
        }
        Bounds::between(&seen)
    }

    fn between(seen: &BTreeMap<u64, Edge>) -> Bounds {
        let (holds, fails) = bracket(seen);
        Bounds { holds, fails }
    }
}

impl Search {
    /// Looks, with `probe` saying of one run at a load whether it held.
    ///
    /// # Errors
    /// Those of `probe`.
    pub fn run(&self, mut probe: impl FnMut(u64) -> Result<bool, Error>) -> Result<Bounds, Error> {
        let mut seen = BTreeMap::new();
        while let Some(load) = self.next(&seen) {
            note(&mut seen, load, probe(load)?);
        }
        Ok(Bounds::between(&seen))
    }

    /// The load to run next; `None` when the edge is known.
    fn next(&self, seen: &BTreeMap<u64, Edge>) -> Option<u64> {
        let unsure = |edge: &Edge| edge.runs < self.repeats;
        match bracket(seen) {
            (None, None) => Some(self.range.low),
            (Some(holds), None) if holds.load < self.range.high => {
                Some(holds.load.saturating_mul(2).min(self.range.high))
            }
            (Some(holds), Some(fails)) if fails.load - holds.load > self.resolution(holds.load) => {
                Some(holds.load.midpoint(fails.load))
            }
            (holds, fails) => holds.filter(unsure).or(fails.filter(unsure)).map(|edge| edge.load),
        }
    }

    fn resolution(&self, load: u64) -> u64 {
        ((load as f64 * self.precision) as u64).max(1)
    }
}

/// One more run.
fn note(seen: &mut BTreeMap<u64, Edge>, load: u64, held: bool) {
    let edge = seen.entry(load).or_insert(Edge { load, runs: 0, held: 0, first_held: held });
    edge.runs += 1;
    edge.held += u32::from(held);
}

/// The smallest load that fails, and the largest below it.
fn bracket(seen: &BTreeMap<u64, Edge>) -> (Option<Edge>, Option<Edge>) {
    let fails = seen.values().find(|edge| !edge.holds()).copied();
    let below = fails.map_or(u64::MAX, |edge| edge.load);
    (seen.range(..below).next_back().map(|(_, edge)| *edge), fails)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values_us: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new(3).unwrap();
        for value_us in values_us {
            histogram.record(value_us * 1000).unwrap();
        }
        histogram
    }

    fn broken(goal: &str, latency_ns: &Histogram<u64>, failed: u64) -> Option<String> {
        Goal::parse(goal).unwrap().broken_by(&Evidence { latency_ns, failed, short_of_load: None })
    }

    #[test]
    fn conditions_hold_or_say_what_broke_them() {
        let latency = histogram(1..=1000);
        assert_eq!(broken("p99<1000ms", &latency, 0), None);
        assert_eq!(broken("p50<501us, p99 < 991us", &latency, 0), None);
        assert_eq!(broken("p99<900us", &latency, 0).unwrap(), "p99 990.21us");
        assert_eq!(broken("max<1ms", &latency, 0).unwrap(), "max 1.00ms");
        assert_eq!(broken("errors<0.1%", &latency, 1), None);
        assert_eq!(broken("p50<1s,errors<0.1%", &latency, 2).unwrap(), "errors 0.20%");
        assert_eq!(broken("p50<1s", &histogram([]), 0).unwrap(), "no request ended");
    }

    #[test]
    fn a_failed_request_is_slower_than_any_other() {
        // 5 of 100 failed: the 99th percentile of all is one of them, whatever the others took.
        let latency = histogram([1; 95]);
        assert_eq!(broken("p99<1s", &latency, 5).unwrap(), "p99 is a failed request");
        assert_eq!(broken("p95<1s", &latency, 5), None);
        assert_eq!(broken("p50<1s", &histogram([]), 5).unwrap(), "p50 is a failed request");
    }

    #[test]
    fn a_run_that_missed_its_load_does_not_hold() {
        let goal = Goal::parse("p99<1s").unwrap();
        let latency_ns = &histogram([1]);
        let why = Some("rate missed".to_string());
        assert_eq!(goal.broken_by(&Evidence { latency_ns, failed: 0, short_of_load: why.clone() }), why);
    }

    #[test]
    fn few_requests_are_doubted() {
        let goal = Goal::parse("p50<1s,p99.9<1s").unwrap();
        assert!(goal.doubt(9_999).unwrap().contains("p99.9"));
        assert_eq!(goal.doubt(10_001), None);
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        for wrong in [
            "",
            "p99",
            "p99>1s",
            "p99<",
            "p100<1s",
            "p-1<1s",
            "px<1s",
            "p99<5",
            "p99<0ms",
            "errors<2",
            "errors<1",
            "errors<100%",
            "errors<x%",
            "p99<1s,",
            "mean<1s",
        ] {
            let error = Goal::parse(wrong).unwrap_err();
            assert!(error.is_usage() && error.to_string().starts_with(OPTION), "{wrong}: {error}");
        }
        assert_eq!(Goal::parse("p99<1000ms,errors<0.1%").unwrap().to_string(), "p99 < 1000ms, errors < 0.1%");
    }

    #[test]
    fn ranges() {
        let range = |given| Range::parse("-c", given, 1_000_000).map(|range| (range.low, range.high)).ok();
        assert_eq!(range("16:4k"), Some((16, 4000)));
        assert_eq!(range("16"), Some((16, 1_000_000)));
        for wrong in ["0", "5:4", "1:2M", ":5", "5:", "x"] {
            assert_eq!(range(wrong), None, "{wrong}");
        }
    }

    fn search(low: u64, high: u64) -> Search {
        Search { range: Range { low, high }, precision: 0.02, repeats: 5 }
    }

    /// The answer to a search where loads up to `capacity` hold, and how many runs it took.
    fn found(search: Search, capacity: u64) -> (Option<u64>, Option<u64>, usize) {
        let mut runs = 0;
        let answer = search.run(|load| {
            runs += 1;
            Ok(load <= capacity)
        });
        let answer = answer.unwrap();
        (answer.holds.map(|edge| edge.load), answer.fails.map(|edge| edge.load), runs)
    }

    #[test]
    fn every_capacity_is_found_to_the_precision() {
        for capacity in (1..3000).chain([9_999, 123_456, 999_999]) {
            let (holds, fails, runs) = found(search(1, 1_000_000), capacity);
            let (holds, fails) = (holds.unwrap(), fails.unwrap());
            assert!(holds <= capacity && capacity < fails, "{capacity}: {holds}, {fails}");
            assert!(fails - holds <= (holds / 50).max(1), "{capacity}: {holds}, {fails}");
            assert!(runs <= 40, "{capacity}: {runs} runs");
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        assert_eq!(found(search(16, 4096), 15), (None, Some(16), 5));
        assert_eq!(found(search(16, 20), 100), (Some(20), None, 6));
        assert_eq!(found(search(16, 16), 16), (Some(16), None, 5));
        let (holds, fails, _) = found(search(16, 4096), 16);
        assert_eq!((holds, fails), (Some(16), Some(17)));
    }

    #[test]
    fn unlucky_runs_do_not_decide() {
        // Every run at 64 and at 100 is judged wrongly the first time.
        let mut unlucky = vec![64, 100];
        let answer = search(16, 4096).run(|load| {
            let luck =
                unlucky.iter().position(|wrong| *wrong == load).map(|index| unlucky.swap_remove(index));
            Ok((load <= 100) == luck.is_none())
        });
        let answer = answer.unwrap();
        let (holds, fails) = (answer.holds.unwrap(), answer.fails.unwrap());
        assert!(holds.load <= 100 && fails.load > 100 && fails.load - holds.load <= 2, "{answer:?}");
        assert_eq!((holds.runs, fails.runs), (5, 5));
    }

    #[test]
    fn noise_near_the_edge_ends_near_the_edge() {
        for seed in 1..=200u64 {
            let mut state = seed;
            let answer = search(1, 1 << 20).run(|load| {
                // xorshift64: load 900 always holds, 1100 never, linear between.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let chance = ((1100.0 - load as f64) / 200.0).clamp(0.0, 1.0);
                Ok((state >> 11) as f64 / (1u64 << 53) as f64 <= chance)
            });
            let holds = answer.unwrap().holds.unwrap();
            assert!((850..=1100).contains(&holds.load), "seed {seed}: {holds:?}");
            assert_eq!(holds.runs, 5, "seed {seed}");
        }
    }

    #[test]
    fn a_probe_that_cannot_run_ends_the_search() {
        let result = search(1, 100).run(|_| Err(Error::machine("probing", "no ports")));
        assert_eq!(result.unwrap_err().to_string(), "probing: no ports");
    }

    #[test]
    fn confidence_is_the_sign_test() {
        let confidence = |held, runs| Edge { load: 1, runs, held, first_held: true }.confidence();
        assert_eq!(confidence(5, 5), 0.96875);
        assert_eq!(confidence(0, 5), 0.96875);
        assert_eq!(confidence(4, 5), 0.8125);
        assert_eq!(confidence(3, 5), 0.5);
        assert_eq!(confidence(1, 1), 0.5);
    }
}
