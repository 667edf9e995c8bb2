//! Resident query tiles on the CPU: the memory that is kept while chunks of keys are streamed, and a pass over one
//! chunk.
//!
//! A pass is the traversal of an in-memory call, restricted to the blocks of the chunk. Buffers contain excerpts of
//! tensors. A pass uses the address that the first byte of the complete tensor would have, not the address of the
//! excerpt. Rows, heads and keys therefore keep their indices, and no loop has to know about excerpts. Nothing outside
//! the excerpt is read.

use super::context::{Context, Pass, TileGroup};
use super::mask_cache::MaskCache;
use super::plan::CpuPlan;
use super::{measure, walk};
use crate::cpu::memory::{Bytes, Memory};
use crate::cpu::pool::Crew;
use crate::error::RunError;
use elsa_core::attention::{BiasView, MaskView, Operand, Operands, Problem, Sequence};
use elsa_core::view::View;
use std::ops::Range;
use std::ptr;

/// A unit of streamed rows: a box with a range of sequences, a range of query heads and a range of query tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Index of the unit.
    pub number: usize,
    /// Range of sequences.
    pub sequences: Range<usize>,
    /// Range of query heads.
    pub heads: Range<usize>,
    /// Range of query tiles within each head.
    pub tiles: Range<usize>,
    /// Range of query rows within each head, counted from the first query of the sequence.
    pub rows: Range<usize>,
}

/// The place of a tensor's excerpt in one of the buffers of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The shape of the tensor, with the strides of the excerpt.
    pub view: View,
    /// Offset in bytes from the start of the buffer to the excerpt.
    pub at: usize,
    /// Distance in bytes from the tensor's first row to the first row of the excerpt, computed with the excerpt's
    /// strides. It is negative for new keys that follow past keys in a chunk.
    pub skip: isize,
}

/// The excerpts that a pass uses. Absent operands are `None`.
#[derive(Clone, Debug)]
pub struct Places {
    /// Place of each operand: inputs are in the buffer of the chunk, and outputs are in the buffer of the rows.
    pub operands: Operands<Option<Place>>,
    /// Mask with the strides of its excerpt.
    pub mask: Option<MaskView>,
    /// Bias with the strides of its excerpt.
    pub bias: Option<BiasView>,
    /// Distance from one query to the next in the index of the bias, in elements.
    pub index_stride: usize,
    /// `true` if the bias is a table, which is then in the buffer of tables.
    pub table: bool,
}

/// The memory of a run: the workspace with the resident tiles, the output rows, and the bias table.
#[derive(Debug)]
pub struct Resident {
    memory: Memory,
    /// Buffer for output, log-sum-exp and states of a unit.
    pub rows: Bytes,
    /// The bias table, which contains a bias for each relative position.
    pub table: Bytes,
    /// The sequences of a unit.
    pub sequences: Vec<Sequence>,
}

/// Returns the tensors of a context that uses none of them.
fn absent(plan: &CpuPlan) -> (&Operands<View>, Operands<*mut u8>) {
    (&plan.views, Operands::from_fn(|_| ptr::null_mut()))
}

impl Resident {
    /// Allocates the memory of a run. Returns `None` if the system refuses the allocation.
    pub fn new(plan: &CpuPlan, rows: usize, table: usize, sequences: usize) -> Option<Resident> {
        let (rows, table) = (Bytes::zeroed(rows)?, Bytes::zeroed(table)?);
        let mut list = Vec::new();
        list.try_reserve_exact(sequences).ok()?;
        let memory = Memory::allocate(plan.layout.bytes())?;
        Some(Resident { memory, rows, table, sequences: list })
    }

    /// Writes to all of the memory, so that the system maps every page.
    pub fn touch(&mut self) {
        self.rows.touch();
        self.table.touch();
    }

    /// Measures elements of a mask or a bias for the certificate of the run: the elements in the first `bytes` bytes of
    /// `piece`, or the elements of the bias table if `piece` is `None`. The plan must have the option
    /// [`certify`](crate::PlanOptions::certify).
    pub fn measure(
        &mut self,
        plan: &CpuPlan,
        problem: &Problem,
        operand: Operand,
        piece: Option<(&Bytes, usize)>,
    ) {
        let Some(dtype) = problem.added_type(operand) else { return };
        let (base, _) = self.memory.lines();
        let context = Context::of(plan, problem, absent(plan), base);
        let (data, bytes) = match piece {
            Some((piece, bytes)) => (piece.data(), bytes.min(piece.as_slice().len())),
            None => (self.table.data(), self.table.as_slice().len()),
        };
        // SAFETY: all elements are in the buffer, which is aligned to a line. No worker is active, so nothing else uses
        // worker zero's record, and memory is zero until it is written. The workspace has the plan's layout, and the
        // engine ensures that the CPU has the instruction set of the plan's kernel.
        unsafe { measure::addends(&context, operand, data.cast_const(), bytes / dtype.size(), 0) };
    }

