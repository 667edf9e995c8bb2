//! The bias of a tile and a block: what masks, lengths, causality and window add to its scores.
//!
//! **The naive way** asks for every row and every key whether the one attends the other.
//!
//! **Why the code differs.**
//!
//! 1. *Intervals first.* Lengths, causality and window decide by the tile's outermost rows whether a block is skipped or
//!    whole ([`coverage`]), and only otherwise is a bias written.
//! 2. *The kernel turns a mask into a bias* and says what it has seen: a block that a mask leaves empty is skipped, and
//!    one that it leaves whole needs no bias.
//! 3. *A bias that tasks share is kept.* Where heads or sequences share the rows of a mask, their tasks follow each other
//!    (`TaskOrder`), and the worker keeps what it has written for the tiles of the last task and all their keys
//!    ([`Kept`]). Intervals, which may differ, are then applied to a copy.

use super::context::{Context, Task, TileRows};
use elsa_core::attention::schedule::{Coverage, coverage, restrict};
use elsa_core::attention::{Added, Inputs, MaskElements, MaskKind, Operand, Sequence};
use elsa_core::dtype::{DType, Elements};
use elsa_kernels::attention::{MaskTile, Seen};
use std::ops::Range;

/// The bias that a worker keeps: words that name the tiles and the rows of the mask, a word for each block of each tile,
/// and the bias of these blocks.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// Words for blocks, `[tile][blocks]`: zero where nothing is known, else [`code`].
    blocks: *mut u32,
    /// `[tile][blocks · block][width]`.
    bias: *mut f32,
}

/// The word of a block of which a mask was seen.
fn code(seen: Seen) -> u32 {
    match seen {
        Seen::Nothing => 1,
        Seen::Plain => 2,
        Seen::Biased => 3,
    }
}

impl Kept {
    /// Forgets what the worker keeps, if anything.
    ///
    /// # Safety
    /// - The invariants of [`Context`]. `part` is the worker's region of the workspace.
    pub unsafe fn forget(c: &Context<'_>, part: *mut f32) {
        if c.choice.keeps_bias {
            // SAFETY: the line belongs to the worker (layout).
            unsafe { part.wrapping_add(c.layout.kept.start).cast::<[usize; 2]>().write([usize::MAX; 2]) };
        }
    }

    /// What the worker keeps for a task; nothing where the plan keeps nothing. What it kept for tasks with other rows of
    /// the mask is forgotten.
    ///
    /// # Safety
    /// - As for [`Kept::forget`], which was called at the beginning of the run.
    pub unsafe fn of(c: &Context<'_>, task: &Task<'_>, part: *mut f32) -> Option<Kept> {
        let view = c.problem.spec().mask.filter(|_| c.choice.keeps_bias)?;
        let line = part.wrapping_add(c.layout.kept.start);
        let words = c.layout.kept.len - WORDS;
        let blocks = line.wrapping_add(WORDS).cast::<u32>();
        let name = [view.row(task.sequence.batch, task.head, 0).start, task.tiles.start];
        // SAFETY: the line and the words after it belong to the worker (layout), and a line is aligned to 64 bytes.
        unsafe {
            let at = line.cast::<[usize; 2]>();
            if at.read() != name {
                blocks.write_bytes(0, words);
                at.write(name);
            }
        }
        Some(Kept { blocks, bias: part.wrapping_add(c.layout.kept_bias.start) })
    }
}

/// Words of the line that names what is kept.
const WORDS: usize = 16;

/// The bias of a tile and a block: a null pointer if every row attends every key, `None` if no row attends a key. A task
/// that has [`Kept`] names the tile by its place in the group.
///
/// # Safety
/// - The invariants of [`Context`]. `part` is the worker's region of the workspace, and `keys` are those of a block, or
///   its first ones.
pub(super) unsafe fn cover(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    keys: &Range<usize>,
    part: *mut f32,
    kept: Option<(Kept, usize)>,
) -> Option<*const f32> {
    let (sequence, rows, width) = (tile.sequence, &tile.rows, tile.width);
    match coverage(c.problem, sequence, rows.clone(), keys.clone()) {
        Coverage::Skip => return None,
        Coverage::Full => return Some(std::ptr::null()),
        Coverage::Partial => {}
    }
    let (_, all) = sequence.ranges(rows.clone());
    let whole = all.start <= keys.start && keys.end <= all.end;
    let at = part.wrapping_add(c.layout.bias.start);
    // SAFETY: the region for the bias holds a block of the widest tile, and so does every block of what is kept (layout);
    // both belong to the worker.
    let (seen, bias) = unsafe {
        match kept {
            Some((kept, place)) => {
                let number = place * c.choice.blocks() + keys.start / c.choice.block;
                let bias = kept.bias.wrapping_add(number * c.choice.block * c.choice.width());
                let word = kept.blocks.add(number);
                let seen = match word.read() {
                    0 => {
                        let all = keys.start..sequence.keys.min(keys.start + c.choice.block);
                        let seen = masked(c, tile, &all, bias);
                        word.write(code(seen));
                        seen
                    }
                    1 => Seen::Nothing,
                    2 => Seen::Plain,
                    _ => Seen::Biased,
                };
                (seen, bias)
            }
            None => (masked(c, tile, keys, at), at),
        }
    };
    match (seen, whole) {
        (Seen::Nothing, _) => return None,
        (Seen::Plain, true) => return Some(std::ptr::null()),
        (Seen::Biased, true) => return Some(bias),
        (Seen::Plain | Seen::Biased, false) => {}
    }
    // Keys that the mask does not reach are attended by no row, and have no bias of their own.
    let written = if seen == Seen::Biased { reach(c, sequence).min(keys.end) - keys.start } else { 0 };
    // SAFETY: the region holds a block of the widest tile (layout), all of it initialised: workspaces begin as zeros.
    // What is kept lies elsewhere, and its first `written` keys were written.
    let slice = unsafe {
        if bias != at {
            at.copy_from_nonoverlapping(bias, written * width);
        }
        std::slice::from_raw_parts_mut(at, keys.len() * width)
    };
    slice[written * width..].fill(0.0);
    restrict(sequence, rows.clone(), keys.clone(), width, slice);
    Some(at)
}

