//! Computes a chunk of tokens at once, or a token at a time.
//!
//! # A chunk
//!
//! Let `S` be the state before a chunk, `G_i` the sum of the gate logarithms of its tokens up to and including `i`, and
//! `D_ij = exp(G_i − G_j)` the fraction of a write at `j` that remains at `i`. With gates per dim, `G_i` and `D_ij` are
//! vectors over the rows of the state. Then for every token `i` of the chunk
//!
//! ```text
//! u_i = v_i                                                                       linear, gated
//! u_i = β_i (v_i − Sᵀ (e^{G_i} ⊙ k_i) − Σ_{j<i} (k_i · D_ij ⊙ k_j) u_j)          delta, gated-delta
//! o_i = Sᵀ (e^{G_i} ⊙ q_i) + Σ_{j≤i} (q_i · D_ij ⊙ k_j) u_j
//! S   ← e^{G_n} ⊙ S + Σ_j (D_nj ⊙ k_j) u_jᵀ                                       at the end
//! ```
//!
//! 1. **The rows `u_i` are solved one after another**, by forward substitution with the unit triangular matrix of the delta
//!    rules. Neither the inverse nor a power of the matrix is formed.
//! 2. **Logarithms of gates are summed in f64**, from token `i` back to `j`, so that large sums do not cancel.
//! 3. **A logarithm of `−∞` ends these sums.** The state and the tokens before that gate are skipped; nothing is
//!    multiplied by zero.
//! 4. **Long sums are divided into segments**, whose sums are added one after another.
//! 5. **Gates per dim are split into factors** `exp(G_i)` and `exp(−G_j)` if both stay within `2^±FACTORED` for every
//!    token of the chunk. If not, an exponential is computed for every pair of tokens.

use super::stage::{Sink, Stage};
use crate::linear::law::{Affine, Transition, settled};
use core::f64::consts::LN_2;
use core::ops::Range;

/// Base-2 logarithm of the largest factor into which gates per dim are split.
pub(super) const FACTORED: f64 = 50.0;

/// Number of terms of a sum that are added one after another. Longer sums are divided into segments of this length.
const SEGMENT: usize = 16;
/// Number of partial sums among which the dims of a dot product are distributed cyclically.
const LANES: usize = 8;

/// Returns the largest number of roundings that a product undergoes in a sum of `n` products, including the first rounding.
pub(super) fn roundings(n: usize) -> usize {
    let segments = n.min(SEGMENT) + n.div_ceil(SEGMENT) + 1;
    segments.max(n.div_ceil(LANES) + 4)
}

/// Computes `to ← to + Σ_j scores_j rows_j`, in segments. `part` is a row of scratch.
fn add_rows<'a>(to: &mut [f32], part: &mut [f32], scores: &[f32], rows: impl Iterator<Item = &'a [f32]>) {
    let mut rows = rows;
    for scores in scores.chunks(SEGMENT) {
        part.fill(0.0);
        for (score, row) in scores.iter().zip(&mut rows) {
            part.iter_mut().zip(row).for_each(|(part, x)| *part += score * x);
        }
        to.iter_mut().zip(&*part).for_each(|(to, part)| *to += part);
    }
}

/// Returns `x · y`.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (x, y) in x.chunks(LANES).zip(y.chunks(LANES)) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// Scratch for a chunk. Axes named `chunk` are the tokens of the chunk.
pub(super) struct Room<'a> {
    rows: usize,
    columns: usize,
    gates: usize,
    /// Keys of the tokens, `[chunk, d_k]`.
    keys: &'a mut [f32],
    /// Logarithms of the gates, `[chunk, gates]`.
    logs: &'a mut [f32],
    /// `exp(G)`, `[chunk, d_k]`, if gates are per dim; otherwise empty. `down` is `k exp(−G)`, with the same shape.
    up: &'a mut [f32],
    down: &'a mut [f32],
    /// Rows `u` that the tokens write, `[chunk, d_v]`.
    written: &'a mut [f32],
    /// Remaining fraction of each write, `[chunk]`.
    left: &'a mut [f32],
    /// The key of the current token, then its queries, `[vectors, d_k]`.
    vectors: &'a mut [f32],
    /// Products of `vectors` with the keys of the chunk, times the remaining fractions, `[vectors, chunk]`.
    scores: &'a mut [f32],
    /// Products of `vectors` with the state, `[vectors, d_v]`, with room for `d_k` more values.
    reads: &'a mut [f32],
    /// Remaining fraction of each row of the state, `[d_k]`; negative if the row was cleared.
    kept: &'a mut [f32],
    /// Two spare rows, `[max(d_k, d_v)]` each.
    row: &'a mut [f32],
    part: &'a mut [f32],
}

