//! Writes the outputs of the finished rows of a tile: output, log-sum-exp and states.

use super::context::{Context, TileRows};
use super::stage;
use elsa_core::attention::Operand;
use elsa_core::attention::traversal::{TraversalReport, share};
use elsa_core::room::Span;
use elsa_core::state::{NaturalState, State, log_sum_exp};
use elsa_kernels::attention::{Entries, Sums};

/// The state of a tile's rows after all keys have been processed.
#[derive(Clone, Copy)]
pub(super) enum Finished {
    /// No row attends a key.
    Empty,
    /// The sums `S` and `W` that the merge tree produced.
    Sums(Sums),
    /// Like [`Finished::Sums`], with `W` already divided by `S`.
    Normalised(Sums),
}

/// Clears the workers' counters and the shares of skipped weights before a run. Does nothing if the schedule is exact.
///
/// # Safety
/// - The invariants of [`Context`] hold. No worker is active.
pub(super) unsafe fn begin(c: &Context<'_>) {
    if c.choice.schedule.is_exact() {
        return;
    }
    for worker in 0..c.choice.workers {
        // SAFETY: the region for counts has room for a report and is aligned to a line (layout).
        unsafe {
            c.worker_part(worker)
                .wrapping_add(c.layout.counts.start)
                .cast::<TraversalReport>()
                .write(TraversalReport::default())
        };
    }
    let Span { start, len } = c.layout.left_out;
    // SAFETY: the region has `len` numbers (layout).
    unsafe { c.base.wrapping_add(start).write_bytes(0, len) };
}

/// Records the skipped weights of the first row of `tile`: their sum `d`, in natural-log units, and their `share`.
///
/// # Safety
/// - The invariants of [`Context`] hold. The plan records skipped weights, and the row belongs to this worker.
unsafe fn record(c: &Context<'_>, tile: &TileRows<'_>, d: f32, share: f32) {
    let tokens = c.problem.spec().query.tokens();
    let at = (tile.sequence.batch * c.problem.heads() + tile.head) * tokens + tile.token();
    let to = c.base.wrapping_add(c.layout.left_out.start + at);
    // SAFETY: there are two numbers for each row (layout), and nothing else writes those of this row (clause).
    unsafe {
        to.write(d);
        to.wrapping_add(c.choice.recorded).write(share);
    }
}

/// Writes every output of the only row of `tile`, whose width is one. The inputs are the row's state, the sum of its
/// skipped weights in the units of the state, and the share of these weights.
///
/// # Safety
/// - The invariants of [`Context`] hold. The plan records skipped weights, the row belongs to this worker, and `part`
///   is the worker's region.
pub(super) unsafe fn row(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    mut state: State<&mut [f32]>,
    (d, share): (f32, f32),
    part: *mut f32,
) {
    let [lse, m, s, w] =
        [Operand::LogSumExp, Operand::StateReference, Operand::StateSum, Operand::StateWeighted]
            .map(|rows| c.entries(rows, tile.sequence.batch, tile.head, tile.token()));
    let natural = NaturalState::of(state.m, state.s, 1.0, false);
    // SAFETY: the arrays that are not null have the row (*outputs*). The region of a tile has room for a row of padded
    // values, and the region for rows has room for the buffer of the conversion (layout); *kernel*.
    unsafe {
        record(c, tile, natural.w(d), share);
        if !lse.is_null() {
            lse.write(log_sum_exp(state.m, f64::from(state.s) + f64::from(d)));
        }
        if !m.is_null() {
            m.write(natural.m);
            s.write(natural.s);
            for (x, of) in state.w.iter().enumerate() {
                w.add(x).write(natural.w(*of));
            }
        }
        if c.has(Operand::Output) {
            state.finish();
            let padded = part.wrapping_add(c.layout.tiles.start + c.layout.tile.state.start);
            padded.write_bytes(0, c.choice.value_dim);
            padded.copy_from_nonoverlapping(state.w.as_ptr(), state.w.len());
            stage::store_output(c, tile, padded, part.wrapping_add(c.layout.rows.start));
        }
    }
}

/// Writes the outputs of a tile's rows other than the output tensor, and records their skipped weights. Few calls have
/// these outputs.
///
/// # Safety
/// - The clauses of [`finish`] hold. `sums` are those of its state.
#[inline(never)]
unsafe fn describe(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    (sums, normalised): (&Option<Sums>, bool),
    left_out: Option<*const f32>,
) {
    let dv = c.problem.value_dim();
    let [lse, state_m, state_s, state_w] =
        [Operand::LogSumExp, Operand::StateReference, Operand::StateSum, Operand::StateWeighted]
            .map(|rows| c.entries(rows, tile.sequence.batch, tile.head, tile.token()));
    let scale = c.kernel.spec.weight_scale;
    let into_s = left_out.map_or(0, |_| c.choice.longest_path().into_s);
    for i in 0..tile.rows.len() {
        // SAFETY: column `i` of the state; row `i` of the arrays that are not null (*outputs*).
        unsafe {
            let (m, s) = match &sums {
                Some(sums) => (sums.m.add(i).read(), sums.s.add(i).read()),
                None => (f32::NEG_INFINITY, 0.0),
            };
            let natural = || NaturalState::of(m, s, scale, normalised);
            // A NaN poisons a row regardless of its skipped weights.
            let d = left_out.map_or(0.0, |left_out| left_out.add(i).read());
            let d = if s.is_nan() { 0.0 } else { d };
            if left_out.is_some() {
                let left = (share(s, d, into_s) as f32).next_up().min(1.0);
                let row = TileRows { rows: tile.rows.start + i..tile.rows.start + i + 1, ..tile.clone() };
                record(c, &row, natural().w(d), if d == 0.0 { 0.0 } else { left });
            }
            if !lse.is_null() {
                lse.add(i).write(log_sum_exp(m, (f64::from(s) + f64::from(d)) / scale));
            }
            if !state_m.is_null() {
                let natural = natural();
                state_m.add(i).write(natural.m);
                state_s.add(i).write(natural.s);
                let to = state_w.add(i * dv);
                for x in 0..dv {
                    let w = sums.map_or(0.0, |sums| sums.w.add(x * tile.width + i).read());
                    to.add(x).write(natural.w(w));
                }
            }
        }
    }
}

/// Writes every output of a tile's rows.
///
/// # Safety
/// - The invariants of [`Context`] hold. The rows belong to this worker, and the state is initialised.
/// - If the plan has a budget, `left_out` points to the sum of skipped weights of each row, in the units of the state.
/// - `scratch` is the worker's region for rows.
pub(super) unsafe fn finish(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    entries: &Entries,
    (state, left_out): (Finished, Option<*const f32>),
    scratch: *mut f32,
) {
    let (sums, normalised) = match state {
        Finished::Empty => (None, false),
        Finished::Sums(sums) => (Some(sums), false),
        Finished::Normalised(sums) => (Some(sums), true),
    };
    if left_out.is_some() || c.has(Operand::LogSumExp) || c.has(Operand::StateReference) {
        // SAFETY: the callee's clauses are those of this function.
        unsafe { describe(c, tile, (&sums, normalised), left_out) };
    }
    if !c.has(Operand::Output) {
        return;
    }
    // SAFETY: the state, the rows and `scratch` belong to this worker (clauses); *kernel*.
    unsafe {
        let w = match &sums {
            Some(sums) => {
                if !normalised {
                    (entries.finish)(sums, c.choice.value_dim);
                }
                sums.w.cast_const()
            }
            None => std::ptr::null(),
        };
        stage::store_output(c, tile, w, scratch);
    }
}
