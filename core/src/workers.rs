//! Limits the number of workers of a call according to its work.

/// Number of multiply-adds per lane that justify waking a worker.
pub(crate) const WORK_PER_LANE: f64 = 32_768.0;

/// Returns the number of workers for `work`, from one to `most`, such that each worker gets at least `per_worker` of
/// the work. All `most` workers take part if `per_worker` is zero.
pub(crate) fn worthwhile(work: f64, per_worker: f64, most: usize) -> usize {
    if per_worker > 0.0 { ((work / per_worker) as usize).clamp(1, most.max(1)) } else { most.max(1) }
}
