//! The two-level scan of ELSA, section 4.2: Hillis and Steele within blocks of `B` elements, Blelloch over
//! the totals of the blocks, then one merge of each block's prefix with each of its elements.
//!
//! ```text
//! every block     its own inclusive scan                     ceil(log2 B) merges
//! the totals      exclusive scan by up-sweep, down-sweep     at most 2 ceil(log2(n / B)) − 1
//! every element   prefix of its block ⊕ itself               1; the first block has none
//! ```
//!
//! A reduction needs only the total of every block and the up-sweep over them.

use super::depth::ceil_log2;
use super::form::ScanError;
use super::{blelloch, hillis_steele};
use crate::monoid::Monoid;

/// Blocks of `n` elements, the last of which may be shorter. A block size of zero counts as one.
#[must_use]
pub const fn blocks(n: usize, block: usize) -> usize {
    n.div_ceil(at_least_one(block))
}

const fn at_least_one(block: usize) -> usize {
    if block == 0 { 1 } else { block }
}

/// Elements of scratch: one per block, and those of one block.
#[must_use]
pub const fn scratch_len(n: usize, block: usize) -> usize {
    blocks(n, block) + if n < at_least_one(block) { n } else { at_least_one(block) }
}

/// Scans every block on its own and brings their totals to the start of the scratch. Returns the totals.
fn scan_blocks<'a, M: Monoid>(
    items: &mut [M],
    block: usize,
    scratch: &'a mut [M],
) -> Result<&'a mut [M], ScanError> {
    let needed = scratch_len(items.len(), block);
    if scratch.len() < needed {
        return Err(ScanError::Scratch { found: scratch.len(), needed });
    }
    let (totals, buffer) = scratch.split_at_mut(blocks(items.len(), block));
    for (part, total) in items.chunks_mut(at_least_one(block)).zip(totals.iter_mut()) {
        *total = hillis_steele::reduce(part, buffer)?;
    }
    Ok(totals)
}

/// Replaces every element by the prefix that ends with it.
///
/// # Errors
/// A scratch shorter than [`scratch_len`].
pub fn inclusive<M: Monoid>(items: &mut [M], block: usize, scratch: &mut [M]) -> Result<(), ScanError> {
    let prefixes = scan_blocks(items, block, scratch)?;
    blelloch::exclusive(prefixes);
    // Nothing comes before the first block.
    for (part, before) in items.chunks_mut(at_least_one(block)).zip(prefixes).skip(1) {
        for x in part {
            *x = before.combine(x);
        }
    }
    Ok(())
}

/// The total; the identity of no elements.
///
/// # Errors
/// A scratch shorter than [`scratch_len`].
pub fn reduce<M: Monoid>(items: &mut [M], block: usize, scratch: &mut [M]) -> Result<M, ScanError> {
    scan_blocks(items, block, scratch).map(blelloch::reduce)
}

/// Depth of [`reduce`]: `ceil(log2 B) + ceil(log2 blocks)`, and `ceil(log2 n)` within one block.
#[must_use]
pub const fn reduction_depth(n: usize, block: usize) -> usize {
    let block = at_least_one(block);
    if n <= block { ceil_log2(n) } else { ceil_log2(block) + ceil_log2(blocks(n, block)) }
}

/// Depth of [`inclusive`]: `ceil(log2 B) + D + 1` with `D` the [`blelloch::exclusive_depth`] of the blocks,
/// and `ceil(log2 n)` within one block.
///
/// All blocks but the last are whole, and the last one's total reaches no output. So every leaf that counts
/// is `ceil(log2 B)` deep, and the prefix of a block is always at least as deep as its elements. One merge of
/// a longest path is with the identity.
#[must_use]
pub const fn inclusive_depth(n: usize, block: usize) -> usize {
    let block = at_least_one(block);
    if n <= block { ceil_log2(n) } else { ceil_log2(block) + blelloch::exclusive_depth(blocks(n, block)) + 1 }
}
