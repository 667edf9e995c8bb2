//! Bounds the error of the first level of a scan: the maps `(A, b)` of parts, and the states that the scan of the maps
//! yields.
//!
//! **Diagonal rules.** Every term of a state is a product of gates, a key and a value. Within its part, a term incurs
//! the roundings of the recurrence. For each later part, it incurs the roundings of one exponential, of two products
//! and of the additions of the schedule. This holds for any schedule. [`Terms`] stores two sums: the sum of the
//! absolute terms, and the same sum with every term multiplied by its number of roundings.
//!
//! **Delta rules.** A map is represented by norms: of `A`, of the error of `A`, of each column of `b`, and of the error
//! of each column. Two maps compose by
//!
//! ```text
//! ‖A‖    = ‖A_2‖ ‖A_1‖          δA = δA_2 ‖A_1‖ + ‖A_2‖ δA_1 + δA_2 δA_1 + γ F_2 F_1
//! ‖b‖    = ‖A_2‖ ‖b_1‖ + ‖b_2‖  δb = δA_2 (‖b_1‖ + δb_1) + ‖A_2‖ δb_1 + δb_2 + γ (F_2 (‖b_1‖ + δb_1) + ‖b_2‖ + δb_2)
//! ```
//!
//! Here, `F` are Frobenius norms, with `F ≤ √d_k ‖A‖ + δA`. They are needed because the bound of a rounded product
//! requires the norm of the magnitudes. The bound repeats the scan of the run with these norms.

use super::track::{Rates, Run, Step, Track, UNIT};
use crate::scan::{Slots, blelloch};

/// Sums over the terms of a state, for diagonal rules ([module documentation](self)).
pub(super) struct Terms<'a> {
    /// Sum of the absolute terms. In `roundings`, every term is multiplied by its number of roundings. Both are
    /// `[d_k, d_v]`, or empty.
    magnitude: &'a mut [f64],
    roundings: &'a mut [f64],
    step: f64,
    write: f64,
    exp: f64,
    lost: f64,
    /// Largest number of roundings that a term has incurred so far.
    most: f64,
}

impl<'a> Terms<'a> {
    pub fn new(scratch: &'a mut [f64], rates: &Rates) -> Terms<'a> {
        scratch.fill(0.0);
        let (magnitude, roundings) = scratch.split_at_mut(scratch.len() / 2);
        Terms {
            magnitude,
            roundings,
            step: rates.step,
            write: rates.write,
            exp: rates.exp,
            lost: rates.lost,
            most: rates.write,
        }
    }

    /// Starts with one term per element of the past state, without roundings.
    pub fn start(&mut self, past: &[f64]) {
        self.magnitude.iter_mut().zip(past).for_each(|(m, s)| *m = libm::fabs(*s));
    }

    /// Updates the sums with the gates, key and value of a token.
    pub fn token(&mut self, gates: &[f64], key: &[f64], value: &[f64]) {
        self.most += self.step;
        let columns = value.len();
        let rows = self.magnitude.chunks_exact_mut(columns).zip(self.roundings.chunks_exact_mut(columns));
        for ((magnitude, roundings), (a, k)) in rows.zip(gates.iter().zip(key)) {
            for ((m, r), v) in magnitude.iter_mut().zip(roundings).zip(value) {
                let term = libm::fabs(k * v);
                let kept = |x: f64| if *a == 0.0 { 0.0 } else { x * a };
                *m = kept(*m) + term;
                let lost = self.lost * (1.0 + *m + libm::fabs(*v)) / UNIT;
                *r = kept(*r) + self.step * *m + self.write * term + lost;
            }
        }
    }

    /// Ends a part of a sequence that is divided into `parts` parts. Counts the roundings of the scan that computes the
    /// state before the next part.
    pub fn end_part(&mut self, parts: usize, track: &mut Track<'_>) {
        let passing = 2.0 * (blelloch::exclusive_depth(parts) + 2) as f64 + self.exp + 3.0;
        self.most += passing;
        let second = 1.0 - self.most * UNIT;
        let unit = if second > 0.0 { UNIT / second } else { f64::INFINITY };
        for ((e, r), m) in track.errors().iter_mut().zip(&mut *self.roundings).zip(&*self.magnitude) {
            *r += passing * m;
            *e = unit * *r;
        }
    }
}

/// Returns the number of f64 values that represent a map: `‖A‖`, `δA`, a flag that marks the identity, and `‖b‖` and
/// `δb` for each column.
fn element_len(columns: usize) -> Option<usize> {
    columns.checked_mul(2)?.checked_add(3)
}

/// The norms that represent the maps of all parts, as the slots of a scan.
struct Norms<'a> {
    values: &'a mut [f64],
    columns: usize,
    root: f64,
    product: f64,
}

