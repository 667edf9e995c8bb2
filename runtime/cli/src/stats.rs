//! Statistics of a benchmark: percentiles of latencies, ratios of alternating methods, and detection of a settled
//! latency.
//!
//! 1. **Percentiles** are those of an HDR histogram with three significant digits: at any magnitude, a percentile is at
//!    most a thousandth above the measured value, and adding a value allocates nothing.
//! 2. **Ratios are formed pair by pair.** Two alternating methods run under the same clock, at the same temperature and
//!    together with the same other processes. So these conditions hardly affect the quotient of the times of two
//!    neighbouring slices. The result is the median of the quotients, with their quartiles.
//! 3. **The noise is measured.** A duplicate of the first method takes its turn like the others. The ratio of the
//!    duplicate to the first method should be 1; the distance of its quartiles from 1 is the noise of this machine.
//! 4. **Settled** means without a trend: the last slices are split into an earlier and a later half, and the medians of
//!    the halves differ by no more than the quartiles within each half differ, or by no more than a hundredth.

use elsa_core::drift::percentile;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Maximum latency that the histogram distinguishes, in nanoseconds: one hour. Longer latencies count as one hour.
const LONGEST: u64 = 3_600_000_000_000;
/// Number of significant digits with which latencies are stored.
const DIGITS: u8 = 3;
/// Minimum number of pairs for meaningful quartiles.
pub const PAIRS: usize = 5;
/// Number of slices in each of the two halves that are compared to detect a trend during warm-up.
pub const HALF: usize = 5;
/// Maximum relative change of the latency that does not count as a trend.
const TREND: f64 = 0.01;

/// Histogram of latencies.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Creates an empty histogram. This allocates its memory; adding latencies later allocates nothing.
    #[must_use]
    pub fn new() -> Latencies {
        match Histogram::new_with_bounds(1, LONGEST, DIGITS) {
            Ok(histogram) => Latencies(histogram),
            Err(_) => unreachable!("the bounds are constants that the histogram takes"),
        }
    }

    /// Removes all latencies. This writes every page of the histogram, so that adding latencies later needs no new
    /// memory.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Adds a latency.
    pub fn add(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LONGEST).max(1));
    }

    /// Returns the number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the percentile `percent`, a number from 0 to 100, in milliseconds. The percentile 100 is the greatest
    /// latency. Returns NaN if there are no latencies.
    #[must_use]
    pub fn ms(&self, percent: f64) -> f64 {
        if self.0.is_empty() {
            return f64::NAN;
        }
        self.0.value_at_percentile(percent) as f64 / 1e6
    }

    /// Returns a histogram in which the upper bound of each entry is twice the upper bound of the previous entry. An
    /// entry consists of its upper bound in milliseconds and its number of latencies. Empty entries at both ends are
    /// dropped.
    #[must_use]
    pub fn doubling(&self) -> Vec<(f64, u64)> {
        if self.0.is_empty() {
            return Vec::new();
        }
        // The largest power of two, in nanoseconds, that does not exceed the smallest latency.
        let first = 1 << self.0.min().max(1).ilog2();
        let steps = self.0.iter_log(first, 2.0);
        let all =
            steps.map(|step| (step.value_iterated_to() as f64 / 1e6, step.count_since_last_iteration()));
        all.skip_while(|(_, count)| *count == 0).collect()
    }
}

/// Returns the slope of `y` against `x` by least squares, for points `(x, y)`; `None` if the range of `x` is smaller
/// than `span`, or if the slope is not finite.
#[must_use]
pub fn slope(points: &[(f64, f64)], span: f64) -> Option<f64> {
    let (low, high) = points
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
    // A range that is NaN has no slope.
    if (high - low).is_nan() || high - low < span {
        return None;
    }
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let covariance: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let variance: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    Some(covariance / variance).filter(|slope| slope.is_finite())
}

/// The median of ratios, and their quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// First quartile: a quarter of the ratios are smaller.
    pub low: f64,
    /// The median.
    pub middle: f64,
    /// Third quartile: a quarter of the ratios are larger.
    pub high: f64,
}

