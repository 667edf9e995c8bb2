//! Computes a call by a scan with two levels. First, the tokens of each part of a sequence are folded to an affine map.
//! Then a scan over the maps computes the state before each part. Finally, the outputs of each part are computed from
//! the state before it.
//!
//! The tokens of a part map the state `S` before the part to `A S + b`. Two successive parts combine to
//! `(A₁, b₁) ⊕ (A₂, b₂) = (A₂ A₁, A₂ b₁ + b₂)`.
//!
//! **The naive way** scans over tokens; each element of the scan is a matrix `[d_k, d_k + d_v]`.
//!
//! **Why the code differs.**
//!
//! 1. *Parts, not tokens.* A scan over parts has few elements. Two passes process the tokens, one before and one after
//!    this scan, and both passes use the code of the other forms.
//! 2. *`A` is computed like a state.* The columns of a state are independent. So the same kernel computes `A` and `b`.
//!    For `A`, the kernel starts with the unit matrix as the state, and the values of all tokens are zeros. If all rows
//!    are independent, a single column of ones replaces the unit matrix.
//! 3. *A gate of `−∞` clears a row for every earlier state, even one that contains NaN*: the row is replaced, not
//!    multiplied by zero. A second column of `A` starts as NaN. It distinguishes a cleared row from a row whose product
//!    of gates underflows. The tokens of a delta rule read all rows. With a delta rule, the gates of the first token
//!    clear single rows, and a later token clears rows only if its gates clear all of them. So whether a part clears a
//!    row is read from the gates. It cannot be read from a column of zeros in `A`, because the zeros may result from
//!    decay, and decay does not remove a NaN of the earlier state.
//! 4. *No `A` for the first part.* An element whose first token is the first token of the sequence contains the effect
//!    of the past state. This element is always the earlier operand of `⊕`, so its `A` is neither computed nor
//!    multiplied.

use super::context::{Context, Stretch};
use super::walk::{Aim, Target, chunks, fold, has_transition, pass, read};
use super::{stage, state};
use crate::cpu::pool::Crew;
use crate::error::RunError;
use elsa_core::linear::plan::MOST_PARTS;
use elsa_core::linear::{Direction, Gates, Sequence};
use elsa_core::scan::{Slots, blelloch};
use elsa_kernels::linear::Reading;
use std::ops::Range;

/// Computes a call, with as many heads at a time as fit into the workspace.
///
/// # Errors
/// Returns an error if a worker panicked, or if the call was cancelled.
pub(super) fn run(
    c: &Context<'_>,
    sequences: &[Sequence],
    workers: usize,
    crew: &Crew<'_>,
) -> Result<(), RunError> {
    let (states, parts) = (c.problem.state_heads(), c.choice.parts);
    let heads = sequences.len() * states;
    let passes: &[bool] = match c.choice.direction {
        Direction::Forward | Direction::NonCausal => &[false],
        Direction::Reverse => &[true],
        Direction::Bidirectional => &[false, true],
    };
    for first in (0..heads).step_by(c.choice.resident.max(1)) {
        let some = c.choice.resident.min(heads - first);
        let head = |slot: usize, reverse| {
            let head = first + slot;
            ResidentHead {
                sequence: &sequences[head / states],
                state: head % states,
                slot,
                reverse,
                crew: *crew,
            }
        };
        for reverse in passes.iter().copied() {
            // SAFETY: `Context::new` established the invariants. The pool gives each item to one worker, and each
            // worker has its own number. Each step begins when the previous step is done. Each item of a step is a
            // separate part or a separate head.
            crew.divide(workers, some * parts, &|worker, item| unsafe {
                fold_part(c, &head(item / parts, reverse), item % parts, worker);
            })?;
            // SAFETY: as above.
            crew.divide(workers, some, &|worker, item| unsafe { combine(c, &head(item, reverse), worker) })?;
            // SAFETY: as above.
            crew.divide(workers, some * parts, &|worker, item| unsafe {
                compute_part(c, &head(item / parts, reverse), item % parts, worker);
            })?;
            if c.has_present() {
                // SAFETY: as above. The past state, which may share its memory with the present state, is no longer
                // read.
                crew.divide(workers, some, &|_, item| unsafe { finish(c, &head(item, reverse)) })?;
            }
        }
    }
    Ok(())
}

