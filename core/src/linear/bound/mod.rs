//! Bounds the error of every output of linear attention, in one f64 pass over the inputs.
//!
//! `core/BOUNDS.md` has the derivation; this module has the computation. `u = 2^-24`, `γ_n = n u / (1 − n u)`, and
//! `‖·‖` is the Euclidean norm of a column. A chunk is the set of tokens that are applied to the state together: one
//! token in the recurrence.
//!
//! ```text
//! S        the exact state, carried along
//! e        error of the computed state: for each element (linear, gated), for each column in norm (delta rules)
//! M        |S| + e at the start of a chunk, then M ← a ⊙ M + |k| |û|ᵀ
//! token    e ← a ⊙ e                              or   e ← max a · max(1, |1 − β |k|²|) · e + |k| ε
//!          ε = |β| ρ (|v| + |k|ᵀ (a ⊙ M))         own error of a solved row u = β (v − …)
//!          |û| = |u| + |β| |k| max a · e + ε
//! output   scale · (|q|ᵀ e + ρ |q|ᵀ M)
//! chunk    e ← e + ρ M
//! ```
//!
//! `ρ` is `γ_n` for the `n` roundings on the path of a term, including the errors of its exponentials and of normalised
//! vectors. A floor is added to these terms for values that are flushed or underflow.
//!
//! 1. **The bound advances with the state.** It is relative to the current contents of the state, not to earlier
//!    contents, and a gate that clears a token clears the token's error as well.
//! 2. **Substitution is as good as the recurrence.** With the computed rows `û`, the formula of a chunk is *exactly* a
//!    recurrence whose row `i` is off by the residual `ε_i`. So neither an inverse nor a condition number is involved. The
//!    error grows only as far as the model amplifies it: not at all while `β |k|² ≤ 2`, otherwise by the gain
//!    ([`Judged::gain`]).
//! 3. **Errors have directions.** A delta rule reduces the error of a state along each key. A norm cannot represent
//!    this reduction. Therefore the errors of all columns have a second bound: an ellipsoid, which the tokens rotate
//!    and shrink. The smaller of the two bounds counts.
//! 4. **The bound of a scan has two levels, like the scan.** The schedule that combines the maps `(A, b)` of the parts
//!    also combines the errors of these maps.

mod executed;
mod parts;
mod shape;
mod track;

use super::data::Inputs;
use super::problem::Problem;
use super::rule::{Direction, Form};
use super::token::StateTokens;
use crate::dtype::DType;
use shape::Shape;
use track::{Rates, Run, Track};

pub use executed::{Executed, Solve};

/// Stability of a state. It is determined while the errors of the state's outputs are bounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// Largest factor by which tokens may have amplified an earlier error of the state: the maximum, over runs of
    /// consecutive tokens, of `Π max a · max(1, |1 − β |k|²|)`. The gain is at most one if gates and rates contract.
    pub gain: f64,
}

/// Buffers for the results of one state: the exact outputs, the exact last state, and the bounds of the errors of both.
#[derive(Debug)]
pub struct Judgement<'a> {
    /// Exact outputs, `[readers, tokens, d_v]`, in the layout of [`super::reference::head`].
    pub output: &'a mut [f64],
    /// Bounds of the errors of the outputs, `[readers, tokens, d_v]`.
    pub output_error: &'a mut [f64],
    /// The exact last state, `[d_k, d_v]`.
    pub present: &'a mut [f64],
    /// Bounds of the errors of the last state's elements, `[d_k, d_v]`.
    pub present_error: &'a mut [f64],
}

/// Factor that rounds the bounds outwards. It covers the f64 roundings of the bounds and of the exact outputs. An f64
/// rounding is `2^-29` of an f32 rounding.
const OUTWARD: f64 = 1.0 + 1e-6;

