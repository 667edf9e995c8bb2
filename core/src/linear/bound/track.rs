//! Tracks a state and its error, token by token.

use super::executed::{Executed, Solve};
use super::shape::Shape;
use crate::dtype::DType;
use crate::linear::problem::Problem;
use crate::linear::token::{Gate, StateTokens};

/// The unit roundoff `u`.
pub(super) const UNIT: f64 = DType::F32.unit_roundoff();

/// The smallest normal number of f32. Smaller values may be lost.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// Returns `γ_n`; infinite if `n u` is at least 1.
pub(super) fn gamma(n: usize) -> f64 {
    let nu = n as f64 * UNIT;
    if nu < 1.0 { nu / (1.0 - nu) } else { f64::INFINITY }
}

/// Relative errors of the terms of a run.
pub(super) struct Rates {
    /// Error of a term in an output; `read` is the error of a term in an output that reads a complete state.
    pub answer: f64,
    pub read: f64,
    /// Error of a term in a solved row.
    pub solve: f64,
    /// Error of a term in the state after a chunk.
    pub state: f64,
    /// Roundings, in units of `u`, that each token of a recurrence adds to an earlier term. `write` counts the
    /// roundings of a term that the token itself writes.
    pub step: f64,
    pub write: f64,
    /// Error of an element of `b` after a dense product with `A`.
    pub product: f64,
    /// Error of an exponential, in units of `u`.
    pub exp: f64,
    /// Largest error of a sum whose terms are too small for f32.
    pub floor: f64,
    /// Largest error of a state element if the element or its gate is too small for f32.
    pub lost: f64,
    /// `true` if rows are solved by [`Solve::Factors`].
    pub factors: bool,
}

impl Rates {
    pub fn of(problem: &Problem, executed: &Executed) -> Rates {
        let Executed { dims, tokens, .. } = *executed;
        let one = |n: usize, exps: i32, keys: i32, query: f64| {
            (1.0 + gamma(n))
                * libm::pow(1.0 + executed.exp_relative, f64::from(exps))
                * libm::pow(1.0 + executed.key_relative, f64::from(keys))
                * (1.0 + query)
                - 1.0
        };
        let factors = executed.solve == Solve::Factors && executed.chunk > 1;
        let solve = if factors {
            one(2 * (dims + tokens) + 16, 4, 4, 0.0)
        } else {
            one(dims + tokens + 8, 2, 2, 0.0)
        };
        let tiny = TINY * libm::exp2(executed.factored);
        Rates {
            answer: one(dims + tokens + 5, 2, 2, executed.query_relative),
            read: one(dims, 0, 0, executed.query_relative),
            solve,
            state: one(tokens + 2, 1, 1, 0.0),
            step: 1.0 + if problem.rule().is_gated() { 1.0 + executed.exp_relative / UNIT } else { 0.0 },
            write: 1.0 + executed.key_relative / UNIT,
            product: one(problem.key_dim() + 3, 0, 0, 0.0),
            exp: executed.exp_relative / UNIT,
            floor: tiny * (dims + tokens + 4) as f64,
            lost: 2.0 * tiny,
            factors,
        }
    }
}

/// The tokens of one state in one direction, and the structure that a run executed.
pub(super) struct Run<'a> {
    pub problem: &'a Problem,
    pub head: &'a StateTokens<'a>,
    pub executed: &'a Executed,
    pub rates: &'a Rates,
    pub reverse: bool,
}

impl Run<'_> {
    /// Returns the number of tokens per chunk, at least one.
    pub fn chunk(&self) -> usize {
        self.executed.chunk.max(1)
    }

    /// Returns the index of the token at position `i` in the order of the pass.
    pub fn token(&self, i: usize) -> usize {
        if self.reverse { self.head.tokens - 1 - i } else { i }
    }
}

/// Upper bounds that describe the effect of a token.
pub(super) struct Step {
    /// Upper bound of `max a`; `key` bounds `|k|`, `beta` bounds `|β|`, and `growth` the norm of `(I − β k kᵀ) diag(a)`.
    pub gate: f64,
    pub key: f64,
    pub beta: f64,
    pub growth: f64,
}

