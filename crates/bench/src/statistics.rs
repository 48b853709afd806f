//! What a few measurements say, and how sure one may be of it. No method here assumes how measurements are distributed.

use serde::{Deserialize, Serialize};

/// What an interval is to hold with.
pub const CONFIDENCE: f64 = 0.95;
/// Modified z-scores above this are outliers: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993.
const OUTLIER_SCORE: f64 = 3.5;

/// From where to where a value lies, and with what confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// From 0 to 1: at least [`CONFIDENCE`] where there are enough measurements, otherwise what these few allow.
    pub confidence: f64,
}

impl Interval {
    /// Whether a value may be the true one.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether it is as sure as it should be.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.confidence >= CONFIDENCE
    }
}

/// The middle value, of an even number the mean of the two in the middle; NaN of nothing. What is no number does not count.
#[must_use]
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let values = sorted(values);
    match values.len() {
        0 => f64::NAN,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

/// An interval of the median between two order statistics (the sign test turned round; Conover, "Practical Nonparametric
/// Statistics", section 3.2): each measurement is below the true median with probability ½. `None` of fewer than two.
///
/// Five measurements allow 93.8 %, six 96.9 %.
#[must_use]
pub fn median_interval(values: impl Iterator<Item = f64>) -> Option<Interval> {
    let values = sorted(values);
    let count = values.len();
    if count < 2 {
        return None;
    }
    // From the k-th smallest to the k-th largest: missed where fewer than k are on one side.
    let missed = |k: usize| 2.0 * (0..k).map(|below| binomial_half(count, below)).sum::<f64>();
    let k = (1..=count / 2).rev().find(|&k| 1.0 - missed(k) >= CONFIDENCE).unwrap_or(1);
    Some(Interval { low: values[k - 1], high: values[count - k], confidence: 1.0 - missed(k) })
}

/// An interval of the factor by which `ours` are greater than `theirs`: Hodges and Lehmann's shift of the logarithms with Mann and
/// Whitney's exact distribution (Hollander and Wolfe, "Nonparametric Statistical Methods", section 4.3). `None` where one side has
/// no measurement above 0.
///
/// Four measurements a side allow 97.1 %, three 90 %.
#[must_use]
pub fn ratio_interval(
    ours: impl Iterator<Item = f64>,
    theirs: impl Iterator<Item = f64>,
) -> Option<Interval> {
    let (ours, theirs) =
        (sorted(ours.filter(|value| *value > 0.0)), sorted(theirs.filter(|value| *value > 0.0)));
    if ours.is_empty() || theirs.is_empty() || ours.len() + theirs.len() < 3 {
        return None;
    }
    let ratios = sorted(ours.iter().flat_map(|our| theirs.iter().map(move |their| our / their)));
    let below = mann_whitney(ours.len(), theirs.len());
    let missed = |k: usize| 2.0 * below[..k].iter().sum::<f64>();
    let k = (1..=ratios.len() / 2).rev().find(|&k| 1.0 - missed(k) >= CONFIDENCE).unwrap_or(1);
    Some(Interval {
        low: ratios[k - 1],
        high: ratios[ratios.len() - k],
        confidence: (1.0 - missed(k)).max(0.0),
    })
}

/// Which of the values lie far from the others, as indices: those whose distance from the median is more than 3.5 times the median
/// distance (scaled as a normal distribution would have it). Of fewer than five nobody can say.
#[must_use]
pub fn outliers(values: &[f64]) -> Vec<usize> {
    /// The third quartile of the standard normal distribution.
    const SCALE: f64 = 0.6745;
    let middle = median(values.iter().copied());
    let spread = median(values.iter().map(|value| (value - middle).abs()));
    if values.len() < 5 || spread <= 0.0 {
        return Vec::new();
    }
    let is_far = |value: f64| SCALE * (value - middle).abs() / spread > OUTLIER_SCORE;
    values.iter().enumerate().filter(|&(_, &value)| is_far(value)).map(|(index, _)| index).collect()
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The probability that `below` of `count` fair coins show heads.
fn binomial_half(count: usize, below: usize) -> f64 {
    let ways: f64 = (1..=below).map(|index| (count + 1 - index) as f64 / index as f64).product();
    ways * 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

/// The probability of each value of Mann and Whitney's U where both sides are alike: of all orders of `ours` and `theirs`, the
/// share in which so many pairs have the greater one on our side.
fn mann_whitney(ours: usize, theirs: usize) -> Vec<f64> {
    // Orders of i of ours and j of theirs end with one of either: one of ours is above all j of theirs. Shares instead of
    // counts, which would outgrow any number: the last one is ours with probability i / (i + j).
    let pairs = ours * theirs;
    let mut row: Vec<Vec<f64>> = vec![vec![1.0]; theirs + 1];
    for i in 1..=ours {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=theirs {
            let mut shares = vec![0.0; i * j + 1];
            let total = (i + j) as f64;
            for (above, share) in row[j].iter().enumerate() {
                shares[above + j] += share * i as f64 / total;
            }
            for (above, share) in next[j - 1].iter().enumerate() {
                shares[above] += share * j as f64 / total;
            }
            next.push(shares);
        }
        row = next;
    }
    let mut shares = row.pop().unwrap_or_default();
    shares.resize(pairs + 1, 0.0);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> impl Iterator<Item = f64> + Clone {
        values.iter().copied()
    }

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(of(&[3.0, 1.0, 2.0])), 2.0);
        assert_eq!(median(of(&[4.0, 1.0, f64::NAN])), 2.5);
        assert_eq!(median(of(&[7.0])), 7.0);
        assert!(median(std::iter::empty()).is_nan());
    }

    #[test]
    fn intervals_of_the_median_are_those_of_the_tables() {
        let first = |count: usize| (1..=count).map(|value| value as f64);
        // Conover, table A3, and Dixon and Massey, table A-25: (measurements, which from each end, confidence).
        for (count, k, confidence) in [
            (2, 1, 0.5),
            (3, 1, 0.75),
            (5, 1, 0.9375),
            (6, 1, 0.96875),
            (10, 2, 0.978_515_625),
            (20, 6, 0.958_6),
        ] {
            let interval = median_interval(first(count)).unwrap();
            assert_eq!((interval.low, interval.high), (k as f64, (count + 1 - k) as f64), "{count}");
            assert!((interval.confidence - confidence).abs() < 1e-4, "{count}: {}", interval.confidence);
        }
        assert_eq!(median_interval(of(&[1.0])), None);
    }

    #[test]
    fn mann_whitneys_distribution_is_that_of_the_tables() {
        // All 10 orders of 2 and 3, counted by hand.
        let shares = mann_whitney(2, 3);
        let counts: Vec<f64> = shares.iter().map(|share| share * 10.0).collect();
        for (count, expected) in counts.iter().zip([1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0]) {
            assert!(near(*count, expected), "{counts:?}");
        }
        assert_eq!(counts.len(), 7);
        // Hollander and Wolfe, table A.6: P(U <= 2) of 5 and 5 is 4 / 252.
        let below: f64 = mann_whitney(5, 5)[..=2].iter().sum();
        assert!(near(below, 4.0 / 252.0), "{below}");
        assert!(near(mann_whitney(100, 100).iter().sum(), 1.0));
    }

    #[test]
    fn a_ratio_has_an_interval() {
        let kernel = [100.0, 102.0, 98.0, 101.0, 99.0];
        let twice: Vec<f64> = kernel.iter().map(|value| value * 2.0).collect();
        let interval = ratio_interval(of(&twice), of(&kernel)).unwrap();
        assert!(interval.holds(2.0) && !interval.holds(1.0) && interval.is_sure(), "{interval:?}");
        assert!(near(interval.confidence, 1.0 - 8.0 / 252.0), "{interval:?}");
        assert!(ratio_interval(of(&kernel), of(&kernel)).unwrap().holds(1.0));
        let three = ratio_interval(of(&twice[..3]), of(&kernel[..3])).unwrap();
        assert!(near(three.confidence, 0.9) && !three.is_sure(), "{three:?}");
        assert_eq!(ratio_interval(of(&[1.0]), of(&[2.0])), None);
        assert_eq!(ratio_interval(of(&[0.0, 0.0]), of(&[1.0, 2.0])), None, "failed runs have no ratio");
    }

    /// Draws from distributions that are far from normal, and counts how often the truth is within.
    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut random = overfly_testing::Random::seeded();
        let mut uniform = move || ((random.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        const TURNS: u32 = 4000;
        let (mut medians, mut ratios) = (0, 0);
        for _ in 0..TURNS {
            // Exponential, with median ln 2.
            let mut exponential = |scale: f64| -scale * uniform().ln();
            let ours: Vec<f64> = (0..7).map(|_| exponential(1.3)).collect();
            let theirs: Vec<f64> = (0..7).map(|_| exponential(1.0)).collect();
            let median = median_interval(of(&theirs)).unwrap();
            medians += u32::from(median.holds(std::f64::consts::LN_2));
            ratios += u32::from(ratio_interval(of(&ours), of(&theirs)).unwrap().holds(1.3));
        }
        let share = |hits: u32| f64::from(hits) / f64::from(TURNS);
        // Seven: 98.4 % from end to end; U of 7 and 7: 96.2 %. Four standard deviations of the count are 1.4 % at most.
        assert!((share(medians) - 0.984).abs() < 0.01, "{}", share(medians));
        assert!((share(ratios) - 0.962).abs() < 0.014, "{}", share(ratios));
    }

    #[test]
    fn what_lies_far_from_the_others_is_found() {
        assert_eq!(outliers(&[100.0, 101.0, 99.0, 60.0, 100.5]), [3]);
        assert!(outliers(&[100.0, 101.0, 99.0, 98.0, 102.0]).is_empty());
        assert!(outliers(&[100.0, 101.0, 10.0]).is_empty(), "three are too few to say");
        assert!(outliers(&[5.0, 5.0, 5.0, 5.0, 9.0]).is_empty(), "no spread to compare with");
    }
}
