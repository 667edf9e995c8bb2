//! Channels of keys and values: the numbers that the bounds of a run with split operands need in addition to a row's own.

use crate::attention::data::Inputs;
use crate::attention::problem::Problem;

/// Writes the largest magnitude of each channel of the keys, `[d]`, and of the values, `[d_v]`, over all keys of sequence
/// `sequence` that query head `head` may read. The problem has no past. NaN counts as infinity.
pub fn channels(
    problem: &Problem,
    inputs: &Inputs<'_>,
    (sequence, head): (usize, usize),
    keys: &mut [f64],
    values: &mut [f64],
) {
    let (spec, s, kv_head) =
        (problem.spec(), problem.sequence(&inputs.lengths, sequence), problem.kv_head(head));
    for (view, elements, largest) in [(&spec.key, &inputs.key, keys), (&spec.value, &inputs.value, values)] {
        largest.fill(0.0);
        for j in 0..s.reach() {
            let at = view.row(s.batch, kv_head, s.key0 + j);
            for (c, largest) in largest.iter_mut().enumerate() {
                let x = f64::from(elements.get(at + c)).abs();
                *largest = if x.is_nan() { f64::INFINITY } else { largest.max(x) };
            }
        }
    }
}

/// Returns `Σ_c |scale q_c| K_c` for the channels `K` of the keys, for [`Score::split`](super::Score::split).
#[must_use]
pub fn reach(scale: f64, query: &[f32], keys: &[f64]) -> f64 {
    let terms = query.iter().zip(keys).map(|(q, k)| if *k == 0.0 { 0.0 } else { f64::from(*q).abs() * k });
    libm::fabs(scale) * terms.sum::<f64>()
}
