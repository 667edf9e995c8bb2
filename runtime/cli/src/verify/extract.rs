//! Extracts the probabilities P that a run computes, and compares them with the oracle's probabilities.
//!
//! If the values are columns `j0..j1` of the identity matrix, the output is `P[:, j0..j1]`.

use crate::error::Error;
use crate::oracle::Oracle;
use crate::picture::HeatMap;
use crate::progress;
use crate::rows::{RowId, for_rows, output_row, rows, sample};
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::drift::RowDrift;
use elsa_core::attention::{BiasView, Inputs, MaskView, Outputs, Problem, Window};
use elsa_core::drift::larger;
use elsa_core::view::{Layout, View};
use elsa_files::{Buffer, zeros};
use elsa_runtime::{Engine, PlanOptions};
use std::collections::HashMap;

/// Maximum number of multiplications for extracting all rows of P. If more are needed, only a sample of rows is
/// extracted. All rows are extracted nevertheless if the keys that a query attends depend on the query's position.
const EXTRACTION: usize = 3 << 35;

/// Number of rows of P in a sample, over all heads.
const SAMPLE: usize = 64;

/// Comparison of the probabilities of one row with the oracle's probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct PRow {
    /// Drift metrics of the row's probabilities.
    pub drift: RowDrift,
    /// `true` if the most likely key differs from the oracle's most likely key, and the errors of the scores are too
    /// small to explain the difference.
    pub unexplained: bool,
    /// Number of probabilities that are finite in the run but not in the oracle, or in the oracle but not in the run.
    pub not_finite: usize,
}

impl PRow {
    /// Compares a row of the run with the oracle's row. `found` returns the run's probability of a key; `u_out` is the
    /// unit roundoff of the output's type.
    fn of(oracle: &Oracle<'_>, found: impl Fn(usize) -> f64, u_out: f64) -> PRow {
        let mut row = PRow::default();
        // A NaN among the scores of a row makes the sum of its weights NaN, so a run returns NaN for every key.
        let nan = oracle.p.iter().any(|p| p.is_nan());
        for (j, &p) in oracle.p.iter().enumerate() {
            let x = found(j);
            row.drift.probability(x, p);
            row.not_finite += usize::from(if nan { p.is_nan() && x.is_finite() } else { !x.is_finite() });
        }
        if row.drift.metrics().argmax != 0.0 && !nan {
            let (best, picked) = (row.drift.reference_argmax(), row.drift.computed_argmax());
            let gap = (oracle.p[best] / oracle.p[picked]).ln();
            let allowed = oracle.delta[best] + oracle.delta[picked] + 4.0 * u_out;
            row.unexplained = gap.is_nan() || allowed.is_nan() || gap > allowed;
        }
        row
    }
}

/// Compared rows of P, and a heat map of the first head.
pub type Extracted = (Vec<PRow>, Option<HeatMap>);

/// Settings for extracting P.
#[derive(Clone, Copy)]
pub struct Extraction<'a> {
    /// Engine of the run whose P is extracted.
    pub engine: &'a Engine,
    /// Options of the run's plan.
    pub options: &'a PlanOptions,
    /// Structure of the run's arithmetic, as the certificate of the plan states it.
    pub executed: Executed,
    /// Largest head size of values that the run's kernel accepts; `None` if it has no limit.
    pub widest: Option<usize>,
}

