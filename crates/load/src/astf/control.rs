//! The control socket: one JSON object a line ([`crate::control`], `docs/astf.md`).
//!
//! `{"multiplier": 2.5}` changes the rate, `{"pause": true}` and `{"pause": false}` stop and go on with beginning flows, `{"drain":
//! true}` begins none any more and waits for those that are there, `{"end": true}` resets them. Any object, `{}` too, is answered
//! with how the run stands, `{"counters": true}` with all counters of both sides.

use serde::Deserialize;

/// What somebody asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Command {
    pub(crate) multiplier: Option<f64>,
    pub(crate) pause: Option<bool>,
    pub(crate) drain: bool,
    pub(crate) end: bool,
    pub(crate) counters: bool,
}

impl Command {
    /// Why it cannot be done.
    pub(crate) fn refusal(&self) -> Option<String> {
        let multiplier = self.multiplier?;
        let good = multiplier > 0.0 && multiplier <= 1e9;
        (!good).then(|| format!("a multiplier of {multiplier}: expected a number above 0, 1e9 at most"))
    }
}

/// What is expected, for whoever asks for something else.
pub(crate) const EXPECTED: &str =
    "{\"multiplier\": N}, {\"pause\": true}, {\"drain\": true}, {\"end\": true}, {\"counters\": true} or {}";
