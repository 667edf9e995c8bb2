//! Keeps a worker's prepared masks and biases from one task to the next.
//!
//! 1. *Biases of tiles.* If heads or sequences share the rows of a mask or a bias, the tasks of these heads or
//!    sequences are consecutive (`TaskOrder`). The worker keeps the biases of all tiles of the last task, for all keys.
//! 2. *A mask row that all queries share*, for example the row of a padding mask. It is read block by block whenever
//!    the row of a task differs from that of the previous task. The row classifies each block of keys as fully masked,
//!    unmasked or neither.
//! 3. *The entries of a table* for one head, contiguous and in base-2 units.
//! 4. *The side of each token of a shifted window.* Only tokens on the same side attend each other.
//!
//! A header line identifies the kept data.

use super::addends::{self, MaskOf};
use super::context::{Context, TileGroup};
use elsa_kernels::attention::Seen;
use std::ops::Range;

/// Number of 32-bit words in the header line.
const WORDS: usize = 16;

/// Contents of the header, which identifies the data that a worker keeps. The first three numbers identify the biases:
/// their mask rows, their bias rows and their first tile. The other three identify the head of the table entries, the
/// shared mask row, and the sides of the window.
type Names = [usize; 6];

/// The masks and biases that a worker keeps.
#[derive(Clone, Copy)]
pub(super) struct MaskCache {
    /// A word for each block of each tile, `[tile][blocks]`: zero if the block's bias is not kept yet, otherwise the
    /// [`code`] of the block.
    tiles: *mut u32,
    /// Biases of tiles, `[tile][blocks · block][width]`.
    bias: *mut f32,
    /// A word for each block of the shared mask row, as in `tiles`.
    row_words: *mut u32,
    /// Values of the shared mask row, `[blocks · block]`.
    row: *mut f32,
    /// Entries of the bias table for the current head.
    pub entries: *mut f32,
    /// The side of each token in the shifted window; null if all tokens attend each other.
    pub sides: *const f32,
}

/// Encodes a block's [`Seen`] as a nonzero word.
fn code(seen: Seen) -> u32 {
    match seen {
        Seen::Nothing => 1,
        Seen::Plain => 2,
        Seen::Added => 3,
        Seen::Biased => 4,
    }
}

/// Decodes the word of a block; `None` if the block has not been classified.
fn seen_of(word: u32) -> Option<Seen> {
    match word {
        0 => None,
        1 => Some(Seen::Nothing),
        2 => Some(Seen::Plain),
        3 => Some(Seen::Added),
        _ => Some(Seen::Biased),
    }
}

impl MaskCache {
    /// Discards the worker's kept data, if it has any.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. `part` is the worker's region of the workspace.
    pub unsafe fn forget(c: &Context<'_>, part: *mut f32) {
        if c.choice.keeps_something() {
            // SAFETY: the line belongs to the worker (layout).
            unsafe { part.wrapping_add(c.layout.kept_header.start).cast::<Names>().write([usize::MAX; 6]) };
        }
    }

