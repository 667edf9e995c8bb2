//! The order in which a tile visits blocks of keys.

use super::setting::Order;
use crate::attention::sequence::Sequence;
use core::ops::Range;

/// Returns the own blocks of a tile with the rows `rows`: the blocks of `keys` keys that contain the diagonal of some
/// row.
#[must_use]
pub fn own_blocks(sequence: &Sequence, rows: &Range<usize>, keys: usize) -> Range<usize> {
    let diagonal = |i: usize| sequence.offset().saturating_add_unsigned(i).max(0).unsigned_abs();
    diagonal(rows.start) / keys..diagonal(rows.end).div_ceil(keys)
}

/// A visit of a block of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Index of the block, counted from the first key of the sequence.
    pub block: usize,
    /// `true` if the block is the sink or one of the tile's own blocks.
    pub special: bool,
}

/// Iterates over the visits of a tile that attends keys in `blocks`, with one visit for each block. `own` are the
/// blocks on the tile's diagonal; those outside `blocks` are ignored. The sink is block zero, if it is among `blocks`.
pub fn visits(order: Order, blocks: Range<usize>, own: Range<usize>) -> impl Iterator<Item = Visit> {
    let own = own.start.clamp(blocks.start, blocks.end)..own.end.clamp(blocks.start, blocks.end);
    let is_special = move |block: usize| block == 0 || own.contains(&block);
    // Sequential order takes one pass over all blocks. The other order takes two, the first over the special blocks.
    let passes = match order {
        Order::Sequential => 1,
        Order::SinkOwnRest => 2,
    };
    (0..passes).flat_map(move |pass| {
        let is_special = is_special.clone();
        blocks
            .clone()
            .map(move |block| Visit { block, special: is_special(block) })
            .filter(move |visit| passes == 1 || visit.special == (pass == 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(order: Order, blocks: Range<usize>, own: Range<usize>) -> heapless::Vec<(usize, bool), 16> {
        visits(order, blocks, own).map(|visit| (visit.block, visit.special)).collect()
    }

    #[test]
    fn sink_and_own_come_first() {
        assert_eq!(
            list(Order::SinkOwnRest, 0..6, 3..5),
            [(0, true), (3, true), (4, true), (1, false), (2, false), (5, false)]
        );
        assert_eq!(list(Order::Sequential, 0..4, 2..3), [(0, true), (1, false), (2, true), (3, false)]);
        // The first tile has a window that does not reach the sink. The next three tiles have a diagonal at the sink,
        // beyond the end, and in no block.
        assert_eq!(list(Order::SinkOwnRest, 2..5, 4..5), [(4, true), (2, false), (3, false)]);
        assert_eq!(list(Order::SinkOwnRest, 0..3, 0..1), [(0, true), (1, false), (2, false)]);
        assert_eq!(list(Order::SinkOwnRest, 0..3, 7..9), [(0, true), (1, false), (2, false)]);
        assert_eq!(list(Order::SinkOwnRest, 1..3, 0..0), [(1, false), (2, false)]);
        assert_eq!(list(Order::SinkOwnRest, 3..3, 3..4), []);
    }
}