/// A head whose parts are being computed in the workspace.
#[derive(Clone, Copy)]
struct ResidentHead<'a> {
    sequence: &'a Sequence,
    state: usize,
    /// Index among the heads that fit into the workspace at the same time.
    slot: usize,
    reverse: bool,
    crew: Crew<'a>,
}

impl<'a> ResidentHead<'a> {
    /// Returns the tokens of part `part`; `None` if the sequence has fewer parts.
    fn part(&self, c: &Context<'_>, part: usize) -> Option<Stretch<'a>> {
        let ResidentHead { sequence, state, reverse, crew, .. } = *self;
        let size = c.choice.part(sequence.tokens);
        let strips = 0..c.choice.strip_count();
        (part < c.choice.parts_of(sequence.tokens)).then(|| {
            let tokens = part * size..sequence.tokens.min((part + 1) * size);
            Stretch { sequence, state, tokens, reverse, strips, crew }
        })
    }

    /// Returns the index of the last part of the sequence; zero if the sequence is empty.
    fn last(&self, c: &Context<'_>) -> usize {
        c.choice.parts_of(self.sequence.tokens).saturating_sub(1)
    }

    /// Returns the address of the affine map of part `part`.
    fn element(&self, c: &Context<'_>, part: usize) -> *mut f32 {
        let element = self.slot * c.choice.parts + part;
        c.base.wrapping_add(c.layout.elements.start + element * c.layout.element.stride)
    }
}

/// Returns the strips of the affine map `S → A S + b` at `element`: first the strips of `b`, then the strips of `A`.
fn targets(c: &Context<'_>, element: *mut f32) -> [Target; 2] {
    let choice = c.choice;
    let at = &c.layout.element;
    let columns = if choice.rule.is_delta() { choice.rows } else { choice.kernel.columns };
    let target = |start, columns, values| Target {
        data: element.wrapping_add(start),
        stride: None,
        past: None,
        columns,
        strips: (0, choice.strips.count(columns)),
        values,
    };
    [target(at.state.start, choice.columns, true), target(at.transition.start, columns, false)]
}

/// Calls `each(row, column, index)` for every value of a target's strips. `index` is the value's index in memory,
/// relative to the first strip of the matrix.
fn each_place(c: &Context<'_>, target: &Target, mut each: impl FnMut(usize, usize, usize)) {
    let rows = c.choice.rows;
    for strip in target.strips.0..target.strips.1 {
        let strip = c.choice.strips.strip(target.columns, strip);
        for row in 0..rows {
            for x in 0..strip.width {
                each(row, strip.first + x, strip.first * rows + row * strip.width + x);
            }
        }
    }
}

/// Sets a transition to the identity, which is the transition for an empty range of tokens.
///
/// # Safety
/// - The invariants of [`Context`] hold. The strips are writable, and no other worker uses them.
unsafe fn set_unit(c: &Context<'_>, transition: &Target) {
    let delta = c.choice.rule.is_delta();
    each_place(c, transition, |row, column, place| {
        let unit = match (delta, column) {
            (true, _) => f32::from(u8::from(row == column)),
            (false, 0) => 1.0,
            (false, 1) => f32::NAN,
            (false, _) => 0.0,
        };
        // SAFETY: the strips have this place and are writable (clause).
        unsafe { transition.data.add(place).write(unit) };
    });
}

/// Folds the tokens of a part to its affine map. The tokens of the first part are folded to a state instead. Does
/// nothing for the last part, because no later state needs its map.
///
/// # Safety
/// - The invariants of [`Context`] hold. No other worker has this part or this worker number.
unsafe fn fold_part(c: &Context<'_>, head: &ResidentHead<'_>, part: usize, worker: usize) {
    let Some(s) = head.part(c, part).filter(|_| part < head.last(c)) else { return };
    let all = targets(c, head.element(c, part));
    let region = c.worker_part(worker);
    // SAFETY: only this worker uses the element (clause), which has room for both matrices (layout).
    unsafe {
        if part == 0 {
            state::load(c, &s, all[0].data);
            fold(c, &s, &all[..1], region);
            return;
        }
        all[0].data.write_bytes(0, c.layout.element.state.len);
        if !has_transition(c) {
            fold(c, &s, &all[..1], region);
            return;
        }
        set_unit(c, &all[1]);
        mark_cleared(c, &s, region, cleared(c, head.element(c, part)));
        fold(c, &s, &all, region);
    }
}

/// Returns the address of the marks that belong to the affine map at `element`. There is one mark for each row of the
/// state before the part; it is nonzero if the part clears the row. Only a gated delta rule has marks.
fn cleared(c: &Context<'_>, element: *mut f32) -> *mut f32 {
    element.wrapping_add(c.layout.element.cleared.start)
}

/// Writes a mark for each row of the state before a part: whether the part's tokens clear the row before they read it.
/// Does nothing unless the rule is a gated delta rule.
///
/// # Safety
/// - The invariants of [`Context`] hold. `marks` are the marks of the part, and no other worker uses them or `region`.
unsafe fn mark_cleared(c: &Context<'_>, s: &Stretch<'_>, region: *mut f32, marks: *mut f32) {
    let len = c.layout.element.cleared.len;
    if len == 0 {
        return;
    }
    // SAFETY: `len` marks of the part are at `marks` (layout, clause) and are initialised (*workspace*).
    let marks = unsafe { std::slice::from_raw_parts_mut(marks, len) };
    marks.fill(0.0);
    let dims = if c.choice.gates == Gates::PerDim { c.problem.key_dim() } else { 1 };
    for range in chunks(s, c.choice.chunk) {
        // SAFETY: the chunk is in the sequence, and only this worker uses the region (clause).
        let decays = unsafe { stage::decays(c, s, &range, region) };
        for t in 0..range.len() {
            // SAFETY: row `t` contains the `dims` decays of a token of the chunk.
            let gates = unsafe { std::slice::from_raw_parts(decays.from(t, 0).data, dims) };
            if gates.iter().all(|gate| *gate == f32::NEG_INFINITY) {
                marks.fill(1.0);
                return;
            }
            if range.start + t == s.tokens.start {
                for (mark, gate) in marks.iter_mut().zip(gates) {
                    *mark = f32::from(u8::from(*gate == f32::NEG_INFINITY));
                }
            }
        }
    }
}

/// Copies the state before a part to `to`.
///
/// # Safety
/// - The invariants of [`Context`] hold. The maps of the earlier parts have become states, and a state can be written to
///   `to`.
unsafe fn state_before(c: &Context<'_>, head: &ResidentHead<'_>, s: &Stretch<'_>, part: usize, to: *mut f32) {
    // SAFETY: the state can be written to `to` (clause), and the state of the earlier part is only read.
    unsafe {
        match part.checked_sub(1) {
            None => state::load(c, s, to),
            Some(before) => {
                let from = targets(c, head.element(c, before))[0].data;
                to.copy_from_nonoverlapping(from, c.layout.element.state.len);
            }
        }
    }
}

/// Replaces the map of each part except the last by the state after the part. For a non-causal problem, then computes
/// the state after the last part, too.
///
/// # Safety
/// - The invariants of [`Context`] hold. All parts of the head were folded, and no other worker has this head or this worker
///   number.
unsafe fn combine(c: &Context<'_>, head: &ResidentHead<'_>, worker: usize) {
    let mut states = [false; MOST_PARTS];
    states[0] = true;
    let (last, region) = (head.last(c), c.worker_part(worker));
    let count = last.min(MOST_PARTS);
    if count > 1 {
        blelloch::inclusive(&mut Parts { c, head, count, states, region });
    }
    if c.choice.direction == Direction::NonCausal
        && let Some(s) = head.part(c, last)
    {
        let target = targets(c, head.element(c, last))[0];
        // SAFETY: no other worker has the head (clause), and the maps of its earlier parts are states now.
        unsafe {
            state_before(c, head, &s, last, target.data);
            fold(c, &s, &[target], region);
        }
    }
}

/// Computes the outputs of a part from the state before it. For the last part, also computes the state after it.
///
/// # Safety
/// - The invariants of [`Context`] hold. The head was combined. No other worker has this part or this worker number.
unsafe fn compute_part(c: &Context<'_>, head: &ResidentHead<'_>, part: usize, worker: usize) {
    let Some(s) = head.part(c, part) else { return };
    let last = head.last(c);
    let region = c.worker_part(worker);
    let whole = targets(c, head.element(c, last))[0];
    let aim = Aim { outputs: c.has_output(), keep: part == last && c.has_present() };
    // SAFETY: states of other parts are only read. Only this worker writes the state of its part (clause) and uses the
    // region, which has room for an entire state (layout).
    unsafe {
        if c.choice.direction == Direction::NonCausal {
            if aim.outputs {
                read(c, &s, &whole, region);
            }
        } else if aim.outputs || aim.keep {
            let own = region.wrapping_add(c.layout.worker.state.start);
            let target = if aim.keep { whole } else { Target { data: own, ..whole } };
            state_before(c, head, &s, part, target.data);
            pass(c, &s, &target, region, aim);
        }
    }
}

/// Copies the state after the last part to the present state.
///
/// # Safety
/// - The invariants of [`Context`] hold. All parts of the head were computed, and no other worker has this head.
unsafe fn finish(c: &Context<'_>, head: &ResidentHead<'_>) {
    let last = head.last(c);
    if let Some(s) = head.part(c, last) {
        // SAFETY: the strips are readable, and no other worker writes the head's present state (clause).
        unsafe { state::store(c, &s, targets(c, head.element(c, last))[0].data) };
    }
}

/// The affine maps of a head, as the elements of a scan.
///
/// Invariants: those of [`Context`]; the elements of the head have been folded; while this value exists, nothing else
/// uses the elements or the worker's `region`.
struct Parts<'a> {
    c: &'a Context<'a>,
    head: &'a ResidentHead<'a>,
    count: usize,
    /// `true` for an element whose first token is the first token of the sequence. This element is a state and has no
    /// transition.
    states: [bool; MOST_PARTS],
    region: *mut f32,
}

