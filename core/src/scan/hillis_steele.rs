//! Hillis and Steele's scan: in step `t` every element meets the one `2^t` before it.
//!
//! Here as a gather between two buffers, which is what a block of threads does in shared memory: every
//! element of the next buffer is computed from the present one, elements without a partner are copied, and
//! one barrier per step is enough. It executes about `n log2 n` merges, against `n` of [`super::blelloch`],
//! at the least depth a prefix form can have.

use super::depth::ceil_log2;
use super::form::ScanError;
use crate::monoid::Monoid;

/// Steps over `n` elements: `ceil(log2 n)`.
#[must_use]
pub const fn steps(n: usize) -> usize {
    ceil_log2(n)
}

/// The element that comes before element `i` in a step: `next[i] ← now[source] ⊕ now[i]`. None when
/// `next[i]` is a copy.
#[must_use]
pub const fn source(step: usize, i: usize) -> Option<usize> {
    i.checked_sub(1 << step)
}

/// Elements of scratch over `n` elements: as many.
#[must_use]
pub const fn scratch_len(n: usize) -> usize {
    n
}

/// Replaces every element by the prefix that ends with it.
///
/// # Errors
/// A scratch shorter than [`scratch_len`].
pub fn inclusive<M: Monoid>(items: &mut [M], scratch: &mut [M]) -> Result<(), ScanError> {
    let n = items.len();
    let found = scratch.len();
    let Some(scratch) = scratch.get_mut(..n) else {
        return Err(ScanError::Scratch { found, needed: n });
    };
    let (mut now, mut next) = (items, scratch);
    for step in 0..steps(n) {
        for i in 0..n {
            next[i] = match source(step, i) {
                Some(before) => now[before].combine(&now[i]),
                None => now[i].clone(),
            };
        }
        core::mem::swap(&mut now, &mut next);
    }
    if steps(n) % 2 == 1 {
        // The result lies in the scratch.
        next.clone_from_slice(now);
    }
    Ok(())
}

/// The total, as the last prefix; the identity of no elements. All prefixes are computed.
///
/// # Errors
/// A scratch shorter than [`scratch_len`].
pub fn reduce<M: Monoid>(items: &mut [M], scratch: &mut [M]) -> Result<M, ScanError> {
    inclusive(items, scratch)?;
    Ok(items.last().cloned().unwrap_or_else(M::identity))
}

/// Depth of [`inclusive`] and [`reduce`]: `ceil(log2 n)`.
#[must_use]
pub const fn depth(n: usize) -> usize {
    ceil_log2(n)
}
