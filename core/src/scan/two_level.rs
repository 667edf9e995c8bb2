//! The two-level scan of ELSA, section 4.2: Hillis and Steele's scan within blocks of `B` elements, Blelloch's scan
//! over the totals of the blocks, then one merge of each element with the prefix before its block.
//!
//! ```text
//! each block      inclusive scan of its elements             ceil(log2 B) merges
//! the totals      exclusive scan by up-sweep, down-sweep     at most 2 ceil(log2(n / B)) − 1
//! each element    prefix before its block ⊕ the element      1; none in the first block
//! ```
//!
//! A reduction only needs the total of every block and the up-sweep over them.

use super::depth::ceil_log2;
use super::slots::{Slots, Stretch, check_scratch};
use super::{blelloch, hillis_steele};
use crate::argument::ArgumentError;

/// Returns the number of blocks for `n` elements. The last block may be shorter. A block size of zero counts as one.
#[must_use]
pub const fn blocks(n: usize, block: usize) -> usize {
    n.div_ceil(at_least_one(block))
}

const fn at_least_one(block: usize) -> usize {
    if block == 0 { 1 } else { block }
}

/// Returns the number of scratch elements: one per block, plus the length of one block.
#[must_use]
pub const fn scratch_len(n: usize, block: usize) -> usize {
    blocks(n, block) + if n < at_least_one(block) { n } else { at_least_one(block) }
}

/// Scans every block separately and copies its total to the scratch. Returns the totals, one element per block.
fn scan_blocks<S: Slots + ?Sized>(slots: &mut S, block: usize) -> Result<Stretch<'_, S>, ArgumentError> {
    let n = slots.len();
    check_scratch(slots, scratch_len(n, block))?;
    let (count, size) = (blocks(n, block), at_least_one(block));
    for index in 0..count {
        let start = index * size;
        let len = size.min(n - start);
        hillis_steele::between(slots, start, len, n + count);
        slots.copy(start + len - 1, n + index);
    }
    Ok(Stretch { slots, start: n, len: count })
}

/// Replaces every element by the prefix that ends with it.
///
/// # Errors
/// Returns an error if the scratch is shorter than [`scratch_len`].
pub fn inclusive<S: Slots + ?Sized>(slots: &mut S, block: usize) -> Result<(), ArgumentError> {
    blelloch::exclusive(&mut scan_blocks(slots, block)?);
    let n = slots.len();
    // The first block has no prefix.
    for at in at_least_one(block)..n {
        slots.combine(n + at / at_least_one(block), at);
    }
    Ok(())
}

/// Reduces the elements and returns the place of their total, which is in the scratch; `None` if there are no elements.
///
/// # Errors
/// Returns an error if the scratch is shorter than [`scratch_len`].
pub fn reduce<S: Slots + ?Sized>(slots: &mut S, block: usize) -> Result<Option<usize>, ArgumentError> {
    let mut totals = scan_blocks(slots, block)?;
    Ok(blelloch::reduce(&mut totals).map(|at| totals.start + at))
}

/// Returns the depth of [`reduce`]: `ceil(log2 B) + ceil(log2 blocks)`, or `ceil(log2 n)` if there is only one block.
#[must_use]
pub const fn reduction_depth(n: usize, block: usize) -> usize {
    let block = at_least_one(block);
    if n <= block { ceil_log2(n) } else { ceil_log2(block) + ceil_log2(blocks(n, block)) }
}

/// Returns the depth of [`inclusive`]: `ceil(log2 n)` if there is only one block, otherwise `ceil(log2 B) + D + 1`. `D`
/// is the [`blelloch::exclusive_depth`] of the number of blocks.
///
/// All blocks before the last are full, and the total of the last block reaches no output. All totals that reach an output
/// are therefore `ceil(log2 B)` deep, and the prefix of a block is always at least as deep as its elements. One merge on a
/// longest path is with the identity.
#[must_use]
pub const fn inclusive_depth(n: usize, block: usize) -> usize {
    let block = at_least_one(block);
    if n <= block { ceil_log2(n) } else { ceil_log2(block) + blelloch::exclusive_depth(blocks(n, block)) + 1 }
}
