//! Integer logarithms that count steps, and the published depth of the two-level scan.

/// Returns `ceil(log2 n)`; zero for 0 and 1.
#[must_use]
pub const fn ceil_log2(n: usize) -> usize {
    if n <= 1 { 0 } else { (n - 1).ilog2() as usize + 1 }
}

/// Returns the published merge depth of the two-level scan, ELSA equation 6:
///
/// ```text
/// L(n, B) = ceil(log2 B) + 2 ceil(log2(n / B)) + 3
/// ```
///
/// The inter-block term `2 ceil(log2(n / B))` is taken as zero for `n ≤ B`. If the equation were taken literally, this
/// term would be negative there. For `ceil(log2 n) < log2 B − 3`, the sum would then be less than the `ceil(log2 n)`
/// merges that one block executes. For `B = 128`, that happens at 8 elements or fewer. The paper also prints the
/// simplification `L ≤ 2 ceil(log2 n) + 3`. It holds for `n ≥ B`, and for smaller `n` if `log2 B ≤ 2 ceil(log2 n)`. For
/// `B = 128`, it also fails at 8 elements or fewer.
///
/// A block size of zero counts as one.
#[must_use]
pub const fn elsa_depth(n: usize, block: usize) -> usize {
    let block = if block == 0 { 1 } else { block };
    ceil_log2(block) + 2 * ceil_log2(n.div_ceil(block)) + 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_and_the_published_depth() {
        for n in 1..5000usize {
            let k = ceil_log2(n);
            assert!(1 << k >= n && (k == 0 || 1 << (k - 1) < n));
        }
        assert_eq!(ceil_log2(0), 0);
        assert_eq!(ceil_log2(usize::MAX), usize::BITS as usize);
        // By hand: 7 + 2 · 9 + 3, 7 + 2 · 1 + 3, 7 + 0 + 3.
        assert_eq!(elsa_depth(65_536, 128), 28);
        assert_eq!(elsa_depth(129, 128), 12);
        assert_eq!(elsa_depth(128, 128), 10);
        assert_eq!(elsa_depth(1, 128), 10);
        assert_eq!(elsa_depth(5, 0), 9);
    }
}
