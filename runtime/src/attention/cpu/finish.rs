//! Writes what the finished rows of a tile produce: output, log-sum-exp and states.

use super::context::{Context, TileRows};
use super::stage;
use elsa_core::attention::Operand;
use elsa_core::state::{NaturalState, log_sum_exp};
use elsa_kernels::attention::{Entries, Sums};

/// The state of a tile's rows after every key has been absorbed.
#[derive(Clone, Copy)]
pub(super) enum Finished {
    /// No row attends a key.
    Empty,
    /// `S` and `W`, as the merge tree produces them.
    Sums(Sums),
    /// Like [`Finished::Sums`], with `W` already divided by `S`.
    Normalised(Sums),
}

/// Writes every output of a tile's rows.
///
/// # Safety
/// - The invariants of [`Context`]. The rows belong to this worker, and the state is initialized.
/// - `scratch` is the worker's region for rows.
pub(super) unsafe fn finish(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    entries: &Entries,
    state: Finished,
    scratch: *mut f32,
) {
    let (sums, normalised) = match state {
        Finished::Empty => (None, false),
        Finished::Sums(sums) => (Some(sums), false),
        Finished::Normalised(sums) => (Some(sums), true),
    };
    let dv = c.problem.value_dim();
    let [lse, state_m, state_s, state_w] =
        [Operand::LogSumExp, Operand::StateReference, Operand::StateSum, Operand::StateWeighted]
            .map(|rows| c.entries(rows, tile.sequence.batch, tile.head, tile.token()));
    let scale = c.kernel.spec.weight_scale;
    for i in 0..tile.rows.len() {
        // SAFETY: column `i` of the state; row `i` of the arrays that are not null (*outputs*).
        unsafe {
            let (m, s) = match &sums {
                Some(sums) => (sums.m.add(i).read(), sums.s.add(i).read()),
                None => (f32::NEG_INFINITY, 0.0),
            };
            if !lse.is_null() {
                lse.add(i).write(log_sum_exp(m, f64::from(s) / scale));
            }
            if !state_m.is_null() {
                let natural = NaturalState::of(m, s, scale, normalised);
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
    if !c.tensor(Operand::Output).is_present() {
        return;
    }
    // SAFETY: the state belongs to this worker; *kernel*; rows and scratch by the clauses.
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