/// Returns the number of f64 values of scratch that [`head`] needs; `None` on overflow.
#[must_use]
pub fn scratch_len(problem: &Problem, executed: &Executed) -> Option<usize> {
    let (rows, columns) = (problem.key_dim(), problem.value_dim());
    let track = Track::len(rows, columns)?;
    let mut whole = track.checked_add(rows.checked_mul(3)?)?.checked_add(columns.checked_mul(2)?)?;
    if problem.rule().is_delta() {
        whole = whole.checked_add(Shape::len(rows)?)?.checked_add(columns)?;
    }
    match (executed.form, problem.rule().is_delta()) {
        (Form::Scan, true) => {
            let parts = problem.tokens().div_ceil(executed.part.max(1));
            let second = track.checked_add(rows.checked_mul(columns)?)?;
            whole.checked_add(second)?.checked_add(parts::len(columns, parts)?)
        }
        (Form::Scan, false) => whole.checked_add(rows.checked_mul(columns)?.checked_mul(2)?),
        _ => Some(whole),
    }
}

/// Computes the exact results of [`super::reference::head`], and bounds the error of a run with the structure
/// `executed`.
///
/// The arguments are those of [`super::reference::head`]. A bound is infinite if the run guarantees nothing about the
/// output, and NaN if the exact output is NaN.
///
/// # Panics
/// Panics if a buffer does not have the stated number of elements, if `scratch` is shorter than [`scratch_len`], or if
/// `sequence` or `state` is out of bounds.
pub fn head(
    problem: &Problem,
    inputs: &Inputs<'_>,
    executed: &Executed,
    sequence: usize,
    state: usize,
    to: &mut Judgement<'_>,
    scratch: &mut [f64],
) -> Judged {
    let head = StateTokens::new(problem, inputs, sequence, state);
    let (rows, columns) = (problem.key_dim(), problem.value_dim());
    let readers = problem.readers(state).1;
    assert_eq!(to.output.len(), readers * head.tokens * columns, "output of the bound");
    assert_eq!(to.output.len(), to.output_error.len(), "errors of the output");
    assert_eq!([to.present.len(), to.present_error.len()], [rows * columns; 2], "states of the bound");
    to.output.fill(0.0);
    to.output_error.fill(0.0);
    let rates = Rates::of(problem, executed);
    let direction = problem.spec().direction;
    let passes: &[bool] = match direction {
        Direction::Forward | Direction::NonCausal => &[false],
        Direction::Reverse => &[true],
        Direction::Bidirectional => &[false, true],
    };
    let (vectors, scratch) = scratch.split_at_mut(3 * rows + 2 * columns);
    let mut gain = 0.0f64;
    for reverse in passes {
        let run = Run { problem, head: &head, executed, rates: &rates, reverse: *reverse };
        let mut pass = Pass { run, state };
        gain = gain.max(pass.run(to, vectors, scratch));
    }
    // An output is rounded when two passes are added, and when it is converted to its type.
    let dtype = problem.spec().dtype;
    for (error, exact) in to.output_error.iter_mut().zip(&*to.output) {
        let magnitude = libm::fabs(*exact) + *error;
        if direction == Direction::Bidirectional {
            *error += DType::F32.unit_roundoff() * magnitude;
        }
        if dtype != DType::F32 {
            *error += dtype.unit_roundoff() * magnitude + dtype.subnormal_roundoff();
        }
        *error *= OUTWARD;
        // An output that may exceed the range of its type may become infinite.
        if magnitude * (1.0 + dtype.unit_roundoff()) >= largest(dtype) {
            *error = f64::INFINITY;
        }
    }
    Judged { gain }
}

/// Returns the largest finite number of a type.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::MAX),
        DType::F16 => half::f16::MAX.to_f64(),
        DType::Bf16 => half::bf16::MAX.to_f64(),
    }
}

/// A pass over the tokens of a state, in one direction.
struct Pass<'a> {
    run: Run<'a>,
    state: usize,
}

