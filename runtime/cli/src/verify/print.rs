//! Prints a case as text.

use super::case::{Case, Metric, Printed};
use crate::foreign::Shown;
use crate::report::count;
use elsa_core::attention::bound::UNLIKELY;
use elsa_core::attention::certificate::Certificate;
use std::io::{Result, Write};

/// Writes a case: its verdict, the skipped blocks, and a warning if the case has one. With `verbose`, also writes the
/// problem, a table of metrics and the bounds.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn print<W: Write>(out: &mut Shown<W>, v: &Case, verbose: bool) -> Result<()> {
    out.paint(v.verdict.style(), &v.verdict.to_string())?;
    writeln!(out, " {}: {}", v.case, v.why)?;
    if let Some(left_out) = &v.left_out {
        writeln!(out, "  {left_out}")?;
    }
    if let Some(tensor_cores) = &v.tensor_cores {
        writeln!(out, "  {tensor_cores}")?;
    }
    if v.unlikely > v.unlikely_allowed && v.passed {
        writeln!(
            out,
            "  warning: {} components beyond the likely case, {} expected at most: roundings that are not random, \
             or a fault",
            v.unlikely, v.unlikely_allowed
        )?;
    }
    if verbose { details(out, v) } else { Ok(()) }
}

/// Writes the problem, a table of metrics and the bounds.
fn details(out: &mut impl Write, v: &Case) -> Result<()> {
    let [heads, queries, keys, d, dv] = v.shape;
    write!(
        out,
        "  {}, {}, {}, d {d}, d_v {dv}, {}; {}",
        count(heads as u64, "head"),
        if queries == 1 { "1 query".to_owned() } else { format!("{queries} queries") },
        count(keys as u64, "key"),
        v.dtype,
        v.subject
    )?;
    match v.assumed {
        Some(assumed) => writeln!(out, ", assumed: {assumed}")?,
        None => writeln!(out, ", kernel {}, {}", v.kernel, count(v.threads as u64, "thread"))?,
    }
    writeln!(out, "  {:<22}{:>11}{:>11}{:>11}{:>11}", "", "median", "p95", "p99", "total")?;
    for (name, metric) in metrics(v) {
        let Some(m) = metric else { continue };
        writeln!(out, "  {name:<22}{:>11.2e}{:>11.2e}{:>11.2e}{:>11.2e}", m.median, m.p95, m.p99, m.total)?;
    }
    writeln!(out, "  rows: Y on {} of {}, P on {}", v.rows, v.rows_of, v.p_rows)?;
    if let Some(audit) = &v.audit {
        writeln!(
            out,
            "  audit: seed {}; {} of the rows in double-double, from which the f64 oracle differs by {:.1e} of the \
             terms",
            audit.seed, audit.precise_rows, audit.oracle_error
        )?;
    }
    bounds(out, v)?;
    if let Some(left_out) = &v.left_out {
        writeln!(out, "  {}", left_out.details())?;
    }
    writeln!(
        out,
        "  of {} components: {} beyond the worst case, {} beyond the likely case (one in {:.0e}), {} not finite, {} \
         out of range, {} argmax unexplained",
        v.components,
        v.beyond,
        v.unlikely,
        1.0 / UNLIKELY,
        v.not_finite,
        v.beyond_range,
        v.argmax_unexplained
    )
}