impl Extraction<'_> {
    /// Extracts the rows `all` of P, or a sample of them, and compares them with the oracle's rows. If there are keys,
    /// the result includes a heat map of the first head.
    ///
    /// # Errors
    /// Returns an error if the engine refuses the options, if the device fails, or if memory is not available.
    pub fn compare(&self, problem: &Problem, inputs: Inputs<'_>, all: &[RowId]) -> Result<Extracted, Error> {
        let spec = *problem.spec();
        let cost = all.len().saturating_mul(problem.keys()).saturating_mul(problem.keys());
        // Rows can be sampled if the keys that a query attends do not depend on its position.
        let free = spec.causal.is_none()
            && spec.window == Window::default()
            && spec.packed.is_none()
            && spec.query.batch() == 1
            && spec.windows.is_none()
            && spec.mask.as_ref().is_none_or(MaskView::same_for_all_queries)
            && spec
                .bias
                .as_ref()
                .is_none_or(|bias| matches!(bias, BiasView::Dense(view) if view.same_for_all_queries()));
        if cost <= EXTRACTION || !free || spec.query.tokens() <= SAMPLE {
            return self.extract(problem, inputs, all);
        }
        let queries: Vec<RowId> =
            (0..spec.query.tokens()).map(|query| RowId { sequence: 0, head: 0, query }).collect();
        let per_head = SAMPLE.div_ceil(problem.heads()).max(2);
        let picked = sample(&queries, per_head);
        let (heads, d) = (problem.heads(), problem.head_dim());
        let mut q = Buffer::zeros("q", spec.dtype, heads * picked.len() * d)?;
        let mut elements = q.elements_mut();
        for head in 0..heads {
            for (i, row) in picked.iter().enumerate() {
                for c in 0..d {
                    let x = inputs.query.get(spec.query.row(0, head, row.query) + c);
                    elements.set((head * picked.len() + i) * d + c, x);
                }
            }
        }
        let mut sampled = spec;
        sampled.query = View::dense("q", Layout::Bhnd, &[heads, picked.len(), d], None)?;
        sampled.output = View::dense("out", Layout::Bhnd, &[heads, picked.len(), problem.value_dim()], None)?;
        let sampled = sampled.check()?;
        let inputs = Inputs { query: q.elements(), ..inputs };
        let rows = rows(&sampled, &inputs);
        self.extract(&sampled, inputs, &rows)
    }

    /// Extracts the given rows of P and compares them with the oracle's rows.
    fn extract(&self, problem: &Problem, inputs: Inputs<'_>, rows: &[RowId]) -> Result<Extracted, Error> {
        let Extraction { engine, options, executed, widest } = *self;
        let spec = *problem.spec();
        let (total, past) = (problem.keys(), problem.past());
        let new = total - past;
        if total == 0 || rows.is_empty() {
            return Ok((Vec::new(), None));
        }
        let columns = if total <= 8192 { 512 } else { 256 }.min(total).min(widest.unwrap_or(usize::MAX));
        // Each row has room for all keys of the problem, although a packed sequence has only some of them.
        let mut stored: Vec<f32> = zeros("verify", rows.len().saturating_mul(total))?;
        let index: HashMap<(usize, usize, usize), usize> =
            rows.iter().enumerate().map(|(i, r)| ((r.sequence, r.head, r.query), i)).collect();

        // All sequences and heads share the one-hot values.
        let [b, hk, ..] = spec.value.shape();
        let [_, h, n, _] = spec.query.shape();
        let mut one_hot = spec;
        one_hot.value = View::new("v", [b, hk, new, columns], [0, 0, columns, 1])?;
        one_hot.past_value = match spec.past_value {
            Some(_) => Some(View::new("past-v", [b, hk, past, columns], [0, 0, columns, 1])?),
            None => None,
        };
        (one_hot.present_key, one_hot.present_value) = (None, None);
        one_hot.output = View::dense("out", Layout::Bhnd, &[b, h, n, columns], None)?;
        let one_hot = one_hot.check()?;
        let plan = engine.plan(&one_hot, options)?;
        let mut workspace = plan.workspace()?;
        let mut values = Buffer::zeros("verify", spec.dtype, new * columns)?;
        let mut past_values = Buffer::zeros("verify", spec.dtype, past * columns)?;
        let mut output = Buffer::zeros("verify", spec.dtype, one_hot.spec().output.extent())?;
        let chunks = total.div_ceil(columns);
        let flops =
            chunks as f64 * rows.len() as f64 * total as f64 * (problem.head_dim() + columns) as f64 * 2.0;
        let bar = progress::bar(chunks as u64, flops / 2e10);
        for chunk in 0..chunks {
            let first = chunk * columns;
            let mark = |value: f32, values: &mut Buffer, past_values: &mut Buffer| {
                for (c, j) in (first..(first + columns).min(total)).enumerate() {
                    if j < past {
                        past_values.elements_mut().set(j * columns + c, value);
                    } else {
                        values.elements_mut().set((j - past) * columns + c, value);
                    }
                }
            };
            mark(1.0, &mut values, &mut past_values);
            let given = Inputs {
                value: values.elements(),
                past_value: inputs.past_value.map(|_| past_values.elements()),
                ..inputs
            };
            plan.run(given, Outputs::new(output.elements_mut()), &mut workspace)?;
            let found = output.elements();
            for (i, row) in rows.iter().enumerate() {
                let at = output_row(&one_hot, &given, *row);
                for c in 0..columns.min(total - first) {
                    stored[i * total + first + c] = found.get(at + c);
                }
            }
            mark(0.0, &mut values, &mut past_values);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let u_out = spec.dtype.unit_roundoff();
        let first = problem.sequence(&inputs.lengths, 0);
        let mut map = HeatMap::new(first.queries, first.keys);
        let width = map.cells.first().map_or(0, Vec::len);
        let compared = for_rows(
            rows,
            || Oracle::new(problem, inputs, &executed),
            |oracle, row| {
                oracle.probabilities(row);
                let i = index.get(&(row.sequence, row.head, row.query)).copied().unwrap_or(0);
                let key0 = problem.sequence(&inputs.lengths, row.sequence).key0;
                let found = |j: usize| f64::from(stored[i * total + key0 + j]);
                let mut cells = Vec::new();
                if (row.sequence, row.head) == (0, 0) {
                    cells = vec![0.0; width];
                    for (j, p) in oracle.p.iter().enumerate() {
                        let cell = &mut cells[j * width / oracle.p.len()];
                        *cell = larger(*cell, (found(j) - p).abs());
                    }
                }
                (PRow::of(oracle, found, u_out), cells)
            },
            |_| {},
        );
        let mut p = Vec::with_capacity(compared.len());
        for ((row, cells), id) in compared.into_iter().zip(rows) {
            if !cells.is_empty() {
                map.absorb(id.query, &cells);
            }
            p.push(row);
        }
        Ok((p, Some(map)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;
    use elsa_core::attention::scalar;
    use elsa_core::dtype::{DType, Elements};

    fn oracle_with<'a>(problem: &'a Problem, inputs: Inputs<'a>, p: &[f64], delta: f64) -> Oracle<'a> {
        let mut oracle = Oracle::new(problem, inputs, &scalar::executed(problem));
        oracle.p = p.to_vec();
        oracle.delta = vec![delta; p.len()];
        oracle
    }

    #[test]
    fn rows_of_probabilities_are_judged() {
        let shape = Shape::plain(1, 1, 1, 3, 4);
        let problem = shape.problem(DType::F32).unwrap();
        let zeros = [0.0f32; 12];
        let inputs = Inputs::new(Elements::F32(&zeros[..4]), Elements::F32(&zeros), Elements::F32(&zeros));
        let judge =
            |p: &[f64], x: &[f64], delta| PRow::of(&oracle_with(&problem, inputs, p, delta), |j| x[j], 0.0);
        let same = judge(&[0.5, 0.25, 0.25], &[0.5, 0.25, 0.25], 0.0);
        assert!(same.drift.metrics().js == 0.0 && !same.unexplained && same.not_finite == 0);
        // The two arguments are not interchangeable: the first is the oracle's row, and the second is the run's row.
        let far = judge(&[1.0, 0.0, 0.0], &[0.0, 1.0, 0.0], 0.1);
        assert!(far.drift.metrics().argmax == 1.0 && far.unexplained);
        assert_eq!((far.drift.reference_argmax(), far.drift.computed_argmax()), (0, 1));
        // Rounding explains another most likely key if the gap is within the errors of the scores, but not otherwise.
        let gap = 0.01f64;
        let p = [0.4 * gap.exp(), 0.4, 0.2];
        assert!(!judge(&p, &[0.4, 0.41, 0.2], 0.006).unexplained);
        assert!(judge(&p, &[0.4, 0.41, 0.2], 0.004).unexplained);
        // An error bound that is NaN explains no difference.
        assert!(judge(&p, &[0.4, 0.41, 0.2], f64::NAN).unexplained);
        // NaN only in the run counts as an error; NaN both in the run and in the oracle is correct.
        let poisoned = [f64::NAN; 3];
        assert_eq!(judge(&p, &[f64::NAN, 0.4, 0.2], 0.0).not_finite, 1);
        let both = judge(&poisoned, &poisoned, 0.0);
        assert!(both.not_finite == 0 && !both.unexplained && both.drift.metrics().js.is_nan());
    }
}
