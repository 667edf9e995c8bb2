//! A checked call: a plan, the tensors of a frame and a workspace, ready to be divided among workers.

use super::pool::Pool;
use super::workspace::Workspace;
use super::{math, stage, tile};
use crate::error::{BindError, RunError};
use crate::targets::Targets;
use elsa_core::attention::plan::{CpuChoice, Method, WorkspaceLayout};
use elsa_core::attention::{Inputs, Problem, Sequence};
use elsa_core::dtype::{DType, Elements};
use elsa_core::view::View;
use elsa_kernels::attention::Kernel;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A tensor that is read: its view, and its first element.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub view: View,
    pub data: *const u8,
}

/// A tensor that is written: its view, and its first element.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub view: View,
    pub data: *mut u8,
}

impl Source {
    fn new(view: View, elements: Elements<'_>) -> Source {
        let data = match elements {
            Elements::F32(x) => x.as_ptr().cast(),
            Elements::F16(x) => x.as_ptr().cast(),
            Elements::Bf16(x) => x.as_ptr().cast(),
        };
        Source { view, data }
    }

    /// First byte of a row.
    pub fn row(&self, batch: usize, head: usize, token: usize, dtype: DType) -> *const u8 {
        self.data.wrapping_add(self.view.row(batch, head, token) * dtype.size())
    }

    /// Elements from one token to the next.
    pub fn stride(&self) -> usize {
        self.view.strides()[2]
    }
}

impl Target {
    /// First byte of a row.
    pub fn row(&self, batch: usize, head: usize, token: usize, dtype: DType) -> *mut u8 {
        self.data.wrapping_add(self.view.row(batch, head, token) * dtype.size())
    }
}

/// What all workers of a call share.
///
/// Invariants, established by [`Call::new`] and kept for as long as the call borrows its tensors:
/// - *inputs*: every row of every source is readable for its dims in `dtype`.
/// - *outputs*: every row of every target is writable, and rows of one target share no element; `lse` and the
///   state arrays are null or writable for a single (or `d_v`) per row of the problem.
/// - *workspace*: `base` is writable for `layout.total` singles, on a line of 64 bytes.
/// - *kernel*: the instruction set of `kernel` is present.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub kernel: &'static Kernel,
    pub problem: &'a Problem,
    pub choice: &'a CpuChoice,
    pub layout: &'a WorkspaceLayout,
    pub inputs: Inputs<'a>,
    pub dtype: DType,
    pub query: Source,
    pub key: Source,
    pub value: Source,
    pub past_key: Option<Source>,
    pub past_value: Option<Source>,
    pub present_key: Option<Target>,
    pub present_value: Option<Target>,
    pub output: Target,
    pub lse: *mut f32,
    pub state_m: *mut f32,
    pub state_s: *mut f32,
    pub state_w: *mut f32,
    pub base: *mut f32,
    pub cap: f32,
    pub query_factor: f32,
}

/// A call's context with its sequences, as workers see it.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub context: &'a Context<'a>,
    pub sequences: &'a [Sequence],
    /// First unit of each sequence, and the total at the end.
    pub units: &'a [usize],
}

// SAFETY: workers read the sources, and write disjoint parts: each worker its own part of the workspace, each
// unit its own rows of the targets (invariants *outputs* and *workspace*).
unsafe impl Sync for Context<'_> {}

/// One share of the work: the tiles of a group.
pub(super) struct Unit<'a> {
    pub sequence: &'a Sequence,
    pub head: usize,
    /// First tile, and one past the last.
    pub tiles: (usize, usize),
    /// Number of the unit's first tile among all of the call (method math only, one tile a unit).
    pub number: usize,
}

impl<'a> Shared<'a> {
    /// Units in all.
    pub fn count(&self) -> usize {
        self.units.last().copied().unwrap_or(0)
    }

    /// Unit `u`.
    pub fn unit(&self, u: usize) -> Unit<'a> {
        let index = self.units.partition_point(|first| *first <= u) - 1;
        let sequence = &self.sequences[index];
        let choice = self.context.choice;
        let tiles = choice.tiling(sequence.queries).count();
        let groups = tiles.div_ceil(group(choice));
        let inside = u - self.units[index];
        let first = inside % groups * group(choice);
        let last = (first + group(choice)).min(tiles);
        Unit { sequence, head: inside / groups, tiles: (first, last), number: u }
    }
}

/// Tiles in a unit.
fn group(choice: &CpuChoice) -> usize {
    match choice.method {
        Method::Elsa => choice.group,
        Method::Math => 1,
    }
}