impl Norms<'_> {
    fn element(&mut self, at: usize) -> &mut [f64] {
        let len = 3 + 2 * self.columns;
        &mut self.values[at * len..(at + 1) * len]
    }
}

impl Slots for Norms<'_> {
    fn len(&self) -> usize {
        self.values.len() / (3 + 2 * self.columns)
    }

    fn identity(&mut self, at: usize) {
        let element = self.element(at);
        element.fill(0.0);
        (element[0], element[2]) = (1.0, 1.0);
    }

    fn combine(&mut self, before: usize, at: usize) {
        let (len, columns, root, product) = (3 + 2 * self.columns, self.columns, self.root, self.product);
        let (low, high) = self.values.split_at_mut(before.max(at) * len);
        let (low, high) = (&mut low[before.min(at) * len..(before.min(at) + 1) * len], &mut high[..len]);
        let (one, two) = if before < at { (low, high) } else { (high, low) };
        if one[2] == 1.0 {
            return;
        }
        if two[2] == 1.0 {
            two.copy_from_slice(one);
            return;
        }
        let [a1, d1, a2, d2] = [one[0], one[1], two[0], two[1]];
        // If the later map clears the state exactly, nothing remains of the earlier map, not even a NaN.
        if a2 == 0.0 && d2 == 0.0 {
            return;
        }
        let frobenius = root * a2 + d2;
        for c in 0..columns {
            let (b1, e1) = (one[3 + c], one[3 + columns + c]);
            let (b2, e2) = (two[3 + c], two[3 + columns + c]);
            two[3 + c] = a2 * b1 + b2;
            two[3 + columns + c] =
                d2 * (b1 + e1) + a2 * e1 + e2 + product * (frobenius * (b1 + e1) + b2 + e2);
        }
        two[0] = a2 * a1;
        two[1] = d2 * a1 + a2 * d1 + d2 * d1 + product * frobenius * (root * a1 + d1);
    }

    fn copy(&mut self, from: usize, to: usize) {
        let len = 3 + 2 * self.columns;
        self.values.copy_within(from * len..(from + 1) * len, to * len);
    }

    fn swap(&mut self, a: usize, b: usize) {
        let len = 3 + 2 * self.columns;
        for x in 0..len {
            self.values.swap(a * len + x, b * len + x);
        }
    }
}

/// Returns the number of f64 values for the norms of the past state's columns and for the maps of `parts` parts.
pub(super) fn len(columns: usize, parts: usize) -> Option<usize> {
    element_len(columns)?.checked_mul(parts)?.checked_add(columns)
}

/// Represents each part of `part` tokens by the norms of its map, and scans the maps. Applies to delta rules only.
/// `scratch` must have room for a track and a state, and `elements` for [`len`] values.
pub(super) fn fold(
    pass: &Run<'_>,
    part: usize,
    vectors: &mut [f64],
    scratch: &mut [f64],
    elements: &mut [f64],
) {
    let (rows, columns) = (pass.problem.key_dim(), pass.problem.value_dim());
    let (scratch, state) = scratch.split_at_mut(scratch.len() - rows * columns);
    let tokens = pass.head.tokens;
    let parts = tokens.div_ceil(part);
    let len = 3 + 2 * columns;
    let root = libm::sqrt(rows as f64);
    let (past, elements) = elements.split_at_mut(columns);
    pass.head.past(state);
    norms(past, state);
    // The last part is in no exclusive prefix, so its map is not computed.
    for (p, element) in elements.chunks_exact_mut(len).take(parts.saturating_sub(1)).enumerate() {
        let run = p * part..(p + 1) * part;
        state.fill(0.0);
        let mut track = Track::new(&mut *scratch, rows, columns, true);
        let mut matrix = Matrix::default();
        for i in run.clone() {
            let first = (i - run.start).is_multiple_of(pass.chunk());
            if first {
                track.begin(state);
            }
            let step = track.token(pass.head, pass.rates, pass.token(i), state, vectors);
            matrix.token(pass.rates, &step, first);
            if (i - run.start + 1).is_multiple_of(pass.chunk()) || i + 1 == run.end {
                track.end(pass.rates);
                matrix.end(pass.rates);
            }
        }
        (element[0], element[1], element[2]) = (matrix.norm, matrix.off * root, 0.0);
        norms(&mut element[3..3 + columns], state);
        element[3 + columns..].copy_from_slice(track.errors());
    }
    let values = &mut elements[..parts * len];
    let mut slots = Norms { values, columns, root, product: pass.rates.product };
    if let Some(last) = parts.checked_sub(1) {
        slots.identity(last);
    }
    blelloch::exclusive(&mut slots);
}