    /// Returns the kept data for a task. Replaces data that the previous task kept and this task cannot use.
    ///
    /// # Safety
    /// - The clauses of [`MaskCache::forget`] hold, and [`MaskCache::forget`] was called at the beginning of the run.
    pub unsafe fn of(c: &Context<'_>, task: &TileGroup<'_>, part: *mut f32) -> MaskCache {
        let (l, choice) = (c.layout, c.choice);
        let line = part.wrapping_add(l.kept_header.start);
        let rows = if choice.row_mask { choice.blocks() } else { 0 };
        let words = l.kept_header.len.saturating_sub(WORDS + rows);
        let tiles = line.wrapping_add(WORDS).cast::<u32>();
        let mut cache = MaskCache {
            tiles,
            bias: part.wrapping_add(l.kept_bias.start),
            row_words: tiles.wrapping_add(words),
            row: part.wrapping_add(l.kept_row.start),
            entries: part.wrapping_add(l.entries.start),
            sides: std::ptr::null(),
        };
        let (batch, head) = (task.sequence.batch, task.heads.start);
        if !choice.keeps_something() {
            return cache;
        }
        let sides = c.problem.spec().windows.and_then(|windows| windows.sides(batch));
        let to = part.wrapping_add(l.sides.start);
        if sides.is_some() {
            cache.sides = to;
        }
        let line = line.cast::<Names>();
        // SAFETY: the line belongs to the worker (layout), and is aligned to 64 bytes.
        let found = unsafe { line.read() };
        let of = |mask: MaskOf| addends::rows(c, mask, batch, head);
        let names: Names = [
            if choice.keeps.mask { of(MaskOf::Mask) } else { 0 },
            if choice.keeps.bias { of(MaskOf::Bias) } else { 0 },
            task.tiles.start,
            if choice.entries > 0 { head } else { 0 },
            if choice.row_mask { of(MaskOf::Mask) } else { 0 },
            // The side of the last token identifies a window: that token is on the far side of each axis that is split.
            sides.map_or(found[5], |sides| sides.of(task.sequence.queries - 1).into()),
        ];
        // SAFETY: the writes cover the line, the words after it, the entries, the row and the sides. Their regions
        // belong to the worker and have room for them (layout).
        unsafe {
            if found[..3] != names[..3] {
                tiles.write_bytes(0, words);
            }
            if choice.entries > 0 && found[3] != names[3] {
                addends::write_entries(c, head, cache.entries);
            }
            if choice.row_mask && found[4] != names[4] {
                cache.read_row(c, task);
            }
            if let Some(sides) = sides.filter(|_| found[5] != names[5]) {
                addends::write_sides(&sides, task.sequence.queries, l.sides.len, to);
            }
            line.write(names);
        }
        cache
    }

    /// Reads the mask row that the queries of the task share, block by block.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold.
    unsafe fn read_row(&self, c: &Context<'_>, task: &TileGroup<'_>) {
        let block = c.choice.block;
        for number in 0..c.choice.blocks() {
            let keys = number * block..task.sequence.keys.min((number + 1) * block);
            // SAFETY: the row has room for all blocks, and there is a word for each (layout).
            unsafe {
                let seen = addends::row(c, task, &keys, self.row.add(keys.start));
                self.row_words.add(number).write(code(seen));
            }
        }
    }

    /// Returns the values that the shared mask row adds in the block that begins at key `start`, and whether they mask
    /// or change the block's scores.
    ///
    /// # Safety
    /// - The plan keeps the shared mask row, and at least one key of the sequence is in the block.
    pub unsafe fn row(&self, c: &Context<'_>, start: usize) -> (Seen, *const f32) {
        // SAFETY: there is a word for each block (layout).
        let word = unsafe { self.row_words.add(start / c.choice.block).read() };
        (seen_of(word).unwrap_or(Seen::Nothing), self.row.wrapping_add(start))
    }

    /// Removes blocks from both ends of `keys` as long as the shared mask row masks all their keys, and returns the
    /// remaining keys.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold; `keys` are in the sequence.
    pub unsafe fn visited(&self, c: &Context<'_>, mut keys: Range<usize>) -> Range<usize> {
        if !c.choice.row_mask {
            return keys;
        }
        let block = c.choice.block;
        // SAFETY: both blocks contain a key of the range, and the plan keeps a row.
        unsafe {
            while keys.start < keys.end && self.row(c, keys.start).0 == Seen::Nothing {
                keys.start = (keys.start / block + 1) * block;
            }
            while keys.start < keys.end && self.row(c, keys.end - 1).0 == Seen::Nothing {
                keys.end = (keys.end - 1) / block * block;
            }
        }
        keys
    }

    /// Returns the bias of a block for the tile with index `place` in the group, and whether it masks or changes the
    /// block's scores. If the bias is not kept yet, `write` computes it.
    ///
    /// # Safety
    /// - The plan keeps biases. `start` is the first key of a block.
    /// - `write` writes at most the biases of one block for a tile of the largest width to its argument.
    pub unsafe fn tile(
        &self,
        c: &Context<'_>,
        place: usize,
        start: usize,
        write: impl FnOnce(*mut f32) -> Seen,
    ) -> (Seen, *const f32) {
        let number = place * c.choice.blocks() + start / c.choice.block;
        let bias = self.bias.wrapping_add(number * c.choice.block * c.choice.width());
        // SAFETY: there is a word for each block of each tile of a group (layout).
        unsafe {
            let word = self.tiles.add(number);
            let seen = seen_of(word.read()).unwrap_or_else(|| {
                let seen = write(bias);
                word.write(code(seen));
                seen
            });
            (seen, bias)
        }
    }
}
