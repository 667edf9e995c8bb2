//! Limits the number of workers for a call according to the amount of work.

/// Smallest number of multiply-adds per lane that justifies waking a worker.
pub(crate) const WORK_PER_LANE: f64 = 32_768.0;

/// Returns the number of workers, from one to `most`, for the amount of work `work`. If more than one worker takes
/// part, each gets at least `per_worker` of this amount. All `most` workers take part if `per_worker` is zero.
pub(crate) fn worthwhile(work: f64, per_worker: f64, most: usize) -> usize {
    if per_worker > 0.0 { ((work / per_worker) as usize).clamp(1, most.max(1)) } else { most.max(1) }
}
