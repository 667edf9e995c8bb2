//! The oracle: attention in f64, row by row, a direct transcription of the definition in [`crate::attention`].
//!
//! ```text
//! for every key j of the sequence:  if row i attends j:  s_j = cap(scale · q_i · k_j) + bias_ij + mask_ij
//! max = max s_j    sum = Σ exp(s_j − max)    y_i = Σ exp(s_j − max) v_j / sum    lse = max + log sum
//! ```
//!
//! The fields of the [`Spec`] and the lengths supplied with the data decide key by key whether a row attends a key.
//! The oracle uses neither [`super::Sequence`] nor the schedule nor the states, so it cannot share their mistakes.
//! Elements are read as stored, the scale is the f32 value of the problem, and everything else is f64.
//!
//! 1. **Two passes.** The first finds the maximum, the second recomputes the scores. No row of scores is stored, so
//!    the oracle handles any length without scratch memory.
//! 2. **Keys that are not attended are not read.** They contribute nothing, even if the key or its value contains NaN.
//!    An attended key whose score is `−∞` has weight zero and its value is not read, as in
//!    [`crate::state::State::absorb`].
//! 3. **NaN propagates.** A NaN score makes `max`, `sum`, `lse` and the entire output NaN; a NaN in an attended
//!    value makes that column NaN. A score of `+∞` makes `sum` NaN.
//! 4. **Empty rows.** A row that attends no key, or whose scores are all `−∞`, has an output of zeros and
//!    log-sum-exp `−∞`.
//!
//! For speed the element type is matched once per row, and the dot product keeps eight independent sums.

use super::bias::BiasView;
use super::data::Inputs;
use super::mask::{MASK_LIMIT, MaskElements, MaskView};
use super::problem::{Problem, Spec};
use super::sequence::Alignment;
use crate::dtype::{DType, Elements};
use crate::view::View;
use core::ops::Range;
use half::{bf16, f16};

/// The statistics of a row, in natural-log units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Largest score of an attended key; `−∞` if the row attends no key, NaN if a score is NaN.
    pub max: f64,
    /// `Σ exp(s_j − max)`; zero if the row attends no key.
    pub sum: f64,
    /// `max + log sum`; `−∞` if the row attends no key.
    pub lse: f64,
}

/// Writes the output of query `i` of a sequence in f64 to `output` (`[d_v]`) and returns the statistics of the row.
/// `sequence` and `i` are indices as in [`Problem::sequence`], and `head` is the index of a query head. The inputs must
/// have passed [`Inputs::check`]. In a problem that appends in place, the inputs must also contain the past as it was
/// before the call.
///
/// # Panics
/// Panics if `output` does not have `d_v` elements, or if `sequence`, `head` or `i` is out of bounds.
pub fn row(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: usize,
    head: usize,
    i: usize,
    output: &mut [f64],
) -> Row {
    assert_eq!(output.len(), problem.value_dim(), "output of the oracle");
    match problem.spec().dtype {
        DType::F32 => Scores::<f32>::new(problem, inputs, sequence, head, i).row(Some(output)),
        DType::F16 => Scores::<f16>::new(problem, inputs, sequence, head, i).row(Some(output)),
        DType::Bf16 => Scores::<bf16>::new(problem, inputs, sequence, head, i).row(Some(output)),
    }
}

/// Returns the statistics of a row, without its output. The arguments are those of [`row()`].
///
/// # Panics
/// Panics if `sequence`, `head` or `i` is out of bounds.
#[must_use]
pub fn statistics(problem: &Problem, inputs: &Inputs<'_>, sequence: usize, head: usize, i: usize) -> Row {
    match problem.spec().dtype {
        DType::F32 => Scores::<f32>::new(problem, inputs, sequence, head, i).row(None),
        DType::F16 => Scores::<f16>::new(problem, inputs, sequence, head, i).row(None),
        DType::Bf16 => Scores::<bf16>::new(problem, inputs, sequence, head, i).row(None),
    }
}

