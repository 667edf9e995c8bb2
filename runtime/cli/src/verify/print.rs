//! Verdicts as text.

use super::judge::Verdict;
use elsa_core::attention::bound::rounding::UNLIKELY;
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