/// Returns the names and values of the six metrics. The metrics of P are `None` if P was not extracted.
#[must_use]
pub fn metrics(v: &Case) -> [(&'static str, Option<Metric>); 6] {
    [
        ("max |dP|", v.p_max_abs),
        ("|dP| / |P|", v.p_rel_l2),
        ("Jensen-Shannon", v.js),
        ("argmax differs", v.argmax),
        ("max |dY|", Some(v.y_max_abs)),
        ("|dY| / |Y|", Some(v.y_rel_l2)),
    ]
}

/// Writes the bounds: ELSA's theorem as printed in the paper, and the rigorous bound.
fn bounds(out: &mut impl Write, v: &Case) -> Result<()> {
    if let Some(Printed { bound, used, rows_beyond }) = v.printed {
        writeln!(
            out,
            "  ELSA theorem 1 as printed: |dY| <= {bound:.2e} |Y| in each row; violated in {rows_beyond} of {} rows, \
             at most {used:.2e} of it is used",
            v.rows
        )?;
    }
    writeln!(
        out,
        "  rigorous bound: |dY| <= {:.2e} sum p |v| in each row, {:.2e} in the median row; violated in {} components, \
         at most {:.2e} of it is used",
        v.bound_over_terms, v.bound_over_terms_median, v.beyond, v.bound_used
    )?;
    let measured = v.y_rel_l2.total;
    writeln!(
        out,
        "  |dY| / |Y| in total: {measured:.2e}; worst case {:.2e}, likely case {:.2e}; greatest relative error of a \
         component {:.2e}",
        v.y_rel_l2_allowed, v.y_rel_l2_likely, v.y_max_rel
    )?;
    let Some(Certificate { executed, published_depth, .. }) = v.certificate else { return Ok(()) };
    writeln!(
        out,
        "  merge depth: published L(n, {}) = {published_depth}, executed {} over segments of {} blocks; additions \
         on the longest path {}",
        executed.block, executed.merge_depth, executed.segment_blocks, executed.additions
    )
}

#[cfg(test)]
mod tests {
    use super::super::case::tests::case;
    use super::*;

    fn text(case: &Case) -> String {
        let mut out = Vec::new();
        print(&mut Shown::new(&mut out, false), case, true).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn without_details_the_verdict_and_its_reason_are_one_line() {
        let mut out = Vec::new();
        print(&mut Shown::new(&mut out, true), &case(), false).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\u{1b}[1m\u{1b}[32mPASS\u{1b}[0m given: because\n");
    }

    #[test]
    fn every_number_of_a_case_is_printed() {
        assert_eq!(
            text(&case()),
            "PASS given: because\n\
             \x20 2 heads, 30 queries, 4000 keys, d 16, d_v 24, f16; avx2, kernel kernel, 5 threads\n\
             \x20                            median        p95        p99      total\n\
             \x20 max |dP|                  1.00e-9    2.00e-9    3.00e-9    4.00e-9\n\
             \x20 |dP| / |P|                1.00e-8    2.00e-8    3.00e-8    4.00e-8\n\
             \x20 Jensen-Shannon            1.00e-7    2.00e-7    3.00e-7    4.00e-7\n\
             \x20 argmax differs            1.00e-6    2.00e-6    3.00e-6    4.00e-6\n\
             \x20 max |dY|                  1.00e-5    2.00e-5    3.00e-5    4.00e-5\n\
             \x20 |dY| / |Y|                1.00e-4    2.00e-4    3.00e-4    4.00e-4\n\
             \x20 rows: Y on 60 of 90, P on 7\n\
             \x20 audit: seed 9; 8 of the rows in double-double, from which the f64 oracle differs by 1.0e-16 of \
             the terms\n\
             \x20 ELSA theorem 1 as printed: |dY| <= 4.00e-6 |Y| in each row; violated in 2 of 60 rows, at most \
             1.50e0 of it is used\n\
             \x20 rigorous bound: |dY| <= 5.00e-2 sum p |v| in each row, 2.00e-2 in the median row; violated in 0 \
             components, at most 2.50e-1 of it is used\n\
             \x20 |dY| / |Y| in total: 4.00e-4; worst case 1.00e-3, likely case 5.00e-4; greatest relative error \
             of a component 1.25e-1\n\
             \x20 merge depth: published L(n, 64) = 21, executed 3 over segments of 8 blocks; additions on the \
             longest path 73\n\
             \x20 of 1440 components: 0 beyond the worst case, 1 beyond the likely case (one in 1e9), 0 not \
             finite, 0 out of range, 0 argmax unexplained\n"
        );
    }

    #[test]
    fn what_does_not_apply_is_left_out() {
        let of_a_file = Case {
            assumed: Some("FP32"),
            subject: "y.npy".into(),
            p_max_abs: None,
            printed: None,
            certificate: None,
            audit: None,
            ..case()
        };
        let found = text(&of_a_file);
        assert!(found.contains("; y.npy, assumed: FP32\n"), "{found}");
        for absent in ["max |dP|", "theorem", "merge depth", "audit", "warning"] {
            assert!(!found.contains(absent), "{absent}: {found}");
        }
    }

    #[test]
    fn more_than_the_model_expects_is_a_warning() {
        let surprised = text(&Case { unlikely: 2, ..case() });
        assert!(
            surprised.contains("  warning: 2 components beyond the likely case, 1 expected at most: "),
            "{surprised}"
        );
    }
}