impl Parts<'_> {
    /// Returns the marks of part `part`, which state the rows that the part clears; empty unless the rule is a gated
    /// delta rule.
    ///
    /// # Safety
    /// - The invariants of this type hold. No other reference to the marks exists.
    unsafe fn marks<'b>(&self, part: usize) -> &'b mut [f32] {
        let marks = cleared(self.c, self.head.element(self.c, part));
        // SAFETY: the element has initialised marks (layout), and nothing else uses them (invariants, clause).
        unsafe { std::slice::from_raw_parts_mut(marks, self.c.layout.element.cleared.len) }
    }

    fn targets(&self, part: usize) -> [Target; 2] {
        targets(self.c, self.head.element(self.c, part))
    }

    /// Returns the values of the matrix in `target`, including its padding.
    ///
    /// # Safety
    /// - The invariants of this type hold. No other reference to the matrix exists.
    unsafe fn values<'b>(&self, target: &Target) -> &'b mut [f32] {
        let len = self.c.choice.rows * self.c.choice.strips.padded(target.columns);
        // SAFETY: the element has these initialised strips (layout), and nothing else uses them (invariants, clause).
        unsafe { std::slice::from_raw_parts_mut(target.data, len) }
    }

    /// Computes `at ← before ⊕ at` for rules whose rows are independent.
    fn combine_rows(&self, before: [Target; 2], at: [Target; 2], with_transition: bool) {
        let c = self.c;
        let (rows, width) = (c.choice.rows, c.choice.kernel.columns);
        // SAFETY: `before` and `at` are different elements (contract of `Slots::combine`).
        let [b0, b1] = unsafe { [self.values(&before[0]), self.values(&at[0])] };
        if !has_transition(c) {
            b1.iter_mut().zip(b0).for_each(|(at, before)| *at += *before);
            return;
        }
        // SAFETY: as above, and the problem has transitions.
        let [a0, a1] = unsafe { [self.values(&before[1]), self.values(&at[1])] };
        // A row of a transition begins with the row's factor and a second value, which is zero if the row was cleared.
        let factor = |a: &[f32], row: usize| (a[row * width], a[row * width + 1] == 0.0);
        for strip in at[0].strips.0..at[0].strips.1 {
            let strip = c.choice.strips.strip(at[0].columns, strip);
            for row in 0..rows {
                let place = strip.first * rows + row * strip.width;
                let (by, cleared) = factor(a1, row);
                if !cleared {
                    let all = place..place + strip.width;
                    let both = b1[all.clone()].iter_mut().zip(&b0[all]);
                    // If the product of gates overflows to infinity, a zero stays zero and does not become NaN.
                    let held = both.filter(|(_, before)| by != f32::INFINITY || **before != 0.0);
                    held.for_each(|(at, before)| *at += by * before);
                }
            }
        }
        if with_transition {
            for row in 0..rows {
                let (by, cleared) = factor(a1, row);
                if !cleared {
                    a1[row * width] = by * a0[row * width];
                    a1[row * width + 1] = a0[row * width + 1];
                }
            }
        }
    }

    /// Computes `at ← before ⊕ at` for rules whose tokens mix rows.
    fn combine_dense(&self, (before, at): (usize, usize), with_transition: bool) {
        let c = self.c;
        // SAFETY: `before` and `at` are different elements (contract of `Slots::combine`).
        let (marks_before, marks) = unsafe { (self.marks(before), self.marks(at)) };
        let (before, at) = (self.targets(before), self.targets(at));
        let rows = c.choice.rows;
        let by_rows = self.region.wrapping_add(c.layout.worker.transition.start);
        let strip_before = self.region.wrapping_add(c.layout.worker.before.start);
        // SAFETY: the worker's region has room for a transition and a strip (layout), and nothing else uses it
        // (invariants).
        let (by_rows, strip_before) = unsafe {
            (
                std::slice::from_raw_parts_mut(by_rows, rows * rows),
                std::slice::from_raw_parts_mut(strip_before, rows * c.choice.strips.wide),
            )
        };
        // SAFETY: `before` and `at` are different elements (contract of `Slots::combine`).
        let a1 = unsafe { self.values(&at[1]) };
        each_place(c, &at[1], |row, column, place| {
            if column < rows {
                by_rows[row * rows + column] = a1[place];
            }
        });
        let mut product = |before: &Target, at: &Target, strips: Range<usize>, add: bool| {
            for strip in strips {
                let strip = c.choice.strips.strip(at.columns, strip);
                let place = strip.first * rows;
                let size = rows * strip.width;
                // SAFETY: the element `before` has this strip, and nothing writes the element (invariants).
                let from = unsafe { std::slice::from_raw_parts(before.data.wrapping_add(place), size) };
                strip_before[..size].copy_from_slice(from);
                for (row, mark) in strip_before.chunks_exact_mut(strip.width).zip(&*marks) {
                    if *mark != 0.0 {
                        row.fill(0.0);
                    }
                }
                let reading = Reading {
                    state: strip_before.as_ptr(),
                    width: strip.width,
                    dim: rows,
                    x: by_rows.as_ptr(),
                    x_stride: rows as isize,
                    rows,
                    scale: 1.0,
                    y: at.data.wrapping_add(place),
                    y_stride: strip.width as isize,
                    add,
                };
                // SAFETY: both matrices have `rows` rows, and the element `at` has the strip (invariants); *kernel*.
                unsafe { (c.kernel.read)(&reading) };
            }
        };
        product(&before[0], &at[0], at[0].strips.0..at[0].strips.1, true);
        if with_transition {
            product(&before[1], &at[1], at[1].strips.0..at[1].strips.1, false);
            // Every row that the earlier tokens read affects all rows. So the later tokens clear a row of the state
            // before both parts only if they clear all rows.
            if marks.contains(&0.0) {
                marks.copy_from_slice(marks_before);
            }
        }
    }
}

