//! Measures the norms of keys and the magnitudes of values once per call, before any tile begins: for a complete head,
//! or for each block of its keys. This costs `O(n d)`, compared with the `O(n² d)` of the attention.
//!
//! The norm gate ([`gate`](super::gate)) uses the measurements of all keys that a row of the sequence may attend, and
//! the vote on unseen blocks ([`unseen`](super::unseen)) uses the measurements of single blocks.

use super::context::{Context, Shared};
use super::measure::measured;
use super::stage::for_past_and_new;
use elsa_core::attention::Operand;
use elsa_core::attention::measured::{larger, norm};
use elsa_core::attention::plan::NORMS;
use elsa_kernels::attention::MeasuredRows;

/// Measurements of the keys and values of a part, which is a block of keys or all keys of a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Upper bound of the norms of the keys; not finite if the norm of a key is not finite.
    pub key: f64,
    /// Largest magnitude of any element of the values; NaN if any element is NaN.
    pub value: f32,
    /// Minimum, over the rows of values, of the largest magnitude in the row. Rows that contain only zeros are ignored.
    pub least: f32,
}

/// Returns the address of the stored measurements of part `part` of a key head.
fn place(c: &Context<'_>, index: usize, kv_head: usize, part: usize) -> *mut [f32; NORMS] {
    let pair = index * c.problem.kv_heads() + kv_head;
    c.base
        .wrapping_add(c.layout.norms.start)
        .cast::<[f32; NORMS]>()
        .wrapping_add(pair * c.choice.measured_parts() + part)
}

/// Returns the measurements of part `part`, which is a block of keys or all keys. The part belongs to key head `kv_head`
/// of sequence `index`.
///
/// # Safety
/// - The clauses of [`measure`] hold. All parts of all sequences and key heads have been measured. The plan has this
///   part.
pub(super) unsafe fn known(c: &Context<'_>, index: usize, kv_head: usize, part: usize) -> Known {
    // SAFETY: the region has room for the part (layout), which has been written (clause).
    of(c, unsafe { place(c, index, kv_head, part).read() })
}

/// Returns the merged measurements of all parts of a key head of sequence `index`.
///
/// # Safety
/// - The clauses of [`measure`] hold. All parts of all sequences and key heads have been measured. The plan measures
///   parts.
pub(super) unsafe fn known_of_all(c: &Context<'_>, index: usize, kv_head: usize) -> Known {
    let mut all = NOTHING;
    for part in 0..c.choice.measured_parts() {
        // SAFETY: the region has room for the part (layout), which has been written (clause).
        let [squares, largest, value, least] = unsafe { place(c, index, kv_head, part).read() };
        all = [larger(all[0], squares), larger(all[1], largest), larger(all[2], value), all[3].min(least)];
    }
    of(c, all)
}

/// Measurements of an empty set of keys.
const NOTHING: [f32; NORMS] = [0.0, 0.0, 0.0, f32::INFINITY];

/// Converts the stored numbers of a part to a [`Known`].
fn of(c: &Context<'_>, [squares, largest, value, least]: [f32; NORMS]) -> Known {
    let dim = c.tensor(Operand::Query).view.dim();
    Known { key: norm([squares, largest], dim), value, least }
}

/// Measures the keys and values of one part; `item` is its index among the parts of all sequences and key heads.
///
/// # Safety
/// - The invariants of [`Context`] hold. The keys of the call are not streamed, and the plan measures parts. Present
///   tensors have been written.
/// - No other worker has the same `item`.
pub(super) unsafe fn measure(shared: &Shared<'_>, item: usize) {
    let c = shared.context;
    let parts = c.choice.measured_parts();
    let (pair, part) = (item / parts, item % parts);
    let (index, kv_head) = (pair / c.problem.kv_heads(), pair % c.problem.kv_heads());
    let sequence = &shared.sequences[index];
    let (any, _) = sequence.ranges(0..sequence.queries);
    let keys = match c.choice.foresees {
        false => any,
        true => {
            let start = part * c.choice.block;
            any.start.max(start)..any.end.min(start + c.choice.block)
        }
    };
    let mut known = NOTHING;
    for (past, new) in [(Operand::PastKey, Operand::Key), (Operand::PastValue, Operand::Value)] {
        let is_key = new == Operand::Key;
        let (past, new) = (c.tensor(past), c.source(new));
        for_past_and_new((past, sequence.past), (new, sequence.key0), &keys, |tensor, token, _, count| {
            let step = tensor.stride() * c.dtype.size();
            let rows = measured(&tensor, (sequence.batch, kv_head, token), count);
            if is_key {
                // SAFETY: the rows are in the sequence (*inputs*), and `known` begins with the two numbers; *kernel*.
                unsafe { (c.kernel.measure.norms)(&rows, known.as_mut_ptr()) };
                return;
            }
            for i in 0..count {
                let mut found = [0.0f32; 2];
                let row = MeasuredRows { data: rows.data.wrapping_add(i * step), rows: 1, ..rows };
                // SAFETY: the row is in the sequence (*inputs*), and `found` has two numbers; *kernel*.
                unsafe { (c.kernel.measure.norms)(&row, found.as_mut_ptr()) };
                let largest = found[1];
                known[2] = larger(known[2], largest);
                known[3] = if largest > 0.0 { known[3].min(largest) } else { known[3] };
            }
        });
    }
    // SAFETY: the region has room for each part (layout), and this one is the worker's (clause).
    unsafe { place(c, index, kv_head, part).write(known) };
}
