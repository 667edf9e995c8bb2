//! The cells of `elsa linear bench`, their table, and the crossovers at which another form becomes the fastest.

use crate::bench::watch::counted;
use crate::error::Error;
use crate::report::count;
use elsa_core::drift::larger;
use elsa_core::linear::Form;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::io::Write;

/// Results of one form in a cell, as `--json` prints them.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Kind of the record: `linear bench`.
    pub what: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// `true` if each dim of the key has its own gate.
    pub per_dim: bool,
    /// Order in which tokens update the state.
    pub direction: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// Back end that computed the results.
    pub backend: String,
    /// Kernel that ran.
    pub kernel: &'static str,
    /// Number of CPU threads.
    pub threads: usize,
    /// Number of sequences.
    pub batch: usize,
    /// Number of heads of queries.
    pub heads: usize,
    /// Number of heads of values. Each of these heads has a state.
    pub states: usize,
    /// Number of tokens per sequence.
    pub tokens: usize,
    /// Head size of queries and keys.
    pub dim: usize,
    /// Head size of values.
    pub value_dim: usize,
    /// The form.
    #[serde(serialize_with = "named")]
    pub form: Form,
    /// Number of tokens per chunk.
    pub chunk: usize,
    /// Maximum number of parts into which a sequence is divided.
    pub parts: usize,
    /// `true` if a plan chooses this form by default.
    pub chosen: bool,
    /// Number of timed slices; zero if the cell was refused. The times are then NaN.
    pub samples: usize,
    /// First quartile of the time per call, over the slices.
    pub p25_ms: f64,
    /// Median time per call, over the slices.
    pub p50_ms: f64,
    /// Third quartile of the time per call, over the slices.
    pub p75_ms: f64,
    /// Median time per token, for one state of one sequence, in nanoseconds.
    pub ns_per_token: f64,
    /// Tokens per second at the median time, over all sequences.
    pub tokens_per_s: f64,
    /// `true` if nothing disturbed the cell.
    pub clean: bool,
    /// Reasons why the cell was disturbed or refused, each with a remedy.
    pub marks: Vec<String>,
    /// Bytes of the workspace.
    pub workspace_bytes: usize,
    /// Relative L2 distance of the first head from the recurrence in f64.
    pub rel_l2: f64,
}

/// Serializes a form as its name.
fn named<S: serde::Serializer>(form: &Form, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(form.name())
}

/// Cells that differ only in the number of tokens and the form.
pub struct Family {
    /// Title of the table and its chart: the properties that all cells share.
    pub title: String,
    /// Results of the cells, in increasing order of tokens.
    pub rows: Vec<Row>,
}

/// Crossover from one form to another. For fewer tokens than `tokens`, the form `from` is the fastest; for more tokens,
/// the form `to` is the fastest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossover {
    /// The form that is the fastest for fewer tokens than `tokens`.
    pub from: Form,
    /// The form that is the fastest for more tokens than `tokens`.
    pub to: Form,
    /// Number of tokens at the crossover, interpolated.
    pub tokens: f64,
}

impl Display for Crossover {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} is faster than {} from {:.0} tokens", self.to.name(), self.from.name(), self.tokens)
    }
}

impl Family {
    /// Finds the crossovers at which another form becomes the fastest. Between two measured numbers of tokens, times are
    /// interpolated by a power law.
    pub fn crossovers(&self) -> Vec<Crossover> {
        let measured = || self.rows.iter().filter(|row| row.samples > 0);
        let mut lengths: Vec<usize> = measured().map(|row| row.tokens).collect();
        lengths.dedup();
        let fastest = |tokens| {
            let of = measured().filter(|row| row.tokens == tokens);
            of.min_by(|a, b| a.p50_ms.total_cmp(&b.p50_ms)).map(|row| row.form)
        };
        let time = |form, tokens| {
            let row = measured().find(|row| row.form == form && row.tokens == tokens)?;
            Some(row.p50_ms.ln())
        };
        let mut found = Vec::new();
        for pair in lengths.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let (Some(from), Some(to)) = (fastest(a), fastest(b)) else { continue };
            if from == to {
                continue;
            }
            let gap = |tokens| Some(time(to, tokens)? - time(from, tokens)?);
            let (Some(before), Some(after)) = (gap(a), gap(b)) else { continue };
            let share = before / (before - after);
            let [low, high] = [a, b].map(|n| (n as f64).ln());
            let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 1.0 };
            found.push(Crossover { from, to, tokens: (low + share * (high - low)).exp() });
        }
        found
    }
}

