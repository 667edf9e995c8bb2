//! The affine law: the effect of one token, or of a run of tokens, on a state, and the composition of two runs.
//!
//! Every rule is `S_t = A_t S_{t−1} + b_t`, where `S` and `b` are `[d_k, d_v]`. The maps of two adjacent runs compose
//! to another such map, with the earlier run first:
//!
//! ```text
//! (A_1, b_1) ⊕ (A_2, b_2) = (A_2 A_1, A_2 b_1 + b_2)          identity (I, 0)
//! ```
//!
//! The composition is associative but not commutative, so any scan of [`crate::scan`] computes the states of all tokens.
//! In a workspace, a map `(A, b)` is a range of f32 values: first `A`, in the shape given by [`Transition`], then the
//! rows of `b`.
//!
//! 1. **Cleared rows are excluded by selection.** A gate that clears rows sets a scalar `A`, a number on the diagonal of
//!    `A`, or an entire column of a dense `A` to zero. Products with such a zero are skipped, so a NaN does not outlive the
//!    gate that clears it.
//! 2. **States become zero instead of subnormal.** A number in `b` whose magnitude is below the smallest normal number is
//!    set to zero.

use super::problem::Problem;
use super::rule::Gates;
use crate::scan::Slots;

/// The shape of the matrix `A`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transition {
    /// One number that multiplies the entire state.
    Scalar,
    /// One number for each row of the state.
    Diagonal,
    /// A full matrix, `[d_k, d_k]`.
    Dense,
}

/// The shape of maps `(A, b)`: the kind of matrix `A`, and the size of the states to which the maps apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affine {
    /// The kind of matrix `A`.
    pub transition: Transition,
    /// Number of rows of a state, `d_k`.
    pub rows: usize,
    /// Number of columns of a state, `d_v`.
    pub columns: usize,
}

/// Returns `x`, or zero if `|x|` is below the smallest normal number. NaN is preserved.
#[inline(always)]
pub(super) fn settled(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0 } else { x }
}

impl Affine {
    /// Returns the shape of the maps `(A, b)` for the tokens of `problem`. `A` is scalar or diagonal if only gates multiply
    /// the state, and dense for the delta rules.
    #[must_use]
    pub fn of(problem: &Problem) -> Affine {
        let transition = match (problem.rule().is_delta(), problem.gates()) {
            (true, _) => Transition::Dense,
            (false, Gates::PerDim) => Transition::Diagonal,
            (false, Gates::None | Gates::PerHead) => Transition::Scalar,
        };
        Affine { transition, rows: problem.key_dim(), columns: problem.value_dim() }
    }

    /// Returns the number of f32 values of `A`, saturated at `usize::MAX`.
    #[must_use]
    pub const fn transition_len(&self) -> usize {
        match self.transition {
            Transition::Scalar => 1,
            Transition::Diagonal => self.rows,
            Transition::Dense => self.rows.saturating_mul(self.rows),
        }
    }

    /// Returns the number of f32 values per map `(A, b)`, saturated at `usize::MAX`.
    #[must_use]
    pub const fn element_len(&self) -> usize {
        self.transition_len().saturating_add(self.rows.saturating_mul(self.columns))
    }

    /// Returns the number of spare f32 values that [`Affine::combine`] needs, saturated at `usize::MAX`.
    #[must_use]
    pub const fn spare_len(&self) -> usize {
        let row = if self.rows > self.columns { self.rows } else { self.columns };
        match self.transition {
            Transition::Scalar | Transition::Diagonal => 0,
            Transition::Dense => row.saturating_add(self.rows),
        }
    }

    /// Sets the map in `element` to the identity `(I, 0)`.
    pub fn identity(&self, element: &mut [f32]) {
        let (a, b) = element.split_at_mut(self.transition_len());
        b.fill(0.0);
        match self.transition {
            Transition::Scalar | Transition::Diagonal => a.fill(1.0),
            Transition::Dense => {
                a.fill(0.0);
                a.iter_mut().step_by(self.rows + 1).for_each(|a| *a = 1.0);
            }
        }
    }

    /// Computes `at ← before ⊕ at`. `spare` has [`Affine::spare_len`] values.
    pub fn combine(&self, before: &[f32], at: &mut [f32], spare: &mut [f32]) {
        let (a1, b1) = before.split_at(self.transition_len());
        let (a2, b2) = at.split_at_mut(self.transition_len());
        self.map(a2, b1, b2, spare);
        match self.transition {
            Transition::Scalar | Transition::Diagonal => {
                for (a2, a1) in a2.iter_mut().zip(a1) {
                    *a2 = if *a2 == 0.0 { 0.0 } else { *a2 * a1 };
                }
            }
            Transition::Dense => product(self.rows, a1, a2, spare),
        }
    }

    /// Computes `b ← A state + b`, where `element` contains the map `(A, b)` of a run of tokens and `state` is the state
    /// before the run. `b` becomes the state after the run.
    pub fn apply(&self, element: &mut [f32], state: &[f32], spare: &mut [f32]) {
        let (a, b) = element.split_at_mut(self.transition_len());
        self.map(a, state, b, spare);
    }

    /// Computes `b2 ← A b1 + b2`.
    fn map(&self, a: &[f32], b1: &[f32], b2: &mut [f32], spare: &mut [f32]) {
        let columns = self.columns;
        match self.transition {
            Transition::Scalar | Transition::Diagonal => {
                for (x, (b2, b1)) in b2.chunks_exact_mut(columns).zip(b1.chunks_exact(columns)).enumerate() {
                    let a = if a.len() == 1 { a[0] } else { a[x] };
                    if a != 0.0 {
                        b2.iter_mut().zip(b1).for_each(|(b2, b1)| *b2 = settled(a * b1 + *b2));
                    }
                }
            }
            Transition::Dense => dense_map(self.rows, columns, a, b1, b2, spare),
        }
    }
}

