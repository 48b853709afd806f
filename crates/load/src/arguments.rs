//! Numbers, times and lists as people type them. Each names the option in its error.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use overfly_engine::Prefix;
use overfly_steer::ReceiveOffload;

use crate::error::Error;
use crate::link::Link;

/// A whole number.
pub(crate) fn number<N: FromStr>(option: &'static str, given: &str) -> Result<N, Error> {
    given.parse().map_err(|_| Error::usage(option, given, "a whole number"))
}

/// The digits of a number with an optional k, M or G (thousands), and what that stands for.
fn scaled(given: &str) -> (&str, u64) {
    let scale = match given.as_bytes().last() {
        Some(b'k' | b'K') => 1_000,
        Some(b'm' | b'M') => 1_000_000,
        Some(b'g' | b'G') => 1_000_000_000,
        _ => return (given, 1),
    };
    (&given[..given.len() - 1], scale)
}

/// A whole number with an optional k, M or G.
pub(crate) fn count(option: &'static str, given: &str) -> Result<u64, Error> {
    let (digits, scale) = scaled(given);
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(scale))
        .ok_or_else(|| Error::usage(option, given, "a whole number such as 100, 10k or 1M"))
}

/// Requests per second: a number, whole or not, with an optional k, M or G.
pub(crate) fn per_s(option: &'static str, given: &str) -> Result<f64, Error> {
    let (digits, scale) = scaled(given);
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    digits
        .parse::<f64>()
        .ok()
        .map(|number| number * scale as f64)
        .filter(|rate| is_decimal && (0.0..=1e9).contains(rate))
        .ok_or_else(|| Error::usage(option, given, "requests per second such as 100, 0.5, 10k or 1M"))
}

/// `10000-32000` of `--ports`.
pub(crate) fn ports(given: &str) -> Result<RangeInclusive<u16>, Error> {
    given
        .split_once('-')
        .and_then(|(low, high)| Some(low.parse().ok()?..=high.parse().ok()?))
        .filter(|ports| !ports.is_empty() && *ports.start() >= 1024)
        .ok_or_else(|| Error::usage("--ports", given, "LOW-HIGH from 1024-65535, such as 10000-32000"))
}

/// What a link over an interface has, whatever kind of load it carries.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ReceiveArgs {
    /// What may arrive over --link xdp: packets (a thread of the kernel's receives on the generator's processors, where --cpus names
    /// them), or segments (on veth: what a kernel server sends as one frame, in one piece; the server's processor receives)
    /// [default: packets]
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true)]
    pub receive_offload: Option<String>,
}

impl ReceiveArgs {
    /// What it asks for, with which other links have nothing to do.
    pub(crate) fn offload(&self, link: Option<&Link>) -> Result<ReceiveOffload, Error> {
        const OPTION: &str = "--receive-offload";
        let Some(given) = self.receive_offload.as_deref() else { return Ok(ReceiveOffload::Packets) };
        let offload = match given {
            "packets" => ReceiveOffload::Packets,
            "segments" => ReceiveOffload::Segments,
            _ => return Err(Error::usage(OPTION, given, "packets or segments")),
        };
        if link != Some(&Link::Xdp) {
            let expected = "--link xdp with it: others have no interface of their own";
            return Err(Error::usage(OPTION, given, expected));
        }
        Ok(offload)
    }
}

/// `10.77.1.0/24` of `--sources`.
pub(crate) fn sources(given: &str) -> Result<Prefix, Error> {
    given
        .parse()
        .map_err(|_| Error::usage("--sources", given, "addresses such as 10.77.1.0/24 or fd77::/120"))
}

/// A time with a unit of ms, s, m or h; seconds without one.
pub(crate) fn time(option: &'static str, given: &str) -> Result<Duration, Error> {
    let digits = given.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_s = match &given[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    digits
        .parse::<f64>()
        .ok()
        .map(|number| number * unit_s)
        .filter(|seconds| (0.0..=1e8).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| Error::usage(option, given, "a duration such as 10s, 500ms or 2m"))
}

/// A share of 1: `0.1%` or `0.001`.
pub(crate) fn fraction(option: &'static str, given: &str) -> Result<f64, Error> {
    let (digits, scale) = given.strip_suffix('%').map_or((given, 1.0), |digits| (digits, 100.0));
    digits
        .parse::<f64>()
        .ok()
        .map(|number| number / scale)
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| Error::usage(option, given, "a share such as 0.1% or 0.001"))
}

/// `NAME: VALUE` as name and value.
pub(crate) fn header(given: &str) -> Result<(String, String), Error> {
    let token = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    given
        .split_once(':')
        .map(|(name, value)| (name, value.trim()))
        .filter(|(name, value)| token(name) && !value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .ok_or_else(|| Error::usage("-H", given.escape_debug(), "NAME: VALUE on one line"))
}

/// `0,2-3` as 0, 2, 3.
pub(crate) fn cpus(given: &str) -> Result<Vec<usize>, Error> {
    let mut list = Vec::new();
    for part in given.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        match (low.parse::<usize>(), high.parse::<usize>()) {
            (Ok(low), Ok(high)) if low <= high && high < 1024 => list.extend(low..=high),
            _ => return Err(Error::usage("--cpus", given, "processors such as 1 or 0,2-3")),
        }
    }
    Ok(list)
}
