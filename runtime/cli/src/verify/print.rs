//! Verdicts as text.

use super::judge::Verdict;
use elsa_core::attention::bound::UNLIKELY;
use elsa_core::attention::certificate::Certificate;
use std::io::{Result, Write};

/// Writes a verdict as a table with its explanation.
///
/// # Errors
/// A failing writer.
pub fn print(out: &mut impl Write, v: &Verdict) -> Result<()> {
    let [heads, queries, keys, d, dv] = v.shape;
    writeln!(
        out,
        "{}: {} heads, {} queries, {} keys, d {}, d_v {}, {}; {}, kernel {}, {} threads",
        v.case, heads, queries, keys, d, dv, v.dtype, v.backend, v.kernel, v.threads
    )?;
    writeln!(out, "  {:<22}{:>11}{:>11}{:>11}{:>11}", "", "median", "p95", "p99", "total")?;
    for (name, m) in [
        ("max |dP|", v.p_max_abs),
        ("|dP| / |P|", v.p_rel_l2),
        ("Jensen-Shannon", v.js),
        ("argmax differs", v.argmax),
        ("max |dY|", v.y_max_abs),
        ("|dY| / |Y|", v.y_rel_l2),
    ] {
        writeln!(out, "  {name:<22}{:>11.2e}{:>11.2e}{:>11.2e}{:>11.2e}", m.median, m.p95, m.p99, m.total)?;
    }
    writeln!(out, "  rows: Y on all {}, P on {}", v.rows, v.p_rows)?;
    let measured = v.y_rel_l2.total;
    writeln!(
        out,
        "  |dY| / |Y| explained by rounding: worst case {:.2e}, of which {:.2e} is used; likely case {:.2e}, of \
         which {:.2e}",
        v.y_rel_l2_allowed,
        measured / v.y_rel_l2_allowed,
        v.y_rel_l2_likely,
        measured / v.y_rel_l2_likely
    )?;
    writeln!(out, "  greatest relative error of a component: {:.2e}", v.y_max_rel)?;
    let Certificate { executed, published_depth, published_bound, output_rounding, .. } = v.certificate;
    writeln!(
        out,
        "  merge depth: published L(n, {}) = {published_depth}, executed {} over segments of {} blocks; additions \
         on the longest path {}",
        executed.block, executed.merge_depth, executed.segment_blocks, executed.additions
    )?;
    writeln!(
        out,
        "  certificate: |dY| / |Y| <= {published_bound:.2e} + {output_rounding:.2e}, ELSA theorem 1 as published; \
         not rigorous: leaves out the rounding of scores, additions within a leaf, cancellation of values"
    )?;
    if v.unlikely > v.unlikely_allowed {
        writeln!(
            out,
            "  warning: {} components beyond the likely case, {} expected at most: roundings that are not random, \
             or a fault",
            v.unlikely, v.unlikely_allowed
        )?;
    }
    let verdict = if v.passed { "verified" } else { "FAILED" };
    writeln!(
        out,
        "  {verdict}: {} of {} components beyond the worst case, {} beyond the likely case (one in {:.0e}), {} not \
         finite, {} argmax unexplained",
        v.beyond,
        v.rows * dv,
        v.unlikely,
        1.0 / UNLIKELY,
        v.not_finite,
        v.argmax_unexplained
    )
}

#[cfg(test)]
mod tests {
    use super::super::Metric;
    use super::*;
    use elsa_core::attention::certificate::Executed;
    use elsa_core::dtype::DType;

    fn verdict() -> Verdict {
        let metric = |x: f64| Metric { median: x, p95: 2.0 * x, p99: 3.0 * x, total: 4.0 * x };
        let executed = Executed {
            kernel: "kernel",
            block: 64,
            segment_blocks: 8,
            merge_depth: 3,
            additions: 73,
            into_s: 73,
            into_w: 73,
            chain: 64,
            chain_depth: 0,
            fused: true,
            exp2_relative: 1.7e-7,
            half_chain: 0,
        };
        Verdict {
            what: "verify",
            case: "given".into(),
            backend: "avx2".into(),
            kernel: "kernel",
            fallback: None,
            threads: 5,
            dtype: "f16",
            shape: [2, 30, 4000, 16, 24],
            rows: 60,
            p_rows: 7,
            p_max_abs: metric(1e-9),
            p_rel_l2: metric(1e-8),
            js: metric(1e-7),
            argmax: metric(1e-6),
            y_max_abs: metric(1e-5),
            y_rel_l2: metric(1e-4),
            y_max_rel: 0.125,
            y_rel_l2_allowed: 1e-3,
            y_rel_l2_likely: 5e-4,
            beyond: 0,
            unlikely: 1,
            unlikely_allowed: 1,
            not_finite: 0,
            argmax_unexplained: 0,
            certificate: Certificate::new(DType::F16, 4000, executed),
            passed: true,
        }
    }

    fn text(verdict: &Verdict) -> String {
        let mut out = Vec::new();
        print(&mut out, verdict).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_number_of_a_verdict_is_printed() {
        assert_eq!(
            text(&verdict()),
            "given: 2 heads, 30 queries, 4000 keys, d 16, d_v 24, f16; avx2, kernel kernel, 5 threads\n\
             \x20                            median        p95        p99      total\n\
             \x20 max |dP|                  1.00e-9    2.00e-9    3.00e-9    4.00e-9\n\
             \x20 |dP| / |P|                1.00e-8    2.00e-8    3.00e-8    4.00e-8\n\
             \x20 Jensen-Shannon            1.00e-7    2.00e-7    3.00e-7    4.00e-7\n\
             \x20 argmax differs            1.00e-6    2.00e-6    3.00e-6    4.00e-6\n\
             \x20 max |dY|                  1.00e-5    2.00e-5    3.00e-5    4.00e-5\n\
             \x20 |dY| / |Y|                1.00e-4    2.00e-4    3.00e-4    4.00e-4\n\
             \x20 rows: Y on all 60, P on 7\n\
             \x20 |dY| / |Y| explained by rounding: worst case 1.00e-3, of which 4.00e-1 is used; likely case \
             5.00e-4, of which 8.00e-1\n\
             \x20 greatest relative error of a component: 1.25e-1\n\
             \x20 merge depth: published L(n, 64) = 21, executed 3 over segments of 8 blocks; additions on the \
             longest path 73\n\
             \x20 certificate: |dY| / |Y| <= 1.25e-6 + 4.88e-4, ELSA theorem 1 as published; not rigorous: leaves \
             out the rounding of scores, additions within a leaf, cancellation of values\n\
             \x20 verified: 0 of 1440 components beyond the worst case, 1 beyond the likely case (one in 1e9), 0 \
             not finite, 0 argmax unexplained\n"
        );
    }

    #[test]
    fn more_than_the_model_expects_is_a_warning() {
        assert!(!text(&verdict()).contains("warning"));
        let surprised = text(&Verdict { unlikely: 2, ..verdict() });
        assert!(
            surprised.contains("  warning: 2 components beyond the likely case, 1 expected at most: "),
            "{surprised}"
        );
        let failed =
            text(&Verdict { beyond: 3, not_finite: 4, argmax_unexplained: 5, passed: false, ..verdict() });
        assert!(failed.contains("  FAILED: 3 of 1440 components beyond the worst case"), "{failed}");
        assert!(failed.ends_with("4 not finite, 5 argmax unexplained\n"), "{failed}");
    }
}