/// Finds the columns of a matrix that are zero in all rows. Returns the flags of the columns and the remaining part of
/// `spare`. A flag is 1 if the column is zero, and 0 otherwise.
fn cleared<'a>(d: usize, a: &[f32], spare: &'a mut [f32]) -> (&'a [f32], &'a mut [f32]) {
    let (zeros, rest) = spare.split_at_mut(d);
    zeros.fill(1.0);
    for row in a.chunks_exact(d) {
        zeros.iter_mut().zip(row).filter(|(_, a)| **a != 0.0).for_each(|(zero, _)| *zero = 0.0);
    }
    (zeros, rest)
}

/// Computes `sum ← Σ_x a_x m_x` over the rows `m_x` of a matrix. Rows whose flag in `zeros` is 1 are skipped.
fn combined(sum: &mut [f32], a: &[f32], zeros: &[f32], matrix: &[f32]) {
    sum.fill(0.0);
    for ((a, zero), row) in a.iter().zip(zeros).zip(matrix.chunks_exact(sum.len())) {
        if *zero == 0.0 {
            sum.iter_mut().zip(row).for_each(|(sum, m)| *sum += a * m);
        }
    }
}

/// Computes `a2 ← A_2 A_1`, row by row.
fn product(d: usize, a1: &[f32], a2: &mut [f32], spare: &mut [f32]) {
    let (zeros, spare) = cleared(d, a2, spare);
    let sum = &mut spare[..d];
    for row in a2.chunks_exact_mut(d) {
        combined(sum, row, zeros, a1);
        row.copy_from_slice(sum);
    }
}

/// Computes `b2 ← A b1 + b2` with a dense `A`.
fn dense_map(d: usize, columns: usize, a: &[f32], b1: &[f32], b2: &mut [f32], spare: &mut [f32]) {
    let (zeros, spare) = cleared(d, a, spare);
    let sum = &mut spare[..columns];
    for (row, b2) in a.chunks_exact(d).zip(b2.chunks_exact_mut(columns)) {
        combined(sum, row, zeros, b1);
        b2.iter_mut().zip(&*sum).for_each(|(b2, sum)| *b2 = settled(*sum + *b2));
    }
}

/// Maps `(A, b)` in a workspace, as the slots of a scan.
#[derive(Debug)]
pub struct AffineSlots<'a> {
    law: Affine,
    elements: usize,
    places: &'a mut [f32],
    spare: &'a mut [f32],
}

impl<'a> AffineSlots<'a> {
    /// Returns the number of f32 values that `elements` maps and `scratch` additional places need, saturated at
    /// `usize::MAX`.
    #[must_use]
    pub const fn workspace_len(law: &Affine, elements: usize, scratch: usize) -> usize {
        law.element_len().saturating_mul(elements.saturating_add(scratch)).saturating_add(law.spare_len())
    }

    /// Creates slots for `elements` maps. The part of `workspace` that remains after the maps and the spare values provides
    /// the scratch places. Returns `None` if `workspace` is too short.
    #[must_use]
    pub fn new(law: Affine, elements: usize, workspace: &'a mut [f32]) -> Option<AffineSlots<'a>> {
        let (spare, places) = workspace.split_at_mut_checked(law.spare_len())?;
        (places.len() / law.element_len() >= elements).then_some(AffineSlots { law, elements, places, spare })
    }

    /// Returns the map stored at place `at`.
    ///
    /// # Panics
    /// Panics if the place does not exist.
    pub fn element(&mut self, at: usize) -> &mut [f32] {
        let len = self.law.element_len();
        &mut self.places[at * len..(at + 1) * len]
    }

    /// Replaces the `b` of the map stored at place `at` by `A state + b`, the state after the tokens that the map
    /// represents.
    ///
    /// # Panics
    /// Panics if the place does not exist, or if `state` does not have `rows · columns` values.
    pub fn apply(&mut self, at: usize, state: &[f32]) {
        let len = self.law.element_len();
        self.law.apply(&mut self.places[at * len..(at + 1) * len], state, self.spare);
    }

    /// Returns the maps at the places `a` and `b`, in this order, and the spare values. `a` and `b` must differ.
    fn two(&mut self, a: usize, b: usize) -> (&mut [f32], &mut [f32], &mut [f32]) {
        let len = self.law.element_len();
        let (low, high) = self.places.split_at_mut(a.max(b) * len);
        let (low, high) = (&mut low[a.min(b) * len..(a.min(b) + 1) * len], &mut high[..len]);
        if a < b { (low, high, self.spare) } else { (high, low, self.spare) }
    }
}

impl Slots for AffineSlots<'_> {
    fn len(&self) -> usize {
        self.elements
    }

    fn scratch(&self) -> usize {
        self.places.len() / self.law.element_len() - self.elements
    }

    fn identity(&mut self, at: usize) {
        let law = self.law;
        law.identity(self.element(at));
    }

    fn combine(&mut self, before: usize, at: usize) {
        let law = self.law;
        let (before, at, spare) = self.two(before, at);
        law.combine(before, at, spare);
    }

    fn copy(&mut self, from: usize, to: usize) {
        let len = self.law.element_len();
        self.places.copy_within(from * len..(from + 1) * len, to * len);
    }

    fn swap(&mut self, a: usize, b: usize) {
        if a != b {
            let (a, b, _) = self.two(a, b);
            a.swap_with_slice(b);
        }
    }
}
