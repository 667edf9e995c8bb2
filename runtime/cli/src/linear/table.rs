//! The cells of `elsa linear bench`, their table, and the crossovers of the fastest form.

use crate::error::Error;
use elsa_core::drift::larger;
use elsa_core::linear::Form;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::io::Write;

/// A form of a cell, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Row {
    /// `linear bench`.
    pub what: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// `true` if each dim of the key has its own gate.
    pub per_dim: bool,
    /// The order in which tokens pass.
    pub direction: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// The back end that computed.
    pub backend: String,
    /// Kernel that ran.
    pub kernel: &'static str,
    /// Threads of the CPU.
    pub threads: usize,
    /// Sequences.
    pub batch: usize,
    /// Heads, of queries, keys and values alike.
    pub heads: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// Head size, of keys and values alike.
    pub dim: usize,
    /// The form.
    #[serde(serialize_with = "named")]
    pub form: Form,
    /// Tokens of a chunk.
    pub chunk: usize,
    /// Maximum number of parts of a sequence.
    pub parts: usize,
    /// `true` if a plan chooses it by default.
    pub chosen: bool,
    /// Slices that were timed.
    pub samples: usize,
    /// A quarter of the slices had calls that took less.
    pub p25_ms: f64,
    /// Median time of a call.
    pub p50_ms: f64,
    /// A quarter of the slices had calls that took more.
    pub p75_ms: f64,
    /// Median time over batch, heads and tokens.
    pub ns_per_token: f64,
    /// Bytes of the workspace.
    pub workspace_bytes: usize,
    /// Distance of the first head from the recurrence in f64.
    pub rel_l2: f64,
}

/// Writes a form by its name.
fn named<S: serde::Serializer>(form: &Form, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(form.name())
}

/// Cells that differ in tokens and form alone.
pub struct Family {
    /// Common properties of the cells.
    pub title: String,
    /// The cells, tokens rising.
    pub rows: Vec<Row>,
}

/// Length from which another form is the fastest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossover {
    /// The fastest form before.
    pub from: Form,
    /// The fastest form after.
    pub to: Form,
    /// Tokens, interpolated.
    pub tokens: f64,
}

impl Display for Crossover {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} is faster than {} from {:.0} tokens", self.to.name(), self.from.name(), self.tokens)
    }
}

impl Family {
    /// Finds the crossovers of the fastest form: between two lengths, times are interpolated as
    /// powers of the tokens.
    pub fn crossovers(&self) -> Vec<Crossover> {
        let mut lengths: Vec<usize> = self.rows.iter().map(|row| row.tokens).collect();
        lengths.dedup();
        let fastest = |tokens| {
            let of = self.rows.iter().filter(|row| row.tokens == tokens);
            of.min_by(|a, b| a.p50_ms.total_cmp(&b.p50_ms)).map(|row| row.form)
        };
        let time = |form, tokens| {
            let row = self.rows.iter().find(|row| row.form == form && row.tokens == tokens)?;
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
    let names: String = Form::ALL.iter().map(|form| format!("{:>13} ", form.name())).collect();
    writeln!(out, "{:>8} {names}{:>9}", "tokens", "rel L2")?;
    let mut lengths: Vec<usize> = family.rows.iter().map(|row| row.tokens).collect();
    lengths.dedup();
    for tokens in lengths {
        let of = || family.rows.iter().filter(|row| row.tokens == tokens);
        write!(out, "{tokens:>8} ")?;
        for form in Form::ALL {
            match of().find(|row| row.form == form) {
                Some(row) => {
                    write!(out, "{:>13.1}{}", row.ns_per_token, if row.chosen { '*' } else { ' ' })?;
                }
                None => write!(out, "{:>13} ", "-")?,
            }
        }
        writeln!(out, "{:>9.1e}", of().map(|row| row.rel_l2).fold(0.0, larger))?;
    }
    for crossover in family.crossovers() {
        writeln!(out, "{crossover}")?;
    }
    writeln!(out)?;
    Ok(())
}