/// Calls `visit(j, p_j)` with the probability of every key `j` of the sequence, in order, including the past. Keys
/// that the row does not attend have probability zero.
///
/// # Panics
/// Panics if `sequence`, `head` or `i` is out of bounds.
pub fn probabilities(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: usize,
    head: usize,
    i: usize,
    visit: impl FnMut(usize, f64),
) {
    let row = statistics(problem, inputs, sequence, head, i);
    probabilities_in(problem, inputs, sequence, head, i, &row, 0..usize::MAX, visit);
}

/// Calls `visit` like [`probabilities`], but only for the keys in `keys` that exist in the sequence. `row`
/// must be the result of [`row()`] or [`statistics`] for the same query.
///
/// # Panics
/// Panics if `sequence`, `head` or `i` is out of bounds.
#[allow(clippy::too_many_arguments)]
pub fn probabilities_in(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: usize,
    head: usize,
    i: usize,
    row: &Row,
    keys: Range<usize>,
    visit: impl FnMut(usize, f64),
) {
    match problem.spec().dtype {
        DType::F32 => Scores::<f32>::new(problem, inputs, sequence, head, i).visit(row, keys, visit),
        DType::F16 => Scores::<f16>::new(problem, inputs, sequence, head, i).visit(row, keys, visit),
        DType::Bf16 => Scores::<bf16>::new(problem, inputs, sequence, head, i).visit(row, keys, visit),
    }
}

/// Calls `visit(j, ln p_j)` with the logarithm of the probability of every key `j` of the sequence, in order, including
/// the past. For keys that the row does not attend, the logarithm is `None`. The logarithm remains finite if the
/// probability underflows. `row` must be the result of [`row()`] or [`statistics`] for the same query.
///
/// # Panics
/// Panics if `sequence`, `head` or `i` is out of bounds.
pub fn log_probabilities(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: usize,
    head: usize,
    i: usize,
    row: &Row,
    visit: impl FnMut(usize, Option<f64>),
) {
    match problem.spec().dtype {
        DType::F32 => Scores::<f32>::new(problem, inputs, sequence, head, i).visit_logs(row, visit),
        DType::F16 => Scores::<f16>::new(problem, inputs, sequence, head, i).visit_logs(row, visit),
        DType::Bf16 => Scores::<bf16>::new(problem, inputs, sequence, head, i).visit_logs(row, visit),
    }
}

/// Returns `true` if length, causality, window and mask let query `i` of a sequence attend key `j`.
///
/// # Panics
/// Panics if `sequence`, `head` or `i` is out of bounds.
#[must_use]
pub fn attends(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: usize,
    head: usize,
    i: usize,
    j: usize,
) -> bool {
    Geometry::new(problem, inputs, sequence, head, i).bias(j).is_some()
}

/// Returns the sum of mask and bias for query `i` and key `j` of a sequence; `None` if the row does not attend the
/// key.
///
/// # Panics
/// Panics if `sequence`, `head` or `i` is out of bounds.
#[must_use]
pub fn bias(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: usize,
    head: usize,
    i: usize,
    j: usize,
) -> Option<f64> {
    Geometry::new(problem, inputs, sequence, head, i).bias(j)
}

/// Returns `|bias| + |mask|`, the largest magnitude that mask and bias together add to the score of query `i` and key
/// `j` of a sequence; zero if the row does not attend the key.
///
/// # Panics
/// Panics if `sequence`, `head` or `i` is out of bounds.
#[must_use]
pub fn bias_magnitude(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: usize,
    head: usize,
    i: usize,
    j: usize,
) -> f64 {
    let parts = Geometry::new(problem, inputs, sequence, head, i).parts(j);
    parts.map_or(0.0, |[mask, bias]| mask.abs() + bias.abs())
}

/// An element type that is read as f64.
trait Element: Copy {
    fn of<'a>(elements: &Elements<'a>) -> &'a [Self];
    fn wide(self) -> f64;
}

