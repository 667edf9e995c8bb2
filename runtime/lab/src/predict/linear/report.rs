//! Prints the predictions of linear attention.

use super::{Call, DIMS, FORMS, Prediction, TOKENS};
use crate::predict::forecast::ForecastError;
use crate::predict::latency::GpuMachine;
use elsa_cli::error::Error;
use serde_json::json;
use std::io::Write;

/// Returns the predictions for some rules.
///
/// # Errors
/// Returns an error if a call cannot be predicted.
pub fn all(
    rules: &[&'static str],
    heads: usize,
    machine: &GpuMachine,
) -> Result<Vec<(Call, Prediction)>, ForecastError> {
    let mut all = Vec::new();
    for &rule in rules {
        for dim in DIMS {
            for tokens in TOKENS {
                let call = Call { rule, heads, tokens, dim };
                all.push((call, call.predict(machine)?));
            }
        }
    }
    Ok(all)
}

/// Writes predictions as one JSON object per line.
///
/// # Errors
/// Returns an error if the output fails.
pub fn json_lines(out: &mut impl Write, board: &str, all: &[(Call, Prediction)]) -> Result<(), Error> {
    for (call, found) in all {
        let [recurrent, fused, chunk] = found.ms;
        let line = json!({
            "what": "prediction",
            "measured": false,
            "board": board,
            "rule": call.rule,
            "heads": call.heads,
            "tokens": call.tokens,
            "d": call.dim,
            "recurrent_ms": recurrent,
            "fused_chunk_ms": fused,
            "chunk_ms": chunk,
            "in_order": found.in_order.name(),
            "chosen": found.chosen.name(),
            "in_order_ms": found.of(found.in_order),
            "chosen_ms": found.of(found.chosen),
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Writes predictions as a table.
///
/// # Errors
/// Returns an error if the output fails.
pub fn table(out: &mut impl Write, all: &[(Call, Prediction)]) -> Result<(), Error> {
    let [recurrent, fused, chunk] = FORMS.map(|form| format!("{} ms", form.name()));
    writeln!(
        out,
        "rule       heads    d  tokens  {recurrent:>12}  {fused:>14}  {chunk:>9}  in order     chosen       in order / chosen"
    )?;
    for (call, found) in all {
        let [recurrent, fused, chunk] = found.ms;
        writeln!(
            out,
            "{:<9}  {:>5}  {:>3}  {:>6}  {recurrent:>12.3}  {fused:>14.3}  {chunk:>9.3}  {:<11}  {:<11}  {:>17.2}",
            call.rule,
            call.heads,
            call.dim,
            call.tokens,
            found.in_order.name(),
            found.chosen.name(),
            found.of(found.in_order) / found.of(found.chosen),
        )?;
    }
    Ok(())
}
