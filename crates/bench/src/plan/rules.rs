//! What a plan requires of its figures: `gain >= 1.5`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Measure;

/// A figure and what it must be, in every cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    /// Which figure.
    pub metric: Metric,
    /// `true`: the figure must not be below the limit; else not above it.
    pub at_least: bool,
    /// In the figure's own unit.
    pub limit: f64,
}

/// Figures that a rule may be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Overfly's figure over the kernel's.
    Gain,
    /// The kernel's server CPU for each request over Overfly's: how much more a second of it does, whatever the generator reaches.
    CoreGain,
    /// Overfly's median of what the plan's load comes to.
    Figure(Measure),
    /// Overfly's 99th percentile, µs.
    LatencyP99Us,
    /// µs of server CPU for each request on Overfly.
    ServerCpuUs,
    /// Failed runs and requests of all modes.
    Errors,
}

impl Metric {
    const OTHERS: [(Metric, &str); 5] = [
        (Metric::Gain, "gain"),
        (Metric::CoreGain, "core_gain"),
        (Metric::LatencyP99Us, "latency_p99_us"),
        (Metric::ServerCpuUs, "server_cpu_us_per_request"),
        (Metric::Errors, "errors"),
    ];

    fn all() -> impl Iterator<Item = (Metric, &'static str)> {
        let figures = Measure::ALL.into_iter().map(|measure| (Metric::Figure(measure), measure.key()));
        Metric::OTHERS.into_iter().chain(figures)
    }

    /// The figure of a load, if it is one.
    #[must_use]
    pub fn measure(self) -> Option<Measure> {
        match self {
            Metric::Figure(measure) => Some(measure),
            _ => None,
        }
    }
}

impl Rule {
    /// Whether a value is as required.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        if self.at_least { value >= self.limit } else { value <= self.limit }
    }
}

impl TryFrom<String> for Rule {
    type Error = String;

    fn try_from(text: String) -> Result<Rule, String> {
        let wrong = || {
            let names = Metric::all().map(|(_, name)| name).collect::<Vec<_>>().join(", ");
            format!(
                "`{text}` is no rule; expected a figure ({names}), >= or <=, and a number, such as `gain >= 1.5`"
            )
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let [name, relation, limit] = words[..] else { return Err(wrong()) };
        let metric = Metric::all().find(|(_, its)| *its == name).ok_or_else(wrong)?.0;
        let at_least = match relation {
            ">=" => true,
            "<=" => false,
            _ => return Err(wrong()),
        };
        let limit = limit.parse().ok().filter(|limit: &f64| limit.is_finite()).ok_or_else(wrong)?;
        Ok(Rule { metric, at_least, limit })
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> String {
        rule.to_string()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Metric::all().find(|(metric, _)| *metric == self.metric).map_or("", |(_, name)| name);
        write!(f, "{name} {} {}", if self.at_least { ">=" } else { "<=" }, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_figure_a_relation_and_a_number() {
        let rule = |text: &str| Rule::try_from(text.to_owned());
        let gain = rule("gain >= 1.5").unwrap();
        assert!(gain.holds(1.5) && gain.holds(2.0) && !gain.holds(1.4) && !gain.holds(f64::NAN));
        let errors = rule("errors <= 0").unwrap();
        assert!(errors.holds(0.0) && !errors.holds(1.0));
        assert_eq!(String::from(errors), "errors <= 0");
        for wrong in ["", "gain", "gain > 1", "gian >= 1", "gain >= x", "gain >= inf", "gain >= 1 2"] {
            assert!(rule(wrong).unwrap_err().contains("such as `gain >= 1.5`"), "{wrong}");
        }
    }
}
