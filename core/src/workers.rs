//! How many workers a call is worth.

/// Multiply-adds per lane that make a worker worth waking.
pub(crate) const WORK_PER_LANE: f64 = 32_768.0;

/// The workers that `work` is worth, from one to `most`, where each takes at least `per_worker` of it.
pub(crate) fn worthwhile(work: f64, per_worker: f64, most: usize) -> usize {
    if per_worker > 0.0 { ((work / per_worker) as usize).clamp(1, most.max(1)) } else { most.max(1) }
}