/// Returns the median of the ratios of pairs; `None` if there are no pairs or if the median is not finite. The ratio of
/// a pair is its second number divided by its first.
#[must_use]
pub fn middle(pairs: &[(f64, f64)]) -> Option<f64> {
    let mut ratios: Vec<f64> = pairs.iter().map(|(first, second)| second / first).collect();
    percentile(&mut ratios, 50).filter(|ratio| ratio.is_finite())
}

impl Ratio {
    /// Returns the median and quartiles of the ratios of pairs of times. The ratio of a pair is its second time divided
    /// by its first. Returns `None` for fewer than five pairs, or if a time is not a positive finite number.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Option<Ratio> {
        let mut ratios: Vec<f64> = pairs.iter().map(|(first, second)| second / first).collect();
        if ratios.len() < PAIRS || ratios.iter().any(|ratio| !(*ratio > 0.0 && ratio.is_finite())) {
            return None;
        }
        let mut quartile = |percent| percentile(&mut ratios, percent);
        Some(Ratio { low: quartile(25)?, middle: quartile(50)?, high: quartile(75)? })
    }

    /// Computes the distance of each quartile from 1, and returns the greater distance. For a method and its duplicate,
    /// this is the noise.
    #[must_use]
    pub fn spread(self) -> f64 {
        (self.high - 1.0).max(1.0 - self.low).max(0.0)
    }

    /// Returns `true` if the ratio differs from 1: both quartiles are on the same side of 1, and the distance of each
    /// quartile from 1 exceeds `noise`.
    #[must_use]
    pub fn differs(self, noise: f64) -> bool {
        self.low > 1.0 + noise || self.high < 1.0 - noise
    }
}

