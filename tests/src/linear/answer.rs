//! What the oracle answers, and what a call writes.

use super::build::Case;
use crate::cases::{Data, each_row};
use elsa_core::dtype::DType;
use elsa_core::linear::{Outputs, reference};

/// The answer of the oracle: every state and output, in the order of the views' rows without gaps.
#[derive(Clone, Debug)]
pub struct Answer {
    /// `[batch, output heads, tokens, d_v]`.
    pub output: Vec<f64>,
    /// `[sequences, state heads, d_k, d_v]`.
    pub present: Vec<f64>,
}

/// What a call writes.
#[derive(Clone, Debug)]
pub struct Found {
    /// Elements of the output view.
    pub output: Data,
    /// Elements of the present states, if the problem has them.
    pub present: Option<Vec<f32>>,
}

impl Case {
    /// The recurrence in f64.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let (p, inputs) = (&self.problem, self.all_inputs());
        let (dk, dv, states, heads) = (p.key_dim(), p.value_dim(), p.state_heads(), p.output_heads());
        let tokens = p.tokens();
        let batch = p.spec().query.batch();
        let mut output = vec![0.0; batch * heads * tokens * dv];
        let mut present = vec![0.0; p.sequences() * states * dk * dv];
        let mut scratch = vec![0.0; reference::scratch_len(p)];
        for index in 0..p.sequences() {
            let sequence = p.sequence(inputs.cu_seqlens, index);
            for state in 0..states {
                let (first, readers) = p.readers(state);
                let mut rows = vec![0.0; readers * sequence.tokens * dv];
                let at = (index * states + state) * dk * dv;
                let last = &mut present[at..at + dk * dv];
                reference::head(p, &inputs, index, state, &mut rows, last, &mut scratch);
                for (reader, rows) in rows.chunks(sequence.tokens.max(1) * dv).enumerate() {
                    let head = sequence.batch * heads + first + reader;
                    let to = (head * tokens + sequence.start) * dv;
                    output[to..to + rows.len()].copy_from_slice(rows);
                }
            }
        }
        Answer { output, present }
    }

    /// Room for what a call writes: NaN, but for the past states of a problem in place.
    #[must_use]
    pub fn room(&self) -> Found {
        let spec = self.problem.spec();
        let present = spec.present_state.map(|view| match &self.past {
            Some(past) if spec.in_place => past.clone(),
            _ => vec![f32::NAN; view.extent()],
        });
        Found { output: Data::filled(spec.dtype, spec.output.extent(), f32::NAN), present }
    }
}

impl Found {
    /// Borrows all of it.
    pub fn outputs(&mut self) -> Outputs<'_> {
        Outputs { output: Some(self.output.elements_mut()), present_state: self.present.as_deref_mut() }
    }

    /// Bits of every element, also of those in gaps.
    #[must_use]
    pub fn bits(&self) -> Vec<u32> {
        let output = (0..self.output.len()).map(|i| self.output.get(i).to_bits());
        output.chain(self.present.iter().flatten().map(|x| x.to_bits())).collect()
    }

    /// Elements of the output, row by row.
    #[must_use]
    pub fn rows(&self, case: &Case) -> Vec<f64> {
        let view = case.problem.spec().output;
        let mut rows = Vec::new();
        each_row(&view, |row| rows.extend((0..view.dim()).map(|x| f64::from(self.output.get(row + x)))));
        rows
    }

    /// Elements of the present states, row by row; none if the problem has none.
    #[must_use]
    pub fn states(&self, case: &Case) -> Vec<f64> {
        let (Some(view), Some(present)) = (case.problem.spec().present_state, &self.present) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        each_row(&view, |row| rows.extend(present[row..row + view.dim()].iter().map(|x| f64::from(*x))));
        rows
    }

    /// Asserts that everything is near the answer, and that nothing between rows was written: each row of the output, and
    /// each state, within `limit` of the largest number of all of them.
    ///
    /// # Panics
    /// Panics if it is not.
    pub fn check(&self, case: &Case, answer: &Answer, limit: f64) {
        let spec = case.problem.spec();
        let (rows, states) = (self.rows(case), self.states(case));
        assert_eq!(rows.len(), answer.output.len(), "{}", case.name);
        let rounding = if spec.dtype == DType::F32 { 0.0 } else { spec.dtype.unit_roundoff() };
        let present = if states.is_empty() { &[][..] } else { &answer.present[..] };
        for (what, found, expected, rounding) in
            [("output", &rows, &answer.output[..], rounding), ("present", &states, present, 0.0)]
        {
            assert_eq!(found.len(), expected.len(), "{what} of {}", case.name);
            let largest = expected.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                let allowed = limit * largest + rounding * expected.abs() + 1e-30;
                let error = (found - expected).abs();
                assert!(
                    error <= allowed || (found.is_nan() && expected.is_nan()),
                    "{what} {i}: {found} instead of {expected}, {error:e} over {allowed:e}; {}",
                    case.name
                );
            }
        }
        let between = |view: &elsa_core::view::View, nan: &dyn Fn(usize) -> bool| {
            let mut inside = vec![false; view.extent()];
            each_row(view, |row| inside[row..row + view.dim()].fill(true));
            for (i, inside) in inside.iter().enumerate() {
                assert!(*inside || nan(i), "element {i} between rows was written; {}", case.name);
            }
        };
        between(&spec.output, &|i| self.output.get(i).is_nan());
        if let (Some(view), Some(present)) = (&spec.present_state, &self.present) {
            between(view, &|i| present[i].is_nan());
        }
    }
}