    /// Writes the measurements of the run to `record`, which has the length of a record in the plan's layout.
    pub fn measured(&mut self, plan: &CpuPlan, problem: &Problem, record: &mut [f32]) {
        let (base, _) = self.memory.lines();
        let context = Context::of(plan, problem, absent(plan), base);
        // SAFETY: no worker is active, records are initialised from the start on, and the workspace has the plan's layout.
        unsafe { measure::joined(&context, plan.choice.workers, record) };
    }

    /// Computes a pass: adds the keys of a chunk to the states of a unit, and writes the unit's outputs if `ends` is
    /// set. `self.sequences` are the sequences of the unit. If `begins` is set, the unit's queries are in the chunk.
    ///
    /// `places` must come from `Regions` of the same problem and choice, for the same unit and keys, and `chunk` and
    /// `self.rows` must have the sizes that they require. Inputs are in `chunk`, for the rows of the unit and for
    /// `keys`; outputs are in `self.rows`, without overlap. A bias table is complete. If `begins` is not set, the
    /// previous pass was for the same unit and for the keys just before `keys`. The engine ensures that the CPU has the
    /// kernel's instruction set.
    ///
    /// # Errors
    /// Returns an error if a worker panicked, or if the call was cancelled.
    pub fn pass(
        &mut self,
        plan: &CpuPlan,
        problem: &Problem,
        crew: &Crew<'_>,
        unit: &Unit,
        places: &Places,
        chunk: &Bytes,
        (keys, begins, ends): (Range<usize>, bool, bool),
    ) -> Result<(), RunError> {
        let (base, _) = self.memory.lines();
        let at = |operand: Operand| {
            let buffer = match operand {
                _ if operand.is_written() => self.rows.data(),
                Operand::Bias if places.table => self.table.data(),
                _ => chunk.data(),
            };
            places.operands[operand].map_or(ptr::null_mut(), |place| {
                buffer.wrapping_add(place.at).wrapping_offset(place.skip.wrapping_neg())
            })
        };
        let view = |operand| places.operands[operand].map_or(View::EMPTY, |place| place.view);
        let views = Operands::from_fn(view);
        let mut context = Context::of(plan, problem, (&views, Operands::from_fn(at)), base);
        (context.mask, context.bias) = (places.mask, places.bias);
        context.index_stride = places.index_stride;
        context.pass = Pass { keys, begins, ends };
        let (c, sequences) = (&context, &self.sequences);
        if begins {
            for worker in 0..c.choice.workers {
                // SAFETY: no worker is active yet, and the workspace has the plan's layout.
                unsafe { MaskCache::forget(c, c.worker_part(worker)) };
            }
        }
        let (tiles, group) = (unit.tiles.len(), c.choice.group.max(1));
        let groups = tiles.div_ceil(group);
        let tasks = sequences.len() * unit.heads.len() * groups;
        crew.divide(c.choice.workers, tasks, &|worker, number| {
            let (head, inside) = (number / groups, (number % groups) * group);
            let (sequence, head) = (head / unit.heads.len(), head % unit.heads.len());
            let first = unit.tiles.start + inside;
            let task = TileGroup {
                sequence: &sequences[sequence],
                index: sequence,
                heads: unit.heads.start + head..unit.heads.start + head + 1,
                tiles: first..unit.tiles.end.min(first + group),
                number,
                resident: Some((sequence * unit.heads.len() + head) * tiles + inside),
            };
            // This is the number of the unit's heads that share the task's key head.
            let sharing = problem.group().min(unit.heads.len());
            let share = [head % sharing * groups + number % groups, sharing * groups];
            // SAFETY: the caller's guarantees are the invariants of the context. The pool gives each task to one
            // worker, and each worker has its own number. Different tasks have different resident tiles, and the layout
            // has room for the tiles of the largest unit. Records are zero until they are written.
            unsafe {
                if c.choice.certify {
                    if begins {
                        measure::queries(c, &task, worker);
                    }
                    measure::keys(c, &task, share, worker);
                }
                walk::attend(c, &task, worker, crew);
                if c.choice.certify && ends {
                    measure::output(c, &task, worker);
                }
            }
        })
    }
}
