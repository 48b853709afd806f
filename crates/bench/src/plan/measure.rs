//! What a point of a plan is: the plan's load decides.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Link;

/// The figure that a load comes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Successes of a generator of requests, a second.
    #[default]
    RequestsPerS,
    /// Connections at once, the most at which a condition holds.
    MostConnections,
    /// Requests due a second, the most at which a condition holds.
    MostRequestsPerS,
    /// Application flows that were begun and ended well, a second.
    FlowsPerS,
    /// Video streams of which none runs dry.
    Streams,
    /// Half of a message's round trip, the median, µs.
    HalfRoundTripUs,
    /// Memory of the whole machine for a connection that is idle, bytes.
    BytesPerConnection,
}

/// A figure in words. `summary.json` has it, for readers that do not know this version's figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// As rules name it: `requests_per_s`.
    pub key: Cow<'static, str>,
    /// The heading of a column or a chart: `Requests per second`.
    pub name: Cow<'static, str>,
    /// `requests/s`
    pub unit: Cow<'static, str>,
    /// What the server's processor time is counted for: `request`.
    pub each: Cow<'static, str>,
    /// Less of it is better.
    pub smaller_is_better: bool,
    /// Something that happens so many times a second, each time for some of the server's processor time.
    pub is_rate: bool,
    /// Decimal places that it is written with.
    pub places: usize,
}

impl Default for Described {
    /// Of a session before there were others.
    fn default() -> Described {
        Measure::default().described()
    }
}

impl Measure {
    /// All of them.
    pub const ALL: [Measure; 7] = [
        Measure::RequestsPerS,
        Measure::MostConnections,
        Measure::MostRequestsPerS,
        Measure::FlowsPerS,
        Measure::Streams,
        Measure::HalfRoundTripUs,
        Measure::BytesPerConnection,
    ];

    /// As rules name it.
    #[must_use]
    pub fn key(self) -> &'static str {
        self.words().0
    }

    /// Name, heading, unit, and what a server's processor time is counted for.
    fn words(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Measure::RequestsPerS => ("requests_per_s", "Requests per second", "requests/s", "request"),
            Measure::MostConnections => (
                "most_connections",
                "Most connections at which the condition holds",
                "connections",
                "connection",
            ),
            Measure::MostRequestsPerS => {
                ("most_requests_per_s", "Highest rate at which the condition holds", "requests/s", "request")
            }
            Measure::FlowsPerS => ("flows_per_s", "Flows per second", "flows/s", "flow"),
            Measure::Streams => ("streams", "Streams sustained", "streams", "stream"),
            Measure::HalfRoundTripUs => ("half_round_trip_us", "Half round trip, median", "µs", "message"),
            Measure::BytesPerConnection => {
                ("bytes_per_connection", "Memory for an idle connection", "bytes", "connection")
            }
        }
    }

    /// Whether less of it is better.
    #[must_use]
    pub fn smaller_is_better(self) -> bool {
        matches!(self, Measure::HalfRoundTripUs | Measure::BytesPerConnection)
    }

    /// Whether it is a rate of something that takes some of the server's processor time each time.
    #[must_use]
    pub fn is_rate(self) -> bool {
        matches!(self, Measure::RequestsPerS | Measure::FlowsPerS)
    }

    /// Whether the gain over a link is that of a server core instead of the figure's: where the two sides have different
    /// generators, rates would compare those.
    #[must_use]
    pub fn gain_is_of_a_core(self, link: Link) -> bool {
        link == Link::Memif && self.is_rate()
    }

    /// For people and pages.
    #[must_use]
    pub fn described(self) -> Described {
        let (key, name, unit, each) = self.words();
        Described {
            key: key.into(),
            name: name.into(),
            unit: unit.into(),
            each: each.into(),
            smaller_is_better: self.smaller_is_better(),
            is_rate: self.is_rate(),
            places: if self == Measure::HalfRoundTripUs { 2 } else { 0 },
        }
    }
}

impl Described {
    /// How much better `ours` is than `theirs`: above 1 is better, whichever way the figure goes.
    #[must_use]
    pub fn gain(&self, ours: f64, theirs: f64) -> f64 {
        if self.smaller_is_better { theirs / ours } else { ours / theirs }
    }

    /// A value of it as tables have it.
    #[must_use]
    pub fn shown(&self, value: f64) -> String {
        let digits = format!("{value:.*}", self.places);
        let (whole, fraction) = digits.split_once('.').map_or((digits.as_str(), ""), |parts| parts);
        let mut text = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index).is_multiple_of(3) && !text.ends_with('-') {
                text.push(',');
            }
            text.push(digit);
        }
        if !fraction.is_empty() {
            text.push('.');
            text.push_str(fraction);
        }
        text
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figures_key_is_its_name_in_json() {
        for measure in Measure::ALL {
            assert_eq!(serde_json::to_value(measure).unwrap(), measure.key());
            let described = measure.described();
            let text = serde_json::to_string(&described).unwrap();
            assert_eq!(serde_json::from_str::<Described>(&text).unwrap(), described);
        }
    }

    #[test]
    fn a_gain_above_one_is_better_whichever_way_the_figure_goes() {
        assert_eq!(Measure::RequestsPerS.described().gain(300.0, 100.0), 3.0);
        assert_eq!(Measure::HalfRoundTripUs.described().gain(5.0, 15.0), 3.0);
    }

    #[test]
    fn values_are_written_as_their_size_asks() {
        assert_eq!(Measure::RequestsPerS.described().shown(1_234_567.8), "1,234,568");
        assert_eq!(Measure::RequestsPerS.described().shown(-123_456.0), "-123,456");
        assert_eq!(Measure::HalfRoundTripUs.described().shown(12.345), "12.35");
        assert_eq!(Measure::HalfRoundTripUs.described().shown(1234.5), "1,234.50");
    }
}