/// The error of a state, and the majorant `M` of the current chunk. The caller stores the exact state.
pub(super) struct Track<'a> {
    columns: usize,
    delta: bool,
    /// The majorant `M`, `[d_k, d_v]`.
    majorant: &'a mut [f64],
    /// The error `e`: `[d_k, d_v]`, or `[d_v]` for the delta rules.
    error: &'a mut [f64],
    /// Magnitudes that scale the floor for underflowing terms, `[d_v]`.
    small: &'a mut [f64],
    /// `|k|ᵀ (a ⊙ M)`, `[d_v]`.
    read: &'a mut [f64],
    /// For [`Solve::Factors`]: norms of the columns of `S` at the start of the chunk, `[d_v]`. `norms` bounds the norms
    /// of the sums that the chunk has added to the columns so far.
    before: &'a mut [f64],
    norms: &'a mut [f64],
    /// Errors `ε` of a solved row, `[d_v]`.
    own: &'a mut [f64],
    /// Upper bound of the product of the gates since the start of the chunk.
    decay: f64,
    /// For the delta rules: directions of errors, in units of `scales`. `scales` contains one scale per column,
    /// `[d_v]`. A column whose scale is zero is bounded by its norm alone.
    shape: Shape<'a>,
    scales: &'a mut [f64],
}

impl<'a> Track<'a> {
    /// Returns the number of f64 values of scratch that a track needs.
    pub fn len(rows: usize, columns: usize) -> Option<usize> {
        rows.checked_mul(columns)?.checked_mul(2)?.checked_add(columns.checked_mul(5)?)
    }