/// A call that was checked.
pub struct Call<'a> {
    context: Context<'a>,
    workspace: &'a mut Workspace,
    /// The targets are borrowed for as long as the call lives.
    outputs: PhantomData<&'a mut ()>,
}

// SAFETY: a call holds what references would hold: sources shared, targets and workspace exclusively.
unsafe impl Send for Call<'_> {}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("choice", self.context.choice).finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    /// Checks the workspace against the plan. Inputs and outputs were checked against the problem, and the kernel
    /// must be one that is present, which engines see to.
    ///
    /// # Errors
    /// A workspace that is too small.
    pub fn new(
        kernel: &'static Kernel,
        problem: &'a Problem,
        choice: &'a CpuChoice,
        layout: &'a WorkspaceLayout,
        inputs: Inputs<'a>,
        outputs: Targets<'a>,
        workspace: &'a mut Workspace,
    ) -> Result<Call<'a>, BindError> {
        let needed = layout.bytes();
        let (base, room) = workspace.lines();
        if room < layout.total || workspace.room() < problem.sequences() {
            return Err(BindError::Workspace {
                found: workspace.bytes(),
                needed,
                found_sequences: workspace.room(),
                sequences: problem.sequences(),
            });
        }
        let s = problem.spec();
        let past =
            |view: Option<View>, data: Option<Elements<'_>>| view.zip(data).map(|(v, e)| Source::new(v, e));
        let present = |view: Option<View>, data| view.map(|view| Target { view, data });
        let (query_factor, cap) = problem.score_factors();
        let context = Context {
            kernel,
            problem,
            choice,
            layout,
            inputs,
            dtype: s.dtype,
            query: Source::new(s.query, inputs.query),
            key: Source::new(s.key, inputs.key),
            value: Source::new(s.value, inputs.value),
            past_key: past(s.past_key, inputs.past_key),
            past_value: past(s.past_value, inputs.past_value),
            present_key: present(s.present_key, outputs.present_key),
            present_value: present(s.present_value, outputs.present_value),
            output: Target { view: s.output, data: outputs.output },
            lse: outputs.lse,
            state_m: outputs.state_m,
            state_s: outputs.state_s,
            state_w: outputs.state_w,
            base,
            cap,
            query_factor,
        };
        workspace.sequences.clear();
        workspace.units.clear();
        let mut first = 0;
        for index in 0..problem.sequences() {
            let sequence = problem.sequence(&inputs.lengths, index);
            workspace.units.push(first);
            first += problem.heads() * choice.tiling(sequence.queries).count().div_ceil(group(choice));
            workspace.sequences.push(sequence);
        }
        workspace.units.push(first);
        Ok(Call { context, workspace, outputs: PhantomData })
    }

    /// Workers among which it is divided, if the pool has that many.
    pub fn workers(&self) -> usize {
        self.context.choice.workers
    }

    /// Computes.
    ///
    /// # Errors
    /// A worker that panicked.
    pub fn run(&mut self, pool: &Pool) -> Result<(), RunError> {
        let context = &self.context;
        let shared = Shared { context, sequences: &self.workspace.sequences, units: &self.workspace.units };
        if context.present_key.is_some() || context.present_value.is_some() {
            let rows = context.key.view.batch() * context.key.view.heads();
            // SAFETY: every pair of batch and key head is one item, and items write disjoint rows of the
            // present (invariants *inputs* and *outputs*).
            divide(pool, context.choice.workers, rows, &|_, i| unsafe { stage::write_present(context, i) })?;
        }
        match context.choice.method {
            // SAFETY: `Call::new` established the invariants, and `divide` gives every unit to one worker and
            // every worker a number of its own.
            Method::Elsa => divide(pool, context.choice.workers, shared.count(), &|worker, u| unsafe {
                tile::attend(context, &shared.unit(u), worker);
            }),
            Method::Math => math::run(&shared, pool),
        }
    }
}

/// Calls `task(worker, item)` once for every item, dealing them out one by one.
///
/// # Errors
/// A worker that panicked.
pub(super) fn divide(
    pool: &Pool,
    workers: usize,
    items: usize,
    task: &(dyn Fn(usize, usize) + Sync),
) -> Result<(), RunError> {
    let next = AtomicUsize::new(0);
    pool.run(workers.min(items.max(1)), &|worker| {
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            if item >= items {
                break;
            }
            task(worker, item);
        }
    })
}
