//! States of rows in allocated memory, and their merge.

use crate::error::PlanError;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::StateOut;
use elsa_core::dtype::ElementsMut;
use elsa_core::quorum::Span;
use elsa_core::state::{NaturalMerge, is_empty, misfit};
use elsa_core::view::View;

/// States of rows in natural-log units: `m` and `s` are `[rows]`, `w` is `[rows, dim]`.
///
/// ```
/// # use elsa_runtime::RowStates;
/// let states = RowStates::empty(3, 64)?;
/// assert!(states.log_sum_exp().all(|lse| lse == f32::NEG_INFINITY));
/// # Ok::<(), elsa_runtime::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RowStates {
    /// References of the states; `−∞` for a row that attends no key.
    pub m: Vec<f32>,
    /// Sums of the weights.
    pub s: Vec<f32>,
    /// Weighted sums of values.
    pub w: Vec<f32>,
}

impl RowStates {
    /// Allocates empty states of `rows` rows with values of size `dim`.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory.
    pub fn empty(rows: usize, dim: usize) -> Result<RowStates, PlanError> {
        let elements = rows.checked_mul(dim).ok_or(PlanError::TaskMemory { bytes: usize::MAX })?;
        let (m, s) = (allocated(rows, f32::NEG_INFINITY)?, allocated(rows, 0.0)?);
        Ok(RowStates { m, s, w: allocated(elements, 0.0)? })
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.m.len()
    }

    /// Checks that each row could be the result of a run or a merge.
    ///
    /// # Errors
    /// Returns an error if a number cannot be part of such a result ([`misfit`]). The error contains the first such
    /// number, its array and its row.
    pub fn check(&self) -> Result<(), ArgumentError> {
        let dim = self.dim();
        for (row, (m, s)) in self.m.iter().zip(&self.s).enumerate() {
            if let Some((array, found, allowed)) = misfit(*m, *s, &self.w[row * dim..(row + 1) * dim]) {
                let argument = match array {
                    "m" => "state_m",
                    "S" => "state_s",
                    _ => "state_w",
                };
                return Err(ArgumentError::State { argument, row, found, allowed });
            }
        }
        Ok(())
    }

    fn dim(&self) -> usize {
        self.w.len().checked_div(self.m.len()).unwrap_or(0)
    }

    /// Makes every state empty.
    pub fn clear(&mut self) {
        self.m.fill(f32::NEG_INFINITY);
        self.s.fill(0.0);
        self.w.fill(0.0);
    }

    /// Borrows the first `rows` rows for writing.
    pub(super) fn first(&mut self, rows: usize) -> StateOut<'_> {
        let rows = rows.min(self.rows());
        let elements = rows * self.dim();
        StateOut { m: &mut self.m[..rows], s: &mut self.s[..rows], w: &mut self.w[..elements] }
    }

    /// Merges the first `rows` rows of `later` into the same rows of these states.
    pub(super) fn merge(&mut self, later: &RowStates, rows: usize) {
        let dim = self.dim().max(1);
        let w = self.w.chunks_exact_mut(dim).zip(later.w.chunks_exact(dim));
        let (m, s) = (self.m.iter_mut().zip(&later.m), self.s.iter_mut().zip(&later.s));
        for (((ma, mb), (sa, sb)), (wa, wb)) in m.zip(s).zip(w).take(rows) {
            let merge = NaturalMerge::of((*ma, *sa), (*mb, *sb));
            (*ma, *sa) = (merge.m, merge.s);
            for (a, b) in wa.iter_mut().zip(wb) {
                *a = merge.w(*a, *b);
            }
        }
    }

    /// Copies these states, `[sequences, span.tokens]`, to arrays with `tokens` rows per sequence. In each sequence, the
    /// first state is copied to row `span.offset`.
    pub(super) fn scatter(&self, span: Span, tokens: usize, (m, s, w): (&mut [f32], &mut [f32], &mut [f32])) {
        let place = |width: usize, from: &[f32], to: &mut [f32]| {
            let (many, few) = (tokens * width, span.tokens * width);
            if few > 0 {
                let start = span.offset * width;
                for (to, from) in to.chunks_exact_mut(many).zip(from.chunks_exact(few)) {
                    to[start..start + few].copy_from_slice(from);
                }
            }
        };
        place(1, &self.m, m);
        place(1, &self.s, s);
        place(self.dim(), &self.w, w);
    }

    /// Writes the outputs `W / S` of all rows, in the order of batch, head and query, to the rows of `view`. The output
    /// of an empty state is zero. Each element is rounded to f32, and then to the type of `out`.
    ///
    /// There must be one state per row of the view, and `out` must contain the view's elements.
    pub fn output(&self, view: &View, out: &mut ElementsMut<'_>) {
        let [_, heads, tokens, dim] = view.shape();
        for row in 0..self.rows() {
            let (token, sequence) = (row % tokens, row / tokens);
            let at = view.row(sequence / heads, sequence % heads, token);
            let empty = is_empty(self.m[row], self.s[row]);
            for (x, w) in self.w[row * dim..(row + 1) * dim].iter().enumerate() {
                out.set(at + x, if empty { 0.0 } else { w / self.s[row] + 0.0 });
            }
        }
    }

    /// Returns the log-sum-exp of each row. It is `m + log S`, computed in f64, and `−∞` for empty states.
    pub fn log_sum_exp(&self) -> impl Iterator<Item = f32> + '_ {
        self.m.iter().zip(&self.s).map(|(m, s)| match is_empty(*m, *s) {
            true => f32::NEG_INFINITY,
            false => (f64::from(*m) + f64::from(*s).ln()) as f32,
        })
    }
}

