//! Helpers shared by the benchmarks.

/// The three quartiles; the middle one is the median.
pub fn quartiles(mut x: Vec<f64>) -> [f64; 3] {
    x.sort_by(f64::total_cmp);
    let at =
        |quarter: usize| x.get((x.len().saturating_sub(1) * quarter + 2) / 4).copied().unwrap_or(f64::NAN);
    [at(1), at(2), at(3)]
}

/// `n` values with mean 0 and the variance of a standard normal distribution, the same in every run.
pub fn noise(seed: &mut u64, n: usize) -> Vec<f32> {
    let mut next = || {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (next() + next() + next() + next()) * 1.732).collect()
}
