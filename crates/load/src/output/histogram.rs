//! Histograms of times, and how they are written: HdrHistogram's V2 encoding, deflated, in base64, which every
//! implementation reads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer as Reader, Serializer as Writer};

/// Longest time told apart, in ns: one hour. Anything longer is counted as this.
const MAX_NS: u64 = 3_600_000_000_000;
/// A time is off by a thousandth of itself at most.
const DIGITS: u8 = 3;

/// An empty histogram of times in ns. Such histograms add up exactly.
pub(crate) fn of_times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_NS, DIGITS)
        .expect("bounds and digits are constants that hdrhistogram accepts")
}

/// The histogram in one word.
pub(crate) fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    // Only counts over i64::MAX are refused: no run gets there.
    let encoded = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
    encoded.map(|_| STANDARD.encode(bytes)).unwrap_or_default()
}

/// The histogram that the word stands for, with the bounds of [`of_times`]; `None` if it stands for none.
pub(crate) fn decode(word: &str) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(word).ok()?;
    let read: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).ok()?;
    if (read.low(), read.high(), read.sigfig()) == (1, MAX_NS, DIGITS) {
        return Some(read);
    }
    let mut times = of_times();
    for step in read.iter_recorded() {
        times.saturating_record_n(step.value_iterated_to().max(1), step.count_at_value());
    }
    Some(times)
}

/// For `#[serde(with = "histogram")]`.
pub(crate) fn serialize<S: Writer>(histogram: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode(histogram))
}

/// For `#[serde(with = "histogram")]`.
pub(crate) fn deserialize<'de, D: Reader<'de>>(deserializer: D) -> Result<Histogram<u64>, D::Error> {
    let word = String::deserialize(deserializer)?;
    decode(&word).ok_or_else(|| D::Error::custom("a histogram in HdrHistogram's V2 encoding and base64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back() {
        let mut histogram = of_times();
        assert_eq!(decode(&encode(&histogram)).unwrap(), histogram);
        for value in (1..100_000).map(|i| i * i) {
            histogram.record_n(value, value % 7).unwrap();
        }
        assert_eq!(decode(&encode(&histogram)).unwrap(), histogram);
    }

    #[test]
    fn another_tool_s_histogram_gets_our_bounds() {
        let mut wide = Histogram::<u64>::new(5).unwrap();
        wide.record_n(1_234_567, 3).unwrap();
        wide.record_n(u64::MAX / 2, 2).unwrap();
        wide.record_n(0, 1).unwrap();
        let times = decode(&encode(&wide)).unwrap();
        assert_eq!((times.low(), times.high(), times.sigfig()), (1, MAX_NS, DIGITS));
        assert_eq!((times.len(), times.count_at(1_234_567), times.count_at(MAX_NS)), (6, 3, 2));
    }

    #[test]
    fn what_is_no_histogram_is_refused() {
        let mut histogram = of_times();
        histogram.record(5).unwrap();
        let word = encode(&histogram);
        for wrong in ["", "x", "HISTFAAA", &word[..word.len() / 8 * 4], &word.replace('A', "/")] {
            assert!(decode(wrong).is_none(), "{wrong}");
        }
    }
}