impl<'a> Room<'a> {
    /// Returns the number of values of scratch for chunks of `chunk` tokens and states that `readers` heads read;
    /// `None` on overflow.
    pub fn len(rows: usize, columns: usize, gates: usize, chunk: usize, readers: usize) -> Option<usize> {
        let vectors = readers.checked_add(1)?;
        let factors = if gates > 1 { rows.checked_mul(2)? } else { 0 };
        let token = rows.checked_add(gates)?.checked_add(factors)?.checked_add(columns)?;
        let token = token.checked_add(1)?.checked_add(vectors)?;
        let vector = rows.checked_add(columns)?;
        let rest = rows.checked_mul(2)?.checked_add(rows.max(columns).checked_mul(2)?)?;
        chunk.checked_mul(token)?.checked_add(vectors.checked_mul(vector)?)?.checked_add(rest)
    }

    /// Divides `scratch`, which has [`Room::len`] values, among the fields.
    pub fn new(
        mut scratch: &'a mut [f32],
        rows: usize,
        columns: usize,
        gates: usize,
        chunk: usize,
        readers: usize,
    ) -> Room<'a> {
        let vectors = readers + 1;
        let mut part = |len: usize| {
            let (part, rest) = core::mem::take(&mut scratch).split_at_mut(len);
            scratch = rest;
            part
        };
        let factors = if gates > 1 { chunk * rows } else { 0 };
        Room {
            rows,
            columns,
            gates,
            keys: part(chunk * rows),
            logs: part(chunk * gates),
            up: part(factors),
            down: part(factors),
            written: part(chunk * columns),
            left: part(chunk),
            vectors: part(vectors * rows),
            scores: part(vectors * chunk),
            reads: part(vectors * columns + rows),
            kept: part(rows),
            row: part(rows.max(columns)),
            part: part(rows.max(columns)),
        }
    }

    /// Computes `left` for row `x` of the state: for each write up to token `i`, the fraction that remains at `i`.
    /// Returns the first token whose write was not cleared. Also returns the remaining fraction of the state, which is
    /// `None` if the state was cleared.
    fn decay(&mut self, x: usize, i: usize) -> (usize, Option<f32>) {
        let mut sum = 0.0f64;
        for j in (0..=i).rev() {
            self.left[j] = libm::exp(sum) as f32;
            if self.gates > 0 {
                let g = self.logs[j * self.gates + x];
                if g == f32::NEG_INFINITY {
                    return (j, None);
                }
                sum += f64::from(g);
            }
        }
        (0, Some(libm::exp(sum) as f32))
    }

    /// Loads keys and gates of tokens `first .. first + n`. Returns `true` if there are gates per dim and they are
    /// split into factors.
    fn load(&mut self, stage: &Stage<'_>, first: usize, n: usize) -> bool {
        let (d, gates) = (self.rows, self.gates);
        for i in 0..n {
            stage.key(first + i, &mut self.keys[i * d..(i + 1) * d]);
            stage.logarithms(first + i, &mut self.logs[i * gates..(i + 1) * gates]);
        }
        if gates <= 1 {
            return false;
        }
        for x in 0..d {
            let mut sum = 0.0;
            for at in (x..n * d).step_by(d) {
                sum += f64::from(self.logs[at]);
                if libm::fabs(sum) > FACTORED * LN_2 || sum.is_nan() {
                    return false;
                }
                self.up[at] = libm::exp(sum) as f32;
                self.down[at] = (f64::from(self.keys[at]) * libm::exp(-sum)) as f32;
            }
        }
        true
    }

    /// Multiplies the vectors `from .. to` by the keys up to token `i` and by the state. The products with keys are
    /// scaled by the remaining fractions. Returns the first token whose write was not cleared.
    fn read(
        &mut self,
        i: usize,
        state: &[f32],
        from: usize,
        to: usize,
        chunk: usize,
        factored: bool,
    ) -> usize {
        let (d, columns) = (self.rows, self.columns);
        if self.gates > 1 {
            return self.read_dims(i, state, from, to, chunk, factored);
        }
        let (first, kept) = self.decay(0, i);
        for s in from..to {
            let vector = &self.vectors[s * d..(s + 1) * d];
            for j in first..=i {
                self.scores[s * chunk + j] = dot(vector, &self.keys[j * d..(j + 1) * d]) * self.left[j];
            }
            let reads = &mut self.reads[s * columns..(s + 1) * columns];
            reads.fill(0.0);
            let Some(kept) = kept else { continue };
            add_rows(reads, &mut self.part[..columns], vector, state.chunks_exact(columns));
            reads.iter_mut().for_each(|read| *read *= kept);
        }
        first
    }

    /// Implements [`Room::read`] for gates per dim.
    fn read_dims(
        &mut self,
        i: usize,
        state: &[f32],
        from: usize,
        to: usize,
        chunk: usize,
        factored: bool,
    ) -> usize {
        let (d, columns) = (self.rows, self.columns);
        let mut earliest = if factored { 0 } else { i };
        for s in from..to {
            self.scores[s * chunk..=s * chunk + i].fill(0.0);
        }
        if factored {
            self.kept.copy_from_slice(&self.up[i * d..(i + 1) * d]);
            for s in from..to {
                let grown = &mut self.row[..d];
                let vector = self.vectors[s * d..(s + 1) * d].iter().zip(&*self.kept);
                grown.iter_mut().zip(vector).for_each(|(to, (x, up))| *to = x * up);
                let scores = &mut self.scores[s * chunk..=s * chunk + i];
                for (score, down) in scores.iter_mut().zip(self.down.chunks_exact(d)) {
                    *score = dot(grown, down);
                }
            }
        } else {
            for x in 0..d {
                let (first, kept) = self.decay(x, i);
                earliest = earliest.min(first);
                self.kept[x] = kept.unwrap_or(-1.0);
                for s in from..to {
                    let vector = self.vectors[s * d + x];
                    for j in first..=i {
                        self.scores[s * chunk + j] += vector * (self.left[j] * self.keys[j * d + x]);
                    }
                }
            }
        }
        for s in from..to {
            let reads = &mut self.reads[s * columns..(s + 1) * columns];
            reads.fill(0.0);
            let part = &mut self.part[..columns];
            for segment in (0..d).step_by(SEGMENT) {
                part.fill(0.0);
                for x in segment..d.min(segment + SEGMENT) {
                    // Skip cleared rows, regardless of their contents.
                    if self.kept[x] < 0.0 {
                        continue;
                    }
                    let w = self.vectors[s * d + x] * self.kept[x];
                    let row = &state[x * columns..(x + 1) * columns];
                    part.iter_mut().zip(row).for_each(|(part, s)| *part += w * s);
                }
                reads.iter_mut().zip(&*part).for_each(|(read, part)| *read += part);
            }
        }
        earliest
    }

    /// Processes `n` tokens, starting with token `first`: writes their outputs to `sink`, and advances `state` if
    /// `advance` is set.
    pub fn pass(
        &mut self,
        stage: &Stage<'_>,
        first: usize,
        n: usize,
        state: &mut [f32],
        mut sink: Option<&mut Sink<'_, '_>>,
        advance: bool,
    ) {
        let (d, columns) = (self.rows, self.columns);
        let (head, readers) = stage.problem.readers(stage.state);
        let chunk = self.left.len();
        let delta = stage.problem.rule().is_delta();
        let factored = self.load(stage, first, n);
        let readers = if sink.is_some() { readers } else { 0 };
        let from = usize::from(!delta);
        for i in 0..n {
            let (key, queries) = self.vectors.split_at_mut(d);
            key.copy_from_slice(&self.keys[i * d..(i + 1) * d]);
            for reader in 0..readers {
                stage.query(head + reader, first + i, &mut queries[reader * d..(reader + 1) * d]);
            }
            let start =
                if from <= readers { self.read(i, state, from, 1 + readers, chunk, factored) } else { 0 };
            let (before, written) = self.written.split_at_mut(i * columns);
            let written = &mut written[..columns];
            stage.value(first + i, written);
            if let Some(beta) = stage.beta(first + i) {
                let read = &mut self.reads[..columns];
                let before = before.chunks_exact(columns).skip(start);
                add_rows(read, &mut self.part[..columns], &self.scores[start.min(i)..i], before);
                written.iter_mut().zip(read).for_each(|(u, read)| *u = beta * (*u - *read));
            }
            let Some(sink) = &mut sink else { continue };
            for reader in 0..readers {
                let s = 1 + reader;
                let read = &mut self.reads[s * columns..(s + 1) * columns];
                let scores = &self.scores[s * chunk + start..=s * chunk + i];
                let written = self.written.chunks_exact(columns).skip(start);
                add_rows(read, &mut self.part[..columns], scores, written);
                sink.take(stage, reader, first + i, read);
            }
        }
        if advance && n > 0 {
            self.advance(n, state);
        }
    }

    /// Advances the state by the first `n` tokens of the chunk, which [`Room::pass`] has processed.
    fn advance(&mut self, n: usize, state: &mut [f32]) {
        let (d, columns) = (self.rows, self.columns);
        let mut decay = (0, Some(1.0));
        for x in 0..d {
            if x == 0 || self.gates > 1 {
                decay = self.decay(x, n - 1);
            }
            let (first, kept) = decay;
            let sum = &mut self.row[..columns];
            sum.fill(0.0);
            let part = &mut self.part[..columns];
            for segment in (first..n).step_by(SEGMENT) {
                part.fill(0.0);
                for j in segment..n.min(segment + SEGMENT) {
                    let k = self.left[j] * self.keys[j * d + x];
                    let u = &self.written[j * columns..(j + 1) * columns];
                    part.iter_mut().zip(u).for_each(|(part, u)| *part += k * u);
                }
                sum.iter_mut().zip(&*part).for_each(|(sum, part)| *sum += part);
            }
            let row = &mut state[x * columns..(x + 1) * columns];
            for (s, sum) in row.iter_mut().zip(sum) {
                *s = settled(kept.map_or(0.0, |kept| kept * *s) + *sum);
            }
        }
    }

    /// Updates the state by token `i` alone. If `values` is `false`, zero replaces the token's value.
    pub fn step(&mut self, stage: &Stage<'_>, i: usize, state: &mut [f32], columns: usize, values: bool) {
        let (d, gates) = (self.rows, self.gates);
        let (key, logs, u) = (&mut self.keys[..d], &mut self.logs[..gates], &mut self.row[..columns]);
        stage.key(i, key);
        stage.logarithms(i, logs);
        let mut gate = 1.0;
        for (x, row) in state.chunks_exact_mut(columns).enumerate() {
            if x < gates {
                gate = libm::exp(f64::from(logs[x])) as f32;
            }
            if gate == 0.0 {
                row.fill(0.0);
            } else if gates > 0 {
                row.iter_mut().for_each(|s| *s *= gate);
            }
        }
        if values {
            stage.value(i, u);
        } else {
            u.fill(0.0);
        }
        if let Some(beta) = stage.beta(i) {
            let read = &mut self.reads[..columns];
            read.fill(0.0);
            add_rows(read, &mut self.part[..columns], key, state.chunks_exact(columns));
            u.iter_mut().zip(read).for_each(|(u, read)| *u = beta * (*u - *read));
        }
        for (k, row) in key.iter().zip(state.chunks_exact_mut(columns)) {
            row.iter_mut().zip(&*u).for_each(|(s, u)| *s = settled(*s + k * u));
        }
    }

    /// Computes the outputs at token `i` of the heads that read the state.
    pub fn answer(&mut self, stage: &Stage<'_>, i: usize, state: &[f32], sink: &mut Sink<'_, '_>) {
        let (head, readers) = stage.problem.readers(stage.state);
        let (query, read) = (&mut self.vectors[..self.rows], &mut self.row[..self.columns]);
        for reader in 0..readers {
            stage.query(head + reader, i, query);
            read.fill(0.0);
            add_rows(read, &mut self.part[..self.columns], query, state.chunks_exact(self.columns));
            sink.take(stage, reader, i, read);
        }
    }

    /// Computes the matrix `A` of the affine map of a run of tokens.
    pub fn transition(&mut self, stage: &Stage<'_>, run: Range<usize>, law: &Affine, a: &mut [f32]) {
        if law.transition == Transition::Dense {
            a.fill(0.0);
            a.iter_mut().step_by(self.rows + 1).for_each(|a| *a = 1.0);
            for i in run {
                self.step(stage, i, a, self.rows, false);
            }
            return;
        }
        if self.gates == 0 {
            a.fill(1.0);
            return;
        }
        for (x, a) in a.iter_mut().enumerate() {
            let mut sum = 0.0;
            for i in run.clone().rev() {
                let logs = &mut self.logs[..self.gates];
                stage.logarithms(i, logs);
                sum += f64::from(logs[x]);
                if logs[x] == f32::NEG_INFINITY {
                    // The gate clears the earlier contents, including NaN.
                    sum = f64::NEG_INFINITY;
                    break;
                }
            }
            *a = libm::exp(sum) as f32;
        }
    }
}
