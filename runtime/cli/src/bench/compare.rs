//! Reports the changes between two tables. A change counts only if it exceeds the noise of both tables.
//!
//! Rows of the two tables belong together if workload, shape, element type, method, back end and number of threads are
//! equal. The change of a row is the quotient of its medians. The change counts only if it exceeds the noise of both
//! runs together. Both cells must also be clean, because a disturbed cell proves nothing.
//!
//! Noise within a run is measured by alternating the methods. A machine whose speed drifts over seconds shifts all
//! methods together, from one cell to the next and from one run to the next. So a change must also exceed the
//! [`scatter`] of all changes between the two tables. If some rows become faster and others slower, the change of a
//! single row proves little. If all rows become slower together, the changes do not scatter, and they count.

use super::csv::{self, Row};
use crate::error::{Error, one_line};
use crate::foreign::Shown;
use crate::verdict::{BAD, GOOD, UNCLEAR};
use anstyle::Style;
use elsa_core::drift::percentile;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The latency fell by more than the noise.
    Faster,
    /// The latency rose by more than the noise.
    Slower,
    /// The latency changed by no more than the noise.
    Same,
    /// A cell was disturbed or refused, or the noise of a run is not known.
    Unknown,
}

impl Verdict {
    /// Returns the word for the verdict, as reports print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Same => "same",
            Verdict::Unknown => "cannot be told",
        }
    }

    /// Returns the style of the verdict on a terminal.
    const fn style(self) -> Style {
        match self {
            Verdict::Faster => GOOD,
            Verdict::Slower => BAD,
            Verdict::Same => Style::new(),
            Verdict::Unknown => UNCLEAR,
        }
    }
}

/// The change of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Median latency in the later table, divided by the median latency in the earlier table; `None` if a cell was
    /// refused.
    pub ratio: Option<f64>,
    /// The noise of both runs together; `None` if either is unknown.
    pub noise: Option<f64>,
    /// Verdict on the change.
    pub verdict: Verdict,
}

/// Minimum number of rows for which the scatter of changes is meaningful.
const ROWS: usize = 8;

/// Returns the scatter of changes about their median: three standard deviations. The standard deviation is estimated
/// from the median absolute deviation, under the assumption of a normal distribution. Cells that are not clean are
/// skipped. Returns zero if too few rows remain.
#[must_use]
pub fn scatter<'a>(pairs: impl Iterator<Item = (&'a Row, &'a Row)>) -> f64 {
    let clean = pairs.filter(|(before, after)| before.clean && after.clean);
    let ratios = clean.filter_map(|(before, after)| Some((after.p50_ms? / before.p50_ms?).ln()));
    let mut changes: Vec<f64> = ratios.filter(|change| change.is_finite()).collect();
    if changes.len() < ROWS {
        return 0.0;
    }
    let middle = percentile(&mut changes, 50).unwrap_or(0.0);
    let mut away: Vec<f64> = changes.iter().map(|change| (change - middle).abs()).collect();
    let deviation = 1.4826 * percentile(&mut away, 50).unwrap_or(0.0);
    (3.0 * deviation).exp_m1()
}

/// Returns the change from `before` to `after`. `scatter` is the [`scatter`] of all changes between the tables.
#[must_use]
pub fn change(before: &Row, after: &Row, scatter: f64) -> Change {
    let ratio = after.p50_ms.zip(before.p50_ms).map(|(after, before)| after / before);
    // With `<`, a noise of NaN stays NaN; `max` would replace it by the scatter.
    let noise = after.noise.zip(before.noise).map(|(after, before)| after + before);
    let noise = noise.map(|noise| if noise < scatter { scatter } else { noise });
    let verdict = match (ratio, noise) {
        _ if !(before.clean && after.clean) => Verdict::Unknown,
        (Some(ratio), Some(noise)) if ratio > 1.0 + noise => Verdict::Slower,
        (Some(ratio), Some(noise)) if ratio < 1.0 / (1.0 + noise) => Verdict::Faster,
        (Some(ratio), Some(noise)) if ratio.is_finite() && noise.is_finite() => Verdict::Same,
        _ => Verdict::Unknown,
    };
    Change { ratio, noise, verdict }
}