impl Pass<'_> {
    /// Adds outputs and error bounds of the pass to those in `to`, writes the last state to `to`, and returns the gain.
    fn run(&mut self, to: &mut Judgement<'_>, vectors: &mut [f64], scratch: &mut [f64]) -> f64 {
        let (rows, columns) = (self.run.problem.key_dim(), self.run.problem.value_dim());
        let delta = self.run.problem.rule().is_delta();
        let scan = self.run.executed.form == Form::Scan;
        let (token, query) = vectors.split_at_mut(2 * rows + 2 * columns);
        let (track, scratch) = scratch.split_at_mut(Track::len(rows, columns).unwrap_or(0));
        let (shape, scratch) = scratch.split_at_mut(if delta { Shape::len(rows).unwrap_or(0) } else { 0 });
        let (scales, scratch) = scratch.split_at_mut(if delta { columns } else { 0 });
        let tokens = self.run.head.tokens;
        let part = if scan { self.run.executed.part.max(1) } else { tokens.max(1) };
        let chunk = self.run.chunk();
        // A scan also needs scratch: for the maps of its parts (delta rules), or for sums of all terms (diagonal
        // rules).
        let mut scratch = scratch;
        if scan && delta {
            let (second, rest) = core::mem::take(&mut scratch).split_at_mut(track.len() + rows * columns);
            parts::fold(&self.run, part, token, second, rest);
            scratch = rest;
        }
        let terms = if scan && !delta { 2 * rows * columns } else { 0 };
        let (terms, elements) = scratch.split_at_mut(terms);
        let mut terms = parts::Terms::new(terms, self.run.rates);

        self.run.head.past(to.present);
        terms.start(to.present);
        let mut track = Track::new(track, rows, columns, delta);
        if delta {
            self.scales(to.present, &mut token[..columns], scales);
            track.follow(Shape::new(shape, rows), scales);
        }
        let causal = self.run.problem.spec().direction != Direction::NonCausal;
        let mut gain = Gain::default();
        for i in 0..tokens {
            if scan && i > 0 && i.is_multiple_of(part) {
                if delta {
                    parts::start(&self.run, i / part, elements, &mut track);
                } else {
                    terms.end_part(tokens.div_ceil(part), &mut track);
                }
            }
            if (i % part).is_multiple_of(chunk) {
                track.begin(to.present);
            }
            let at = self.run.token(i);
            let step = track.token(self.run.head, self.run.rates, at, to.present, token);
            gain.pass(step.growth);
            terms.token(&token[..rows], &token[rows..2 * rows], &token[2 * rows..2 * rows + columns]);
            if causal {
                self.answers(at, to, &track, query, false);
            }
            if (i % part + 1).is_multiple_of(chunk) || (i + 1) % part == 0 || i + 1 == tokens {
                track.end(self.run.rates);
            }
        }
        if !causal {
            track.begin(to.present);
            for at in 0..tokens {
                self.answers(at, to, &track, query, true);
            }
        }
        track.spread(to.present_error);
        to.present_error.iter_mut().for_each(|e| *e *= OUTWARD);
        gain.most
    }

    /// Computes the scale of each column: the largest magnitude of its values, or the norm of the column in the past
    /// state if that is larger.
    fn scales(&self, past: &[f64], value: &mut [f64], scales: &mut [f64]) {
        parts::norms(scales, past);
        for token in 0..self.run.head.tokens {
            self.run.head.value(token, value);
            scales.iter_mut().zip(&*value).for_each(|(scale, v)| *scale = scale.max(libm::fabs(*v)));
        }
    }

    /// Adds the outputs at a token and the bounds of the outputs' errors, for all heads that read the state.
    fn answers(
        &self,
        token: usize,
        to: &mut Judgement<'_>,
        track: &Track<'_>,
        query: &mut [f64],
        last: bool,
    ) {
        let columns = self.run.problem.value_dim();
        let (first, readers) = self.run.problem.readers(self.state);
        let scale = f64::from(self.run.problem.scale());
        for reader in 0..readers {
            self.run.head.query(first + reader, token, query);
            query.iter_mut().for_each(|q| *q *= scale);
            let at = (reader * self.run.head.tokens + token) * columns;
            let output = &mut to.output[at..at + columns];
            for (q, row) in query.iter().zip(to.present.chunks_exact(columns)) {
                output.iter_mut().zip(row).for_each(|(o, s)| *o += q * s);
            }
            track.answer(self.run.rates, query, &mut to.output_error[at..at + columns], last);
        }
    }
}

/// The largest amplification by any run of consecutive tokens.
#[derive(Default)]
struct Gain {
    running: f64,
    most: f64,
}

impl Gain {
    fn pass(&mut self, growth: f64) {
        self.running = growth * if self.running > 1.0 { self.running } else { 1.0 };
        // NaN is preserved.
        if self.running > self.most || self.running.is_nan() {
            self.most = self.running;
        }
    }
}