impl Element for f32 {
    fn of<'a>(elements: &Elements<'a>) -> &'a [f32] {
        if let Elements::F32(x) = *elements { x } else { &[] }
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

impl Element for f16 {
    fn of<'a>(elements: &Elements<'a>) -> &'a [f16] {
        if let Elements::F16(x) = *elements { x } else { &[] }
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self.to_f32())
    }
}

impl Element for bf16 {
    fn of<'a>(elements: &Elements<'a>) -> &'a [bf16] {
        if let Elements::Bf16(x) = *elements { x } else { &[] }
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self.to_f32())
    }
}

/// Returns `Σ a_x b_x`, with eight independent sums.
fn dot<T: Element>(a: &[T], b: &[T]) -> f64 {
    let mut sums = [0.0; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (a, b) in a8.iter().zip(b8) {
        for x in 0..8 {
            sums[x] += a[x].wide() * b[x].wide();
        }
    }
    for (x, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[x] += a.wide() * b.wide();
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
}

/// Determines the keys that one row attends, directly from the fields of the problem.
struct Geometry<'a> {
    spec: &'a Spec,
    /// Index along the batch axis.
    batch: usize,
    head: usize,
    /// Index of the query row within the sequence.
    i: usize,
    /// Token index of the row in the query view. `first_key` is the token index of the sequence's first key in the key
    /// view.
    query: usize,
    first_key: usize,
    past: usize,
    /// Number of keys of the sequence.
    keys: usize,
    /// Number of valid keys, counted from the first key of the call; negative if the valid keys end before it.
    valid: i128,
    /// Index of the key on the diagonal of this row.
    diagonal: i128,
    mask: Option<(&'a MaskView, MaskElements<'a>)>,
    bias: Option<(&'a BiasView, Elements<'a>)>,
    index: Option<&'a [i64]>,
}

impl<'a> Geometry<'a> {
    fn new(
        problem: &'a Problem,
        inputs: &Inputs<'a>,
        sequence: usize,
        head: usize,
        i: usize,
    ) -> Geometry<'a> {
        let spec = problem.spec();
        assert!(head < spec.query.heads(), "head of the oracle");
        let past = problem.past();
        let packed = spec.packed.and(inputs.lengths.cu_seqlens_q.zip(inputs.lengths.cu_seqlens_k));
        let (batch, query0, queries, first_key, keys) = match packed {
            Some((cq, ck)) => {
                let at = |list: &[i64], index: usize| list[index] as usize;
                let (q0, k0) = (at(cq, sequence), at(ck, sequence));
                (0, q0, at(cq, sequence + 1) - q0, k0, at(ck, sequence + 1) - k0)
            }
            None => (sequence, 0, spec.query.tokens(), 0, past + spec.key.tokens()),
        };
        assert!(batch < spec.query.batch() && i < queries, "row of the oracle");
        let (before, total) = inputs.lengths.chunk.map_or((0, keys), |c| (c.key_offset, c.key_total));
        // Key lengths and the diagonal refer to the complete sequence; `valid` counts from the first key of the call.
        let whole = match inputs.lengths.keys {
            Some(lengths) if spec.key_lengths => lengths[batch] as usize,
            _ => total,
        };
        let valid = whole as i128 - before as i128;
        // The diagonal also refers to all queries of the complete sequence; the call may have only some of them.
        let (above, all) = match inputs.lengths.chunk {
            Some(c) if c.query_total > 0 => (c.query_offset as i128, c.query_total),
            _ => (0, queries),
        };
        let offset = match spec.causal {
            Some(Alignment::BottomRight) => valid - all as i128 + above,
            Some(Alignment::TopLeft) | None => past as i128 - before as i128 + above,
        };
        Geometry {
            spec,
            batch,
            head,
            i,
            query: query0 + i,
            first_key,
            past,
            keys,
            valid,
            diagonal: i as i128 + offset,
            mask: spec.mask.as_ref().zip(inputs.mask),
            bias: spec.bias.as_ref().zip(inputs.bias),
            index: inputs.bias_index,
        }
    }

    /// Returns the sum of mask and bias for key `j`, or `None` if the row does not attend that key.
    #[inline]
    fn bias(&self, j: usize) -> Option<f64> {
        let [mask, bias] = self.parts(j)?;
        let sum = mask + bias;
        // If mask and bias are finite, their sum is clamped and stays finite.
        let most = f64::from(MASK_LIMIT);
        Some(if mask.is_finite() && bias.is_finite() { sum.clamp(-most, most) } else { sum })
    }

    /// Returns the mask and the bias for key `j`. A mask or bias that the problem does not have is zero. Returns `None`
    /// if the row does not attend the key.
    #[inline]
    fn parts(&self, j: usize) -> Option<[f64; 2]> {
        let column = j as i128;
        if column >= self.valid
            || (self.spec.causal.is_some() && column > self.diagonal)
            || self.spec.window.left.is_some_and(|left| column < self.diagonal - left as i128)
            || self.spec.window.right.is_some_and(|right| column > self.diagonal + right as i128)
        {
            return None;
        }
        if !self.is_on_the_same_side(j) {
            return None;
        }
        let mask = match &self.mask {
            Some((view, elements)) => elements.bias(self.element(view, j)?),
            None => 0.0,
        };
        let bias = match &self.bias {
            Some((BiasView::Dense(view), elements)) => elements.get(self.element(view, j)?),
            Some((BiasView::Table(table), elements)) => {
                let entry = match (self.index, &self.spec.windows) {
                    (Some(index), _) => index[self.i * self.keys + j] as usize,
                    (None, Some(windows)) => {
                        let [h, w] = windows.size;
                        let (down, across) = (self.i / w + h - 1 - j / w, self.i % w + w - 1 - j % w);
                        down * (2 * w - 1) + across
                    }
                    (None, None) => return None,
                };
                elements.get(entry * table.heads + self.head)
            }
            None => 0.0,
        };
        let limited = if bias.is_finite() { bias.clamp(-MASK_LIMIT, MASK_LIMIT) } else { bias };
        let attended = mask != f32::NEG_INFINITY && limited != f32::NEG_INFINITY;
        attended.then(|| [f64::from(mask), f64::from(limited)])
    }

    /// Returns `true` if key `j` and the row's token are on the same side of the boundaries of a shifted window.
    #[inline]
    fn is_on_the_same_side(&self, j: usize) -> bool {
        let Some(windows) = &self.spec.windows else { return true };
        let across = windows.picture[1] / windows.size[1];
        let number = self.batch % (windows.picture[0] / windows.size[0] * across);
        let corner = [number / across * windows.size[0], number % across * windows.size[1]];
        let rolled = |axis: usize, token: usize| {
            let at = if axis == 0 { token / windows.size[1] } else { token % windows.size[1] };
            corner[axis] + at >= windows.picture[axis] - windows.shift[axis]
        };
        [0, 1].into_iter().all(|axis| rolled(axis, self.i) == rolled(axis, j))
    }

    /// Returns the index of the element of `view` for key `j`; `None` if the key is beyond the end of the last axis. An
    /// axis of size 1 is broadcast, and a batch axis whose size divides the batch size is repeated.
    #[inline]
    fn element(&self, view: &MaskView, j: usize) -> Option<usize> {
        let [batches, heads, queries, keys] = view.shape();
        if keys != 1 && j >= keys {
            return None;
        }
        let b = self.batch % batches;
        let h = if heads == 1 { 0 } else { self.head };
        let q = if queries == 1 { 0 } else { self.i };
        let k = if keys == 1 { 0 } else { j };
        Some(((b * heads + h) * queries + q) * keys + k)
    }
}