/// Returns the columns that identify the measurement of a row.
fn key(row: &Row) -> (u32, [&str; 5]) {
    (row.threads, [&row.workload, &row.shape, &row.dtype, &row.method, &row.backend])
}

/// Returns `true` if the columns that identify a measurement are equal in both rows.
#[must_use]
pub fn same(a: &Row, b: &Row) -> bool {
    key(a) == key(b)
}

/// Maximum width of the column of names. Longer names extend beyond the column.
const WIDEST: usize = 120;

/// Returns the display name of a row.
fn named(row: &Row) -> String {
    let workload = if row.workload.is_empty() { String::new() } else { format!("{} ", row.workload) };
    format!("{workload}{} {} {} {} x{}", row.shape, row.dtype, row.method, row.backend, row.threads)
}

/// Reports the changes from the table `before` to the table `after`. With `json`, prints a line for each row.
///
/// # Errors
/// Returns an error if a file is not a table, or if rows became slower.
pub fn compare(out: &mut Shown<impl Write>, before: &Path, after: &Path, json: bool) -> Result<(), Error> {
    let (old, new) = (csv::read("compare", before)?, csv::read("compare", after)?);
    changes(out, [before, after], [&old, &new], json)
}

/// Reports changes like `compare`. The caller has already read the rows from the files `before` and `after`.
///
/// # Errors
/// Returns an error if rows became slower, or if the output fails.
pub fn changes(
    out: &mut Shown<impl Write>,
    [before, after]: [&Path; 2],
    [old, new]: [&[Row]; 2],
    json: bool,
) -> Result<(), Error> {
    let width = new.iter().chain(old).map(|row| named(row).len()).max().unwrap_or(0).min(WIDEST);
    let mut counts = [(Verdict::Slower, 0), (Verdict::Faster, 0), (Verdict::Same, 0), (Verdict::Unknown, 0)];
    if !json {
        writeln!(
            out,
            "{:<width$} {:>10} {:>10} {:>9} {:>8}",
            "", "before ms", "after ms", "change", "noise"
        )?;
    }
    let mut places = HashMap::with_capacity(old.len());
    for (at, row) in old.iter().enumerate() {
        // If several rows have the same key, the first one counts.
        places.entry(key(row)).or_insert(at);
    }
    let found = |row: &Row| places.get(&key(row)).copied();
    let scatter = scatter(new.iter().filter_map(|row| Some((&old[found(row)?], row))));
    let mut met = vec![false; old.len()];
    let mut alone = Vec::new();
    for row in new {
        let Some(at) = found(row) else {
            alone.push((row, after));
            continue;
        };
        met[at] = true;
        let Change { ratio, noise, verdict } = change(&old[at], row, scatter);
        for (of, count) in &mut counts {
            *count += usize::from(*of == verdict);
        }
        let kernel = (old[at].kernel != row.kernel).then_some((&old[at].kernel, &row.kernel));
        if json {
            let line = serde_json::json!({ "what": "change", "workload": row.workload, "shape": row.shape,
                "dtype": row.dtype, "method": row.method, "backend": row.backend, "threads": row.threads,
                "before_ms": old[at].p50_ms, "after_ms": row.p50_ms, "ratio": ratio, "noise": noise,
                "verdict": verdict.name(), "kernel": kernel });
            writeln!(out, "{line}")?;
            continue;
        }
        let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.4}"));
        let percent = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{:+.1} %", x * 100.0));
        let kernel = kernel.map_or_else(String::new, |(a, b)| format!(", kernel {a} became {b}"));
        write!(
            out,
            "{:<width$} {:>10} {:>10} {:>9} {:>8}  ",
            named(row),
            ms(old[at].p50_ms),
            ms(row.p50_ms),
            percent(ratio.map(|ratio| ratio - 1.0)),
            noise.map_or("-".to_owned(), |noise| format!("{:.1} %", noise * 100.0))
        )?;
        out.paint(verdict.style(), verdict.name())?;
        writeln!(out, "{kernel}")?;
    }
    alone.extend(old.iter().zip(met).filter(|(_, met)| !met).map(|(row, _)| (row, before)));
    for (row, path) in alone {
        if json {
            let line = serde_json::json!({ "what": "alone", "shape": row.shape, "dtype": row.dtype,
                "method": row.method, "file": path.display().to_string() });
            writeln!(out, "{line}")?;
        } else {
            let path = one_line(&path.display().to_string());
            writeln!(out, "{:<width$} only in {path}", named(row))?;
        }
    }
    let words: Vec<String> =
        counts.iter().map(|(verdict, count)| format!("{count} {}", verdict.name())).collect();
    if !json {
        writeln!(out, "{}; changes scatter by {:.1} %", words.join(", "), scatter * 100.0)?;
    }
    match counts[0] {
        (_, 0) => Ok(()),
        (_, slower) => {
            Err(Error::Slower(format!("{slower} of {} rows are slower beyond the noise", new.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ms: f64, noise: Option<f64>, clean: bool) -> Row {
        Row {
            workload: String::new(),
            shape: "1,1,64,64,64".into(),
            dtype: "f32".into(),
            method: "elsa".into(),
            backend: "avx2".into(),
            kernel: "k".into(),
            threads: 2,
            samples: 9,
            p50_ms: Some(ms),
            noise,
            clean,
        }
    }

    #[test]
    fn a_change_counts_beyond_the_noise_of_both_runs() {
        let quiet = |ms| row(ms, Some(0.02), true);
        let verdict = |a: &Row, b: &Row| change(a, b, 0.0).verdict;
        assert_eq!(verdict(&quiet(1.0), &quiet(1.039)), Verdict::Same);
        assert_eq!(verdict(&quiet(1.0), &quiet(1.041)), Verdict::Slower);
        assert_eq!(verdict(&quiet(1.041), &quiet(1.0)), Verdict::Faster);
        assert_eq!(verdict(&quiet(1.039), &quiet(1.0)), Verdict::Same);
        assert_eq!(change(&quiet(1.0), &quiet(2.0), 0.0).ratio, Some(2.0));
        // Disturbed cells and cells without a known noise prove nothing.
        for other in [row(9.0, Some(0.02), false), row(9.0, None, true), row(9.0, Some(f64::NAN), true)] {
            assert_eq!(verdict(&quiet(1.0), &other), Verdict::Unknown, "{other:?}");
            assert_eq!(verdict(&other, &quiet(1.0)), Verdict::Unknown, "{other:?}");
        }
        let refused = Row { samples: 0, p50_ms: None, ..quiet(1.0) };
        assert_eq!(verdict(&refused, &quiet(1.0)), Verdict::Unknown);
        assert!(same(&quiet(1.0), &refused) && !same(&quiet(1.0), &Row { threads: 1, ..quiet(1.0) }));
        assert!(!same(&quiet(1.0), &Row { dtype: "f16".into(), ..quiet(1.0) }));
    }

    #[test]
    fn rows_that_move_to_and_fro_say_little_and_rows_that_move_together_do() {
        let quiet = |ms| row(ms, Some(0.02), true);
        let before = vec![quiet(1.0); 9];
        let of = |ratios: [f64; 9]| {
            let after = ratios.map(quiet);
            let scatter = scatter(before.iter().zip(&after));
            let slower = |row: &&Row| change(&before[0], row, scatter).verdict == Verdict::Slower;
            (scatter, after.iter().filter(slower).count())
        };
        // The median deviation is 5 %; three standard deviations estimated from it are about 25 %.
        let (wide, slower) = of([0.9, 0.95, 0.95, 0.95, 1.0, 1.05, 1.05, 1.1, 1.6]);
        assert!((0.24..0.26).contains(&wide) && slower == 1, "{wide} {slower}");
        assert_eq!(of([1.1; 9]), (0.0, 9));
        let few = before[..7].iter().map(|row| (row, row));
        assert_eq!(scatter(few), 0.0);
        // Cells that are not clean are excluded.
        let wild = row(50.0, Some(0.02), false);
        assert_eq!(scatter(before.iter().map(|row| (row, &wild))), 0.0);
        assert_eq!(change(&quiet(1.0), &row(9.0, Some(f64::NAN), true), 0.3).verdict, Verdict::Unknown);
    }
}