/// The keys that mask and bias cover.
fn reach(c: &Context<'_>, sequence: &Sequence) -> usize {
    let spec = c.problem.spec();
    let mask = spec.mask.map_or(sequence.keys, |mask| mask.reach(sequence.keys));
    spec.bias.map_or(mask, |bias| bias.reach(sequence.keys).min(mask))
}

/// Writes what mask, bias and sides of windows add to a tile and the keys of a block to `at`, pair by pair.
///
/// # Safety
/// - As for [`masked`].
unsafe fn added(c: &Context<'_>, tile: &TileRows<'_>, keys: &Range<usize>, at: *mut f32) -> Seen {
    let spec = c.problem.spec();
    let elements = |operand: Operand, dtype: DType| {
        let (data, len) =
            (c.tensor(operand).data, c.problem.memory(operand).map_or(0, |memory| memory.elements));
        // SAFETY: the tensors are readable for their elements (*inputs*).
        unsafe {
            match dtype {
                DType::F32 => Elements::F32(std::slice::from_raw_parts(data.cast(), len)),
                DType::F16 => Elements::F16(std::slice::from_raw_parts(data.cast(), len)),
                DType::Bf16 => Elements::Bf16(std::slice::from_raw_parts(data.cast(), len)),
            }
        }
    };
    let mut inputs = Inputs::new(Elements::F32(&[]), Elements::F32(&[]), Elements::F32(&[]));
    inputs.bias = spec.bias.map(|bias| elements(Operand::Bias, bias.dtype()));
    if let Some(memory) = c.problem.memory(Operand::BiasIndex) {
        // SAFETY: as above.
        let index =
            unsafe { std::slice::from_raw_parts(c.tensor(Operand::BiasIndex).data.cast(), memory.elements) };
        inputs.bias_index = Some(index);
    }
    inputs.mask = spec.mask.map(|mask| match mask.kind() {
        MaskKind::Additive(dtype) => MaskElements::Additive(elements(Operand::Mask, dtype)),
        // SAFETY: as above.
        MaskKind::Bool => MaskElements::Bool(unsafe {
            std::slice::from_raw_parts(c.tensor(Operand::Mask).data, mask.extent())
        }),
    });
    let added = Added::new(c.problem, &inputs);
    let (mut any, mut plain) = (false, true);
    for key in keys.start..keys.end.min(reach(c, tile.sequence)) {
        for column in 0..tile.width {
            let row = (tile.rows.start + column).min(tile.rows.end - 1);
            let x = added.at(tile.sequence.batch, tile.head, row, key);
            any |= x != f32::NEG_INFINITY;
            plain &= x == 0.0;
            // SAFETY: a block of the widest tile is writable (clause).
            unsafe { at.add((key - keys.start) * tile.width + column).write(x) };
        }
    }
    match (any, plain) {
        (false, _) => Seen::Nothing,
        (true, true) => Seen::Plain,
        _ => Seen::Biased,
    }
}

/// Writes what a mask adds to a tile and the keys of a block to `at`, and says what it has seen.
///
/// # Safety
/// - The invariants of [`Context`]. A block of the widest tile is writable at `at`.
unsafe fn masked(c: &Context<'_>, tile: &TileRows<'_>, keys: &Range<usize>, at: *mut f32) -> Seen {
    let mut seen = Seen::Plain;
    if c.problem.spec().bias.is_some() || c.problem.spec().windows.is_some() {
        // SAFETY: the clauses of this function.
        return unsafe { added(c, tile, keys, at) };
    }
    let Some(view) = &c.problem.spec().mask else { return seen };
    let row = view.row(tile.sequence.batch, tile.head, tile.rows.start);
    let mask = MaskTile {
        data: c.tensor(Operand::Mask).data.wrapping_add(row.index(keys.start) * view.kind().size()),
        kind: view.kind(),
        stride: if view.same_for_all_queries() { 0 } else { view.strides()[2] },
        same_for_all_keys: row.step == 0,
        before: keys.start * row.step,
        rows: tile.rows.len(),
        keys: view.reach(tile.sequence.keys).min(keys.end) - keys.start,
    };
    // SAFETY: rows and keys lie in the mask (*inputs*), and there is room for their bias (clause); *kernel*.
    unsafe { (c.kernel.bias)(&mask, tile.width, at, &mut seen) };
    seen
}