/// The scores of one row.
struct Scores<'a, T> {
    geometry: Geometry<'a>,
    query: &'a [T],
    key: Lines<'a, T>,
    value: Lines<'a, T>,
    scale: f64,
    cap: Option<f64>,
}

/// The rows of one head of keys or of values: first past rows, then new rows.
struct Lines<'a, T> {
    past: Option<(View, &'a [T])>,
    new: (View, &'a [T]),
    batch: usize,
    head: usize,
}

impl<'a, T> Lines<'a, T> {
    #[inline(always)]
    fn line(&self, geometry: &Geometry<'_>, j: usize) -> &'a [T] {
        let ((view, data), token) = match &self.past {
            Some(past) if j < geometry.past => (past, j),
            _ => (&self.new, geometry.first_key + j - geometry.past),
        };
        let start = view.row(self.batch, self.head, token);
        &data[start..start + view.dim()]
    }
}

impl<'a, T: Element> Scores<'a, T> {
    fn new(
        problem: &'a Problem,
        inputs: &Inputs<'a>,
        sequence: usize,
        head: usize,
        i: usize,
    ) -> Scores<'a, T> {
        let geometry = Geometry::new(problem, inputs, sequence, head, i);
        let spec = problem.spec();
        let batch = geometry.batch;
        let group = spec.query.heads() / spec.key.heads().max(1);
        let past = inputs.past(problem);
        let lines = |view: &View, data: &Elements<'a>, which: usize| Lines {
            past: past.map(|past| (past[which].0, T::of(&past[which].1))),
            new: (*view, T::of(data)),
            batch,
            head: head / group,
        };
        let start = spec.query.row(batch, head, geometry.query);
        Scores {
            query: &T::of(&inputs.query)[start..start + spec.query.dim()],
            key: lines(&spec.key, &inputs.key, 0),
            value: lines(&spec.value, &inputs.value, 1),
            scale: f64::from(problem.scale()),
            cap: spec.softcap.map(f64::from),
            geometry,
        }
    }

    /// Returns the score of key `j`, or `None` if the row does not attend that key.
    #[inline(always)]
    fn score(&self, j: usize) -> Option<f64> {
        let bias = self.geometry.bias(j)?;
        let s = self.scale * dot(self.query, self.key.line(&self.geometry, j));
        let s = match self.cap {
            Some(cap) => cap * libm::tanh(s / cap),
            None => s,
        };
        Some(s + bias)
    }

    fn row(&self, output: Option<&mut [f64]>) -> Row {
        let mut max = f64::NEG_INFINITY;
        for j in 0..self.geometry.keys {
            match self.score(j) {
                Some(s) if s.is_nan() => {
                    if let Some(y) = output {
                        y.fill(f64::NAN);
                    }
                    return Row { max: f64::NAN, sum: f64::NAN, lse: f64::NAN };
                }
                Some(s) if s > max => max = s,
                _ => {}
            }
        }
        let mut output = output;
        if let Some(y) = &mut output {
            y.fill(0.0);
        }
        if max == f64::NEG_INFINITY {
            return Row { max, sum: 0.0, lse: max };
        }
        let mut sum = 0.0;
        for j in 0..self.geometry.keys {
            let Some(s) = self.score(j).filter(|s| *s != f64::NEG_INFINITY) else { continue };
            let weight = libm::exp(s - max);
            sum += weight;
            if let Some(y) = &mut output {
                for (y, v) in y.iter_mut().zip(self.value.line(&self.geometry, j)) {
                    *y += weight * v.wide();
                }
            }
        }
        if let Some(y) = output {
            for y in y {
                *y /= sum;
            }
        }
        Row { max, sum, lse: max + libm::log(sum) }
    }

    fn visit_logs(&self, row: &Row, mut visit: impl FnMut(usize, Option<f64>)) {
        let log_sum = libm::log(row.sum);
        for j in 0..self.geometry.keys {
            // The difference from the largest score is exact for scores near it, and zero for the largest score itself.
            visit(j, self.score(j).map(|s| if s == row.max { -log_sum } else { s - row.max - log_sum }));
        }
    }

    fn visit(&self, row: &Row, keys: Range<usize>, mut visit: impl FnMut(usize, f64)) {
        for j in keys.start..keys.end.min(self.geometry.keys) {
            let p = match self.score(j) {
                Some(s) if s != f64::NEG_INFINITY => libm::exp(s - row.max) / row.sum,
                _ => 0.0,
            };
            visit(j, p);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::MaskKind;

    fn problem(nq: usize, nk: usize, change: impl Fn(&mut Spec)) -> Problem {
        let view = |n, d| View::new("x", [1, 1, n, d], [n * d, n * d, d, 1]).unwrap();
        let mut spec = Spec::new(DType::F32, view(nq, 1), view(nk, 1), view(nk, 2), view(nq, 2));
        spec.scale = Some(1.0);
        change(&mut spec);
        spec.check().unwrap()
    }

    #[test]
    fn two_keys_by_hand() {
        // The scores are log 1 and log 3, so the weights are 1/4 and 3/4.
        let (q, k, v) = ([1.0], [0.0, libm::logf(3.0)], [4.0, 8.0, 8.0, -4.0]);
        let p = problem(1, 2, |_| {});
        let x = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
        let mut y = [0.0; 2];
        let r = row(&p, &x, 0, 0, 0, &mut y);
        assert!((y[0] - 7.0).abs() < 1e-6 && (y[1] + 1.0).abs() < 1e-6, "{y:?}");
        assert!((r.lse - libm::log(4.0)).abs() < 1e-6 && r.max == f64::from(k[1]));
        let mut ps = [0.0; 2];
        probabilities(&p, &x, 0, 0, 0, |j, p| ps[j] = p);
        assert!((ps[0] - 0.25).abs() < 1e-7 && (ps[0] + ps[1] - 1.0).abs() < 1e-15);
    }

    #[test]
    fn absent_keys_are_not_looked_at_and_attended_nan_poisons() {
        let q = [1.0, 1.0];
        let k = [1.0, f32::NAN, 1.0];
        let v = [1.0, 2.0, f32::NAN, f32::INFINITY, 3.0, 6.0];
        let view = MaskView::dense(MaskKind::Bool, &[2, 3]).unwrap();
        let p = problem(2, 3, |s| s.mask = Some(view));
        let mut x = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
        x.mask = Some(MaskElements::Bool(&[1, 0, 1, 1, 1, 1]));
        let mut y = [7.0; 2];
        row(&p, &x, 0, 0, 0, &mut y);
        assert_eq!(y, [2.0, 4.0]);
        let r = row(&p, &x, 0, 0, 1, &mut y);
        assert!(y.iter().all(|y| y.is_nan()) && r.lse.is_nan() && r.sum.is_nan());
    }

    #[test]
    fn rows_without_keys_are_zero() {
        let p = problem(1, 1, |s| s.mask = Some(MaskView::dense(MaskKind::Bool, &[1]).unwrap()));
        let mut x = Inputs::new(Elements::F32(&[1.0]), Elements::F32(&[1.0]), Elements::F32(&[5.0, 5.0]));
        x.mask = Some(MaskElements::Bool(&[0]));
        let mut y = [7.0; 2];
        let r = row(&p, &x, 0, 0, 0, &mut y);
        assert_eq!((y, r.lse, r.sum), ([0.0, 0.0], f64::NEG_INFINITY, 0.0));
        // A score of −∞ has weight zero, and its value is not read.
        let p = problem(1, 1, |_| {});
        let x = Inputs::new(
            Elements::F32(&[1.0]),
            Elements::F32(&[f32::NEG_INFINITY]),
            Elements::F32(&[f32::NAN, 1.0]),
        );
        let r = row(&p, &x, 0, 0, 0, &mut y);
        assert_eq!((y, r.lse), ([0.0, 0.0], f64::NEG_INFINITY));
    }
}