    /// Creates a track whose error is zero.
    pub fn new(scratch: &'a mut [f64], rows: usize, columns: usize, delta: bool) -> Track<'a> {
        scratch.fill(0.0);
        let (majorant, rest) = scratch.split_at_mut(rows * columns);
        let (error, rest) = rest.split_at_mut(rows * columns);
        let (small, rest) = rest.split_at_mut(columns);
        let (read, rest) = rest.split_at_mut(columns);
        let (before, rest) = rest.split_at_mut(columns);
        let (norms, own) = rest.split_at_mut(columns);
        let error = if delta { &mut error[..columns] } else { error };
        Track {
            columns,
            delta,
            majorant,
            error,
            small,
            read,
            before,
            norms,
            own: &mut own[..columns],
            decay: 1.0,
            shape: Shape::new(&mut [], 0),
            scales: &mut [],
        }
    }

    /// Also tracks the directions of errors, in units of `scales`, which contains one scale per column.
    pub fn follow(&mut self, shape: Shape<'a>, scales: &'a mut [f64]) {
        for scale in &mut *scales {
            if !scale.is_finite() {
                *scale = 0.0;
            }
        }
        (self.shape, self.scales) = (shape, scales);
    }

    /// Replaces the shape by a ball, which contains errors as large as [`Track::errors`] in every direction.
    pub fn restart(&mut self) {
        let length = self.largest(|track, c| track.error[c]);
        self.shape.set(length);
    }

    /// Returns the largest ratio of `of(column)` to the scale of the column. If a column's ratio is not
    /// finite, its scale becomes zero.
    fn largest(&mut self, of: impl Fn(&Track<'_>, usize) -> f64) -> f64 {
        let mut largest = 0.0f64;
        for c in 0..self.scales.len() {
            if self.scales[c] > 0.0 {
                let length = of(self, c) / self.scales[c];
                if length.is_finite() {
                    largest = largest.max(length);
                } else {
                    self.scales[c] = 0.0;
                }
            }
        }
        largest
    }

    /// Returns the smaller of two bounds for column `c`: `by_norm`, and `by_shape` times the scale of the column.
    fn lesser(&self, c: usize, by_norm: f64, by_shape: f64) -> f64 {
        match self.scales.get(c) {
            Some(scale) if *scale > 0.0 => by_norm.min(scale * by_shape),
            _ => by_norm,
        }
    }

    /// Returns the error of each element or, for the delta rules, the norm of the error of each column.
    pub fn errors(&mut self) -> &mut [f64] {
        self.error
    }

    /// Starts a chunk with the exact state `state`.
    pub fn begin(&mut self, state: &[f64]) {
        self.small.fill(0.0);
        self.before.fill(0.0);
        self.decay = 1.0;
        for (x, (row, majorant)) in
            state.chunks_exact(self.columns).zip(self.majorant.chunks_exact_mut(self.columns)).enumerate()
        {
            let from = if self.delta { 0 } else { x * self.columns };
            let error = &self.error[from..from + self.columns];
            for c in 0..self.columns {
                majorant[c] = libm::fabs(row[c]) + error[c];
                self.small[c] += majorant[c];
                self.before[c] += majorant[c] * majorant[c];
            }
        }
        self.before.iter_mut().for_each(|s| *s = libm::sqrt(*s));
        self.norms.fill(0.0);
    }

    /// Processes a token: advances the exact `state`, and its error. `vectors` has `2 d_k + 2 d_v` values, which
    /// receive `a`, `k` and `u`, and serve as scratch.
    pub fn token(
        &mut self,
        head: &StateTokens<'_>,
        rates: &Rates,
        token: usize,
        state: &mut [f64],
        vectors: &mut [f64],
    ) -> Step {
        let columns = self.columns;
        let rows = state.len() / columns;
        let (gates, rest) = vectors.split_at_mut(rows);
        let (key, rest) = rest.split_at_mut(rows);
        let (written, value) = rest.split_at_mut(columns);
        let gate = head.gate(token);
        for (x, a) in gates.iter_mut().enumerate() {
            *a = match gate {
                Gate::None => 1.0,
                Gate::Head(_) if x > 0 => f64::NAN,
                _ => libm::exp(head.logarithm(&gate, x)),
            };
        }
        if let Gate::Head(_) = gate {
            let first = gates[0];
            gates.fill(first);
        }
        head.step(token, state, key, written);
        // The comparison keeps a NaN as the largest gate.
        let most = gates.iter().fold(0.0, |most, a| if *a <= most { most } else { *a });
        let squares: f64 = key.iter().map(|k| k * k).sum();
        let beta = head.beta(token);
        let turn = if self.delta { libm::fabs(1.0 - beta * squares) } else { 0.0 };
        let turn = if turn <= 1.0 { 1.0 } else { turn };
        let step = Step { gate: most, key: libm::sqrt(squares), beta: libm::fabs(beta), growth: most * turn };
        self.decay *= most;
        if most == 0.0 {
            // A gate of zero cleared the whole state by selection, and with it the state's error.
            for what in [&mut *self.small, self.before, self.norms, self.error] {
                what.fill(0.0);
            }
            self.decay = 0.0;
        }

        self.read.fill(0.0);
        for (x, row) in self.majorant.chunks_exact_mut(columns).enumerate() {
            // A gate of zero clears the row by selection, even if it contains NaN.
            if gates[x] == 0.0 {
                row.fill(0.0);
            }
            let k = libm::fabs(key[x]);
            for (m, read) in row.iter_mut().zip(&mut *self.read) {
                *m *= gates[x];
                *read += k * *m;
            }
        }
        let growing = if most > 1.0 { most } else { 1.0 };
        let wide = 1.0 + step.key;
        if self.delta {
            head.value(token, value);
        }
        for c in 0..columns {
            let mut magnitude = libm::fabs(written[c]);
            if self.delta {
                let v = libm::fabs(value[c]);
                let mut terms = step.beta * (v + self.read[c]);
                if rates.factors {
                    let source = step.beta * (v + step.key * self.decay * self.before[c]);
                    let row = source + step.beta * step.key * most * self.norms[c];
                    self.norms[c] = step.growth * self.norms[c] + step.key * source;
                    // The computed inverse may be an eighth larger than the bound of the exact inverse.
                    terms += 1.125 * row;
                    magnitude = magnitude.max(1.125 * row);
                }
                let floor = rates.floor * (1.0 + step.beta) * (2.0 + wide * growing * self.small[c]);
                let own = rates.solve * terms + floor;
                magnitude += step.beta * step.key * most * self.error[c] + own;
                self.error[c] = step.growth * self.error[c] + step.key * own;
                self.own[c] = own;
            }
            self.read[c] = magnitude;
            self.small[c] = growing * self.small[c] + wide * magnitude;
        }
        // State values and gates that are flushed to zero add an error: per element, or per column for the delta rules.
        let lost = rates.lost;
        for (x, row) in self.majorant.chunks_exact_mut(columns).enumerate() {
            let k = libm::fabs(key[x]);
            for (c, m) in row.iter_mut().enumerate() {
                *m += k * self.read[c];
                if !self.delta {
                    let error = &mut self.error[x * columns + c];
                    let kept = if gates[x] == 0.0 { 0.0 } else { *error * gates[x] };
                    *error = kept + lost * (1.0 + *m + self.read[c]);
                }
            }
        }
        if self.delta {
            let lost = lost * libm::sqrt(rows as f64);
            self.error.iter_mut().zip(&*self.small).for_each(|(e, small)| *e += lost * (1.0 + small));
            if !self.scales.is_empty() {
                let own = self.largest(|track, c| track.own[c]);
                let lost = self.largest(|track, c| lost * (1.0 + track.small[c]));
                self.shape.pass(gates, most, key, beta);
                self.shape.add_along(key, squares, own);
                self.shape.add(lost);
                self.shorten();
            }
        }
        step
    }

    /// Limits the error of each column to the length of the shape.
    fn shorten(&mut self) {
        let length = self.shape.length();
        for c in 0..self.scales.len() {
            self.error[c] = self.lesser(c, self.error[c], length);
        }
    }

    /// Ends a chunk: adds the rounding errors of the chunk's terms to the error of the state.
    pub fn end(&mut self, rates: &Rates) {
        if !self.delta {
            self.error.iter_mut().zip(&*self.majorant).for_each(|(e, m)| *e += rates.state * m);
            return;
        }
        self.read.fill(0.0);
        for row in self.majorant.chunks_exact(self.columns) {
            self.read.iter_mut().zip(row).for_each(|(sum, m)| *sum += m * m);
        }
        self.read.iter_mut().for_each(|sum| *sum = rates.state * libm::sqrt(*sum));
        self.error.iter_mut().zip(&*self.read).for_each(|(e, length)| *e += length);
        if !self.scales.is_empty() {
            let length = self.largest(|track, c| track.read[c]);
            self.shape.add(length);
            self.shorten();
        }
    }

    /// Adds the error bounds of an output to `to`. `query` includes its scale, and `last` is `true` if the output reads
    /// the complete state.
    pub fn answer(&self, rates: &Rates, query: &[f64], to: &mut [f64], last: bool) {
        let rate = if last { rates.read } else { rates.answer };
        let squares: f64 = query.iter().map(|q| q * q).sum();
        let norm = libm::sqrt(squares);
        let along = if self.scales.is_empty() { 0.0 } else { self.shape.along(query, squares) };
        for (x, (q, row)) in query.iter().zip(self.majorant.chunks_exact(self.columns)).enumerate() {
            let q = libm::fabs(*q);
            for (c, (to, m)) in to.iter_mut().zip(row).enumerate() {
                let error = if self.delta { 0.0 } else { self.error[x * self.columns + c] };
                *to += q * (error + rate * m);
            }
        }
        for (c, to) in to.iter_mut().enumerate() {
            if self.delta {
                *to += self.lesser(c, norm * self.error[c], along);
            }
            *to += rates.floor * (2.0 + (1.0 + norm) * self.small[c]);
        }
    }

    /// Writes the error bound of every element of the state to `to`.
    pub fn spread(&self, to: &mut [f64]) {
        for row in to.chunks_exact_mut(self.error.len()) {
            row.copy_from_slice(self.error);
        }
        if self.scales.is_empty() {
            return;
        }
        for (x, row) in to.chunks_exact_mut(self.columns).enumerate() {
            let of_row = self.shape.of_row(x);
            row.iter_mut().enumerate().for_each(|(c, e)| *e = self.lesser(c, *e, of_row));
        }
    }
}