impl Slots for Parts<'_> {
    fn len(&self) -> usize {
        self.count
    }

    fn identity(&mut self, at: usize) {
        let [state, transition] = self.targets(at);
        // SAFETY: no other reference to the matrix exists.
        unsafe { self.values(&state) }.fill(0.0);
        if has_transition(self.c) {
            // SAFETY: nothing else uses the element (invariants), which has a transition.
            unsafe { set_unit(self.c, &transition) };
            // SAFETY: no other reference to the marks exists.
            unsafe { self.marks(at) }.fill(0.0);
        }
        self.states[at] = false;
    }

    fn combine(&mut self, before: usize, at: usize) {
        let with_transition = !self.states[before] && has_transition(self.c);
        if self.c.choice.rule.is_delta() {
            self.combine_dense((before, at), with_transition);
        } else {
            self.combine_rows(self.targets(before), self.targets(at), with_transition);
        }
        self.states[at] = self.states[before];
    }

    fn copy(&mut self, from: usize, to: usize) {
        let size = self.c.layout.element.stride;
        let [from_data, to_data] = [from, to].map(|part| self.head.element(self.c, part));
        // SAFETY: `from` and `to` are two different elements of the head (invariants).
        unsafe { to_data.copy_from_nonoverlapping(from_data, size) };
        self.states[to] = self.states[from];
    }

    fn swap(&mut self, a: usize, b: usize) {
        let size = self.c.layout.element.stride;
        let [first, second] = [a, b].map(|part| self.head.element(self.c, part));
        if a != b {
            // SAFETY: `a` and `b` are two different elements of the head (invariants).
            unsafe { std::ptr::swap_nonoverlapping(first, second, size) };
        }
        self.states.swap(a, b);
    }
}