/// Computes the Euclidean norms of the columns of a state.
pub(super) fn norms(to: &mut [f64], state: &[f64]) {
    to.fill(0.0);
    for row in state.chunks_exact(to.len()) {
        to.iter_mut().zip(row).for_each(|(sum, s)| *sum += s * s);
    }
    to.iter_mut().for_each(|sum| *sum = libm::sqrt(*sum));
}

/// Norms of the matrix `A` of a part. They are computed like the bounds in [`Track`], for a column that starts as a
/// unit vector and receives no values.
struct Matrix {
    /// `‖A‖`; `off` is the norm of the error of a column.
    norm: f64,
    off: f64,
    /// Majorant of a column within the current chunk.
    terms: f64,
    /// For `Solve::Factors`: product of the gates since the start of the chunk. `before` is the norm of the column at
    /// the start of the chunk, and `rows` bounds the norm of the sum that the chunk has added to it.
    decay: f64,
    before: f64,
    rows: f64,
    /// `true` once a gate has cleared the entire matrix, which then stays exactly zero.
    cleared: bool,
}

impl Default for Matrix {
    fn default() -> Matrix {
        Matrix { norm: 1.0, off: 0.0, terms: 1.0, decay: 1.0, before: 1.0, rows: 0.0, cleared: false }
    }
}

impl Matrix {
    fn token(&mut self, rates: &Rates, step: &Step, first: bool) {
        if step.gate == 0.0 || self.cleared {
            (self.norm, self.off, self.cleared) = (0.0, 0.0, true);
            return;
        }
        let column = self.norm + self.off;
        if first {
            (self.terms, self.decay, self.before, self.rows) = (column, 1.0, column, 0.0);
        }
        self.terms *= step.gate;
        self.decay *= step.gate;
        let write = step.beta * step.key;
        let mut row = 0.0;
        if rates.factors {
            let source = write * self.decay * self.before;
            row = 1.125 * (source + write * step.gate * self.rows);
            self.rows = step.growth * self.rows + step.key * source;
        }
        let own =
            rates.solve * (write * self.terms + row) + rates.floor * (1.0 + step.beta) * (2.0 + self.terms);
        let written = (write * step.gate * column).max(row) + own;
        self.off = step.growth * self.off + step.key * own;
        self.norm *= step.growth;
        self.terms += step.key * written;
    }

    fn end(&mut self, rates: &Rates) {
        if !self.cleared {
            self.off += rates.state * self.terms + rates.floor;
        }
    }
}

/// Sets the error of the state before part `p`, from the maps that [`fold`] has scanned.
pub(super) fn start(pass: &Run<'_>, p: usize, elements: &[f64], track: &mut Track<'_>) {
    let (rows, columns) = (pass.problem.key_dim(), pass.problem.value_dim());
    let len = 3 + 2 * columns;
    let (past, elements) = elements.split_at(columns);
    let element = &elements[p * len..(p + 1) * len];
    let frobenius = libm::sqrt(rows as f64) * element[0] + element[1];
    let (b, off) = element[3..].split_at(columns);
    let cleared = frobenius == 0.0;
    for (((e, s), b), off) in track.errors().iter_mut().zip(past).zip(b).zip(off) {
        let s = if cleared { 0.0 } else { *s };
        *e = element[1] * s + off + pass.rates.product * (frobenius * s + b + off) + pass.rates.floor;
    }
    track.restart();
}