/// Prints the table of a rule and a head size.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn print(out: &mut impl Write, family: &Family) -> Result<(), Error> {
    writeln!(out, "{}; ns per token and head", family.title)?;
    let names: String = Form::ALL.iter().map(|form| format!("{:>11} ", form.name())).collect();
    writeln!(out, "{:>7} {names}{:>8}", "tokens", "rel L2")?;
    let mut lengths: Vec<usize> = family.rows.iter().map(|row| row.tokens).collect();
    lengths.dedup();
    let mut marks = Vec::new();
    for tokens in lengths {
        let of = || family.rows.iter().filter(|row| row.tokens == tokens);
        write!(out, "{tokens:>7} ")?;
        for form in Form::ALL {
            match of().find(|row| row.form == form) {
                Some(row) if row.samples > 0 => {
                    write!(out, "{:>11.1}{}", row.ns_per_token, if row.chosen { '*' } else { ' ' })?;
                }
                _ => write!(out, "{:>11} ", "-")?,
            }
        }
        write!(out, "{:>8.1e}", of().map(|row| row.rel_l2).fold(0.0, larger))?;
        // All forms of a row were measured at the same time.
        let disturbed = of().next().filter(|row| !row.clean);
        writeln!(out, "{}", if disturbed.is_some() { " !" } else { "" })?;
        marks.extend(disturbed.into_iter().flat_map(|row| &row.marks));
    }
    for (mark, number) in counted(marks.into_iter().map(String::as_str)) {
        writeln!(out, "! {} not clean: {mark}", count(number, "row"))?;
    }
    for crossover in family.crossovers() {
        writeln!(out, "{crossover}")?;
    }
    writeln!(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a row for one head. If `ms` is NaN, the cell was refused.
    fn row(form: Form, tokens: usize, ms: f64, marks: &[&str]) -> Row {
        Row {
            what: "linear bench",
            rule: "gated",
            per_dim: false,
            direction: "forward",
            dtype: "f32",
            backend: "scalar".to_owned(),
            kernel: "kernel",
            threads: 1,
            batch: 1,
            heads: 1,
            states: 1,
            tokens,
            dim: 8,
            value_dim: 8,
            form,
            chunk: 1,
            parts: 1,
            chosen: form == Form::Recurrent,
            samples: if ms.is_nan() { 0 } else { 3 },
            p25_ms: ms,
            p50_ms: ms,
            p75_ms: ms,
            ns_per_token: ms * 1e6 / tokens as f64,
            tokens_per_s: tokens as f64 * 1e3 / ms,
            clean: marks.is_empty(),
            marks: marks.iter().map(|mark| (*mark).to_owned()).collect(),
            workspace_bytes: 0,
            rel_l2: 1e-7,
        }
    }

    #[test]
    fn rows_that_are_not_clean_say_so_and_refused_ones_have_no_times() {
        let (busy, idle) = ("others take 1.20 cores; close x", "others take 0.31 cores; close x");
        let rows = vec![
            row(Form::Recurrent, 10, 1.0, &[]),
            row(Form::Chunk, 10, 2.0, &[]),
            row(Form::Recurrent, 20, f64::NAN, &[busy]),
            row(Form::Chunk, 20, f64::NAN, &[busy]),
            row(Form::Recurrent, 40, 8.0, &[idle]),
            row(Form::Chunk, 40, 4.0, &[idle]),
        ];
        let family = Family { title: "gated".to_owned(), rows };
        let mut out = Vec::new();
        print(&mut out, &family).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].contains("100000.0*") && lines[2].ends_with("e-7"), "{text}");
        assert!(lines[3].ends_with("e-7 !") && lines[3].matches(" - ").count() == 5, "{text}");
        assert!(lines[4].contains("100000.0 ") && lines[4].ends_with("e-7 !"), "{text}");
        assert_eq!(lines[5], "! 2 rows not clean: others take 1.20 cores; close x");
        // The refused cell between the two others has no crossover.
        let crossovers = family.crossovers();
        let [found] = &crossovers[..] else { panic!("{text}") };
        assert_eq!((found.from, found.to), (Form::Recurrent, Form::Chunk));
        // Both forms grow by a power of the tokens and are equally fast where 1.0 x^1.5 = 2.0 x^0.5.
        assert!((found.tokens - 20.0).abs() < 1e-9, "{found:?}");
    }
}