/// Returns `true` if the times of the last `2 * half` slices show no trend; `false` for fewer slices.
#[must_use]
pub fn settled(times: &[f64], half: usize) -> bool {
    let Some(last) = times.len().checked_sub(2 * half).filter(|_| half > 0) else { return false };
    let (mut early, mut late) = (times[last..last + half].to_vec(), times[last + half..].to_vec());
    let mut of = |percent| Some((percentile(&mut early, percent)?, percentile(&mut late, percent)?));
    let (Some(low), Some(middle), Some(high)) = (of(25), of(50), of(75)) else { return false };
    let scatter = (high.0 - low.0).min(high.1 - low.1);
    (middle.1 - middle.0).abs() <= scatter.max(TREND * middle.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_latencies() {
        let mut latencies = Latencies::new();
        assert!(latencies.ms(50.0).is_nan());
        for us in (1..=1000).rev() {
            latencies.add(Duration::from_micros(us));
        }
        for (percent, ms) in [(0.0, 0.001), (50.0, 0.5), (90.0, 0.9), (99.0, 0.99), (100.0, 1.0)] {
            let found = latencies.ms(percent);
            assert!((found / ms - 1.0).abs() <= 1e-3, "{percent}: {found}, {ms}");
        }
        latencies.add(Duration::from_secs(7));
        latencies.add(Duration::ZERO);
        assert_eq!(latencies.count(), 1002);
        assert!((latencies.ms(100.0) / 7000.0 - 1.0).abs() <= 1e-3);
        latencies.add(Duration::MAX);
        assert!((latencies.ms(100.0) / 3.6e6 - 1.0).abs() <= 1e-3);
    }

    #[test]
    fn steps_of_a_histogram_hold_every_latency() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.doubling(), []);
        for us in [3, 3, 5, 40, 1000] {
            latencies.add(Duration::from_micros(us));
        }
        let steps = latencies.doubling();
        assert_eq!(steps.iter().map(|(_, count)| count).sum::<u64>(), 5);
        assert_eq!((steps[0].1, steps[1].1), (2, 1), "{steps:?}");
        assert!(
            steps.windows(2).all(|two| two[1].0 > 1.9 * two[0].0 && two[1].0 < 2.1 * two[0].0),
            "{steps:?}"
        );
        assert!(steps[0].0 >= 0.003 && steps[steps.len() - 1].0 >= 1.0 && steps[steps.len() - 2].0 < 1.0);
    }

    #[test]
    fn slopes_are_those_of_least_squares() {
        // y = 2 x + 1, with errors that have no trend.
        let points = [(40.0, 81.5), (41.0, 82.5), (42.0, 84.5), (43.0, 87.5)];
        assert!((slope(&points, 1.0).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!((slope(&points, 4.0), slope(&[], 0.0), slope(&[(1.0, 1.0)], 1.0)), (None, None, None));
        assert_eq!(slope(&[(40.0, 1.0), (45.0, f64::NAN)], 1.0), None);
        assert_eq!(slope(&[(f64::NAN, 1.0), (f64::NAN, 1.0)], 1.0), None);
    }

    #[test]
    fn ratios_are_of_pairs() {
        // The machine becomes ten times slower in the middle, but the ratio stays the same.
        let pairs: Vec<(f64, f64)> = (0..9).map(|i| if i < 4 { (1.0, 1.5) } else { (10.0, 15.0) }).collect();
        let ratio = Ratio::of(&pairs).unwrap();
        assert_eq!((ratio.low, ratio.middle, ratio.high), (1.5, 1.5, 1.5));
        let pairs: Vec<(f64, f64)> = [1.0, 5.0, 2.0, 4.0, 3.0].map(|x| (2.0, 2.0 * x)).to_vec();
        assert_eq!(Ratio::of(&pairs), Some(Ratio { low: 2.0, middle: 3.0, high: 4.0 }));
        assert_eq!((Ratio::of(&pairs[..4]), middle(&pairs[..4])), (None, Some(2.0)));
        assert_eq!((middle(&[]), middle(&[(0.0, 0.0)])), (None, None));
        for wrong in [f64::NAN, 0.0, f64::INFINITY, -1.0] {
            let pairs = [&pairs[..], &[(1.0, wrong)]].concat();
            assert_eq!(Ratio::of(&pairs), None, "{wrong}");
        }
    }

    #[test]
    fn no_ratio_within_the_noise_is_a_difference() {
        let ratio = |low, middle, high| Ratio { low, middle, high };
        let noise = ratio(0.98, 1.0, 1.03).spread();
        assert!((noise - 0.03).abs() < 1e-12);
        assert!((ratio(0.95, 1.0, 1.03).spread() - 0.05).abs() < 1e-12);
        // A duplicate that is always slower makes noise too.
        assert!((ratio(1.01, 1.02, 1.04).spread() - 0.04).abs() < 1e-12);
        assert!(ratio(1.04, 1.2, 1.3).differs(noise) && ratio(0.5, 0.6, 0.96).differs(noise));
        assert!(!ratio(1.02, 1.2, 1.3).differs(noise) && !ratio(0.5, 0.6, 0.98).differs(noise));
        assert!(!ratio(0.5, 1.0, 2.0).differs(noise));
        assert!(
            !ratio(f64::NAN, f64::NAN, f64::NAN).differs(noise) && !ratio(1.5, 1.5, 1.5).differs(f64::NAN)
        );
    }

    #[test]
    fn a_trend_is_not_settled() {
        let falling: Vec<f64> = (0..10).map(|i| 2.0 - 0.1 * f64::from(i)).collect();
        assert!(!settled(&falling, HALF));
        let flat = [1.0, 1.001, 0.999, 1.002, 1.0, 1.001, 1.0, 0.998, 1.0, 1.001];
        assert!(settled(&flat, HALF));
        // The clock rose before the last ten slices, which show no trend.
        assert!(settled(&[&falling[..], &flat].concat(), HALF));
        // These times scatter without a trend.
        assert!(settled(&[1.0, 1.3, 1.1, 1.4, 1.2, 1.35, 1.05, 1.3, 1.1, 1.2], HALF));
        assert!(!settled(&flat[1..], HALF) && !settled(&[], HALF) && !settled(&flat, 0));
        assert!(settled(&flat[..4], 2));
        let mut unknown = flat;
        unknown[3] = f64::NAN;
        assert!(!settled(&unknown, HALF));
    }
}
