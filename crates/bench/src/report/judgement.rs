//! Rules of the plan, applied to what was measured.

use serde::{Deserialize, Serialize};

use super::cell::{CellReport, core_gain, core_gain_interval};
use crate::plan::{Metric, Rule};
use crate::statistics::Interval;

/// A rule of the plan, applied to a cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Judgement {
    /// The rule.
    pub rule: Rule,
    /// The cell's name.
    pub place: String,
    /// The figure that the rule is about.
    pub value: f64,
    /// Whether it is as required.
    pub holds: bool,
    /// Why these runs do not decide it, if they do not: then it is not missed either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

impl Judgement {
    /// Whether the figure is certainly not as required.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        !self.holds && self.doubt.is_none()
    }

    /// `holds`, `is missed`, or that it is not known.
    pub(super) fn verdict(&self) -> &'static str {
        match (self.holds, &self.doubt) {
            (_, Some(_)) => "is not decided",
            (true, None) => "holds",
            (false, None) => "is missed",
        }
    }

    /// What is said behind the value.
    pub(super) fn why(&self) -> String {
        self.doubt.as_ref().map(|doubt| format!(" ({doubt})")).unwrap_or_default()
    }
}

impl std::fmt::Display for Judgement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Judgement { rule, place, value, holds, doubt } = self;
        let mark = match (holds, doubt) {
            (_, Some(_)) => '?',
            (true, None) => '+',
            (false, None) => '!',
        };
        write!(f, "{mark} {rule} {}: {place} has {value:.2}{}", self.verdict(), self.why())
    }
}

impl CellReport {
    /// Whether the figures are as a rule of the plan requires; `None` where the cell has no such figure. What has an interval is
    /// judged by all of it.
    pub(super) fn judged(&self, rule: &Rule) -> Option<Judgement> {
        let ours = self.overfly.as_ref();
        let disturbed = ours.is_some_and(|figure| figure.disturbed.len() == figure.points.len());
        let (value, interval, disturbed) = match rule.metric {
            Metric::Gain => (self.gain?, self.gain_interval, self.gain_disturbed),
            Metric::CoreGain => {
                let kernel = self.kernel.as_ref()?;
                (core_gain(kernel, ours?)?, core_gain_interval(kernel, ours?), self.gain_disturbed)
            }
            Metric::Figure(_) => (ours?.median, ours?.median_interval, disturbed),
            Metric::LatencyP99Us => (ours?.latency_p99_us, None, disturbed),
            Metric::ServerCpuUs => (ours?.server_cpu_us_per_request, None, disturbed),
            Metric::Errors => (self.figures().map(|figure| figure.errors as f64).sum(), None, false),
        };
        let place = format!("{} B {} over {}", self.payload_bytes, self.use_of_connections(), self.link);
        let doubt = if disturbed {
            Some("~: the machine was slow in every run".to_owned())
        } else {
            interval.and_then(|interval| undecided(rule, interval))
        };
        Some(Judgement { rule: rule.clone(), place, value, holds: rule.holds(value), doubt })
    }
}

/// Why an interval does not decide a rule, if its ends are on two sides of the limit.
fn undecided(rule: &Rule, interval: Interval) -> Option<String> {
    let Interval { low, high, confidence } = interval;
    (rule.holds(low) != rule.holds(high)).then(|| {
        format!("it lies between {low:.2} and {high:.2}, with {:.0} % confidence", confidence * 100.0)
    })
}
