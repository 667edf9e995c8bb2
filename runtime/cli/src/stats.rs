//! Quantiles of samples.

/// The `q`-quantile of `sorted` by nearest rank: the least sample that at least a fraction `q` of all samples
/// do not exceed. It is always one of the samples; NaN when there is none.
#[must_use]
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// Median, 95th and 99th percentile, in no order given.
#[must_use]
pub fn median_p95_p99(mut samples: Vec<f64>) -> [f64; 3] {
    samples.sort_unstable_by(f64::total_cmp);
    [0.5, 0.95, 0.99].map(|q| quantile(&samples, q))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.9, 0.99, 1.0].map(|q| quantile(&hundred, q)), [1.0, 50.0, 90.0, 99.0, 100.0]);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
        assert_eq!(median_p95_p99(hundred.into_iter().rev().collect()), [50.0, 95.0, 99.0]);
    }
}