/// Copies the states `[m, s, w]`, `[sequences, tokens of spans]`, to their rows in `to`, `[sequences, tokens]`. All other
/// rows of `to` become empty. `spans` places the states: their offsets are rows of the states, and their starts are rows of
/// `to`. `dim` is the size of values.
pub(super) fn spread(
    spans: impl Iterator<Item = Span> + Clone,
    [sequences, tokens, dim]: [usize; 3],
    [m, s, w]: [&[f32]; 3],
    to: StateOut<'_>,
) {
    to.m.fill(f32::NEG_INFINITY);
    to.s.fill(0.0);
    to.w.fill(0.0);
    let held: usize = spans.clone().map(|span| span.tokens).sum();
    for span in spans {
        for sequence in 0..sequences {
            let (from, at) = (sequence * held + span.offset, sequence * tokens + span.start);
            let (from, at) = (from..from + span.tokens, at..at + span.tokens);
            let wide = |range: &std::ops::Range<usize>| range.start * dim..range.end * dim;
            to.w[wide(&at)].copy_from_slice(&w[wide(&from)]);
            to.m[at.clone()].copy_from_slice(&m[from.clone()]);
            to.s[at].copy_from_slice(&s[from]);
        }
    }
}

/// Returns an error unless `states`, the lengths of `m`, `S` and `W`, are those of `rows` rows with values of size `dim`.
pub(super) fn of_rows(
    states: [usize; 3],
    rows: usize,
    dim: usize,
    of: &'static str,
) -> Result<(), ArgumentError> {
    let names = ["state_m", "state_s", "state_w"];
    for ((argument, found), allowed) in
        names.into_iter().zip(states).zip([rows, rows, rows.saturating_mul(dim)])
    {
        if found != allowed {
            return Err(ArgumentError::Mismatch { argument, axis: "elements", found, allowed, of });
        }
    }
    Ok(())
}

/// Returns an empty list with room for `count` entries.
pub(super) fn room<T>(count: usize) -> Result<Vec<T>, PlanError> {
    let mut data = Vec::new();
    let refused = PlanError::TaskMemory { bytes: count.saturating_mul(size_of::<T>()) };
    data.try_reserve_exact(count).map_err(|_| refused)?;
    Ok(data)
}

/// Returns a list of `count` numbers that all equal `value`.
pub(super) fn allocated(count: usize, value: f32) -> Result<Vec<f32>, PlanError> {
    let mut data = room(count)?;
    data.resize(count, value);
    Ok(data)
}
