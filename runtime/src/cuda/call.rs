//! Binding and running on a GPU.
//!
//! A run is, in one stream: the table of sequences to the device where there is one, present keys and values,
//! the attention kernel, and the merge of its partial states where there are any. Everything that the kernels
//! are told is in one structure, [`Call`], filled when tensors are bound.
//!
//! Tensors of the host go to the device before and come back after, and the run waits, because their owner
//! reads them next. An integrated GPU uses page-locked memory in place. Tensors of the device stay where they
//! are, and such a run only enqueues.

use super::driver::{Entered, RawStream};
use super::plan::{Functions, GpuPlan, GpuWorkspace, Staging, view_bytes};
use crate::error::{BindError, DeviceError};
use crate::targets::Targets;
use elsa_core::mask::{MaskElements, MaskKind};
use elsa_core::plan::GpuLayout;
use elsa_core::problem::{self, Inputs, Problem};
use elsa_core::view::{DType, Elements, View};
use elsa_kernels::cuda::call::{self, Call, Divisor, Present, Sequence, Tensor};
use elsa_kernels::cuda::{Role, merge_blocks};
use std::marker::PhantomData;

/// Rows of the present that a block of its kernel takes: one a warp.
const WARP: u32 = 32;
/// Blocks of the kernel that writes the present, for each SM; they stride over the rows.
const PRESENT_BLOCKS: usize = 16;

/// Device addresses of all tensors of a call; zero where there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Addresses {
    query: u64,
    key: u64,
    value: u64,
    past_key: u64,
    past_value: u64,
    mask: u64,
    output: u64,
    present_key: u64,
    present_value: u64,
    lse: u64,
    state: [u64; 3],
}

/// What is launched.
#[derive(Clone, Debug)]
struct Launch {
    functions: Functions,
    call: Call,
    presents: [Option<Present>; 2],
    attention_blocks: u32,
    attention_threads: u32,
    merge_blocks: u32,
    merge_threads: u32,
    present_blocks: u32,
    present_threads: u32,
    /// Bytes of the table of sequences.
    table: usize,
}

fn tensor(view: &View, data: u64) -> Tensor {
    let [batch, head, token, _] = view.strides().map(|stride| stride as i64);
    Tensor { data, batch, head, token }
}

/// Whether rows may be accessed four elements at a time.
fn in_fours(tensor: &Tensor, dim: usize, element: usize) -> bool {
    let strides = [tensor.batch, tensor.head, tensor.token];
    tensor.data.is_multiple_of(4 * element as u64)
        && strides.iter().all(|stride| stride % 4 == 0)
        && tensor.token < call::NEAR
        && dim.is_multiple_of(4)
}

/// A count that the chooser has found to fit.
fn int(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// A sequence as the kernels take it. A side of the window that reaches past every key is open, so that the
/// kernels' sums stay within 32 bits.
fn sequence(s: &problem::Sequence) -> Sequence {
    let open = s.keys + s.queries;
    let side = |n: Option<usize>| n.filter(|n| *n < open).map_or(-1, int);
    Sequence {
        batch: int(s.batch),
        query0: int(s.query0),
        queries: int(s.queries),
        key0: int(s.key0),
        keys: int(s.keys),
        past: int(s.past),
        reach: int(s.reach()),
        left: side(s.left()),
        right: side(s.right()),
        offset: s.offset().clamp(-(open as isize), open as isize) as i32,
    }
}

/// Fills the structure of a call. Waits for a table that an earlier run may still be reading.
///
/// # Errors
/// Memory that is not there, and a device that fails.
fn prepare(
    plan: &GpuPlan,
    problem: &Problem,
    lengths: &Inputs<'_>,
    at: &Addresses,
    workspace: &mut GpuWorkspace,
) -> Result<Launch, DeviceError> {
    let (s, c) = (problem.spec(), &plan.choice);
    let states = at.state[0] != 0;
    let functions = plan.functions(&workspace.context, problem, states)?;
    let (mut part_ms, mut part_w) = (0, 0);
    if c.divided() {
        let base = workspace.parts.address();
        (part_ms, part_w) = (base + plan.layout.part_ms.start as u64, base + plan.layout.part_w.start as u64);
    } else if let (true, Some(layout)) = (states, GpuLayout::of(c, true)) {
        let bytes = layout.part_w.start + layout.part_w.len;
        workspace.reserve_state_parts(bytes)?;
        let base = workspace.state_parts.as_ref().map_or(0, |b| b.address());
        (part_ms, part_w) = (base + layout.part_ms.start as u64, base + layout.part_w.start as u64);
    }
    let mut longest = 0;
    let table = c.sequences * size_of::<Sequence>();
    if c.sequences > 0 {
        let entered = workspace.context.enter()?;
        workspace.uploaded.synchronize(&entered)?;
        let entries = workspace.table.data().cast::<Sequence>();
        for index in 0..c.sequences {
            let entry = problem.sequence(lengths, index);
            longest = longest.max(entry.queries);
            // SAFETY: *room*: the table has `c.sequences` entries and is aligned; no copy reads it any more.
            unsafe { entries.add(index).write(sequence(&entry)) };
        }
    }
    let one = if c.sequences == 0 { problem.sequence(lengths, 0) } else { problem::Sequence::default() };
    longest = longest.max(one.queries);
    let (mask, strides) = match &s.mask {
        Some(mask) => (
            match mask.kind() {
                MaskKind::Bool => call::MASK_BOOL,
                MaskKind::Additive(DType::F32) => call::MASK_F32,
                MaskKind::Additive(DType::F16) => call::MASK_F16,
                MaskKind::Additive(DType::Bf16) => call::MASK_BF16,
            },
            mask.strides().map(|stride| stride as i64),
        ),
        None => (call::MASK_NONE, [0; 4]),
    };
    let optional = |view: &Option<View>, data| view.as_ref().map_or(Tensor::default(), |v| tensor(v, data));
    let (query_factor, cap) = elsa_core::attention::score_factors(problem);
    let row_blocks = longest.div_ceil(c.kernel.rows.max(1));
    let mut filled = Call {
        query: tensor(&s.query, at.query),
        key: tensor(&s.key, at.key),
        value: tensor(&s.value, at.value),
        past_key: optional(&s.past_key, at.past_key),
        past_value: optional(&s.past_value, at.past_value),
        output: tensor(&s.output, at.output),
        mask: at.mask,
        mask_batch: strides[0],
        mask_head: strides[1],
        mask_query: strides[2],
        mask_key: strides[3],
        sequences: match c.sequences {
            0 => 0,
            _ => workspace.parts.address() + plan.layout.sequences.start as u64,
        },
        lse: at.lse,
        state_m: at.state[0],
        state_s: at.state[1],
        state_w: at.state[2],
        part_ms,
        part_w,
        sequence: sequence(&one),
        sequence_count: int(problem.sequences()),
        dtype: match s.dtype {
            DType::F32 => call::TYPE_F32,
            DType::F16 => call::TYPE_F16,
            DType::Bf16 => call::TYPE_BF16,
        },
        mask_kind: mask,
        flags: 0,
        heads: int(problem.heads()),
        group: int(problem.heads() / problem.kv_heads()),
        tokens: int(s.query.tokens()),
        head_dim: int(problem.head_dim()),
        value_dim: int(problem.value_dim()),
        part_dim: int(c.part_dim),
        row_blocks: int(row_blocks),
        splits: int(c.splits),
        chunk: int(c.chunk),
        query_factor,
        cap,
        query_rows: int(problem.rows()),
        by_row_blocks: Divisor::new(int(row_blocks)),
        by_splits: Divisor::new(int(c.splits)),
        by_heads: Divisor::new(int(problem.heads())),
        by_group: Divisor::new(int(problem.heads() / problem.kv_heads())),
        by_tokens: Divisor::new(int(s.query.tokens())),
    };
    let (d, dv, size) = (problem.head_dim(), problem.value_dim(), s.dtype.size());
    let fours = |tensors: [&Tensor; 2], dim, flag| match tensors.iter().all(|t| in_fours(t, dim, size)) {
        true => flag,
        false => 0,
    };
    filled.flags = fours([&filled.query, &filled.query], d, call::QUERY_VEC4)
        | fours([&filled.key, &filled.past_key], d, call::KEY_VEC4)
        | fours([&filled.value, &filled.past_value], dv, call::VALUE_VEC4)
        | fours([&filled.output, &filled.output], dv, call::OUTPUT_VEC4);
    let inputs = call::QUERY_VEC4 | call::KEY_VEC4 | call::VALUE_VEC4;
    if filled.flags & inputs == inputs && [d, dv] == [c.kernel.head_dim; 2] {
        filled.flags |= call::WHOLE_ROWS;
    }
    let present = |past: Tensor, fresh: &View, data, view: &Option<View>, to| {
        view.as_ref().map(|view| Present {
            past,
            fresh: tensor(fresh, data),
            present: tensor(view, to),
            batch: int(fresh.batch()),
            heads: int(fresh.heads()),
            past_tokens: int(problem.past()),
            fresh_tokens: int(fresh.tokens()),
            dim: int(fresh.dim()),
            element_size: int(size),
        })
    };
    let presents = [
        present(filled.past_key, &s.key, at.key, &s.present_key, at.present_key),
        present(filled.past_value, &s.value, at.value, &s.present_value, at.present_value),
    ];
    // The chooser has found this product to fit, with the blocks of the longest sequence that there can be.
    let blocks = problem.sequences() * problem.heads() * c.splits * row_blocks;
    let (merge, at_once) = super::plan::merging(c.splits)?;
    let present_threads = super::plan::of_role(Role::Present, "the present")?.threads.max(WARP);
    let rows = |rows: usize, threads: u32| rows.div_ceil((threads / WARP) as usize);
    let present_rows = s.key.batch() * s.key.heads() * problem.keys();
    let most = PRESENT_BLOCKS * plan.gpu.profile().sms.max(1);
    Ok(Launch {
        functions,
        call: filled,
        presents,
        attention_blocks: blocks as u32,
        attention_threads: plan.attention.threads,
        merge_blocks: merge_blocks(at_once, problem.rows(), c.splits, c.part_dim) as u32,
        merge_threads: merge.threads,
        present_blocks: rows(present_rows, present_threads).min(most) as u32,
        present_threads,
        table,
    })
}

impl Launch {
    /// Enqueues everything.
    ///
    /// # Safety
    /// *room* and *alive* for every address of the call, for the workspace's too.
    unsafe fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: RawStream,
        workspace: &GpuWorkspace,
    ) -> Result<(), DeviceError> {
        if self.table > 0 {
            let to = self.call.sequences;
            // SAFETY: *room*: `prepare` laid out and filled the table on both sides. *alive*: the workspace
            // waits for `uploaded` before it writes the table again, and for what is pending before it goes.
            unsafe { stream.copy_in(entered, to, workspace.table.data(), self.table)? };
            workspace.uploaded.record(entered, stream)?;
        }
        if let Some(function) = &self.functions.present {
            for present in self.presents.iter().flatten() {
                if self.present_blocks > 0 {
                    // SAFETY: the clauses of this function; the kernel takes a `Present`.
                    unsafe {
                        stream.launch(
                            entered,
                            function,
                            self.present_blocks,
                            self.present_threads,
                            present,
                        )?;
                    }
                }
            }
        }
        if self.attention_blocks > 0 {
            // SAFETY: the clauses of this function; the kernel takes a `Call`.
            unsafe {
                stream.launch(
                    entered,
                    &self.functions.attention,
                    self.attention_blocks,
                    self.attention_threads,
                    &self.call,
                )?;
            }
            if let Some(merge) = &self.functions.merge {
                // SAFETY: as above.
                unsafe {
                    stream.launch(entered, merge, self.merge_blocks, self.merge_threads, &self.call)?;
                }
            }
        }
        Ok(())
    }
}

/// A tensor of the host that is read: its bytes, and where it lies on the device.
#[derive(Clone, Copy, Debug)]
struct Source {
    data: *const u8,
    bytes: usize,
    device: u64,
    /// The device reads it in place.
    mapped: bool,
}

/// A tensor of the host that is written.
#[derive(Clone, Copy, Debug)]
struct Target {
    data: *mut u8,
    bytes: usize,
    device: u64,
    mapped: bool,
    /// Its view where it has gaps, which must stay as they are.
    gaps: Option<View>,
}

/// A call on tensors of the host.
///
/// Invariants: the sources' addresses are those of slices that live for `'a` and have as many bytes; so with the
/// targets, which nobody else uses meanwhile.
pub struct HostCall<'a> {
    plan: &'a GpuPlan,
    problem: &'a Problem,
    inputs: Inputs<'a>,
    outputs: Targets<'a>,
    workspace: &'a mut GpuWorkspace,
    sources: [Source; 6],
    targets: [Target; 7],
    launch: Launch,
}

// SAFETY: a call holds what references would hold: sources shared, targets and workspace exclusively.
unsafe impl Send for HostCall<'_> {}

impl std::fmt::Debug for HostCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostCall").field("launch", &self.launch).finish_non_exhaustive()
    }
}

fn bytes_of(elements: &Elements<'_>) -> *const u8 {
    match elements {
        Elements::F32(x) => x.as_ptr().cast(),
        Elements::F16(x) => x.as_ptr().cast(),
        Elements::Bf16(x) => x.as_ptr().cast(),
    }
}

/// First byte and bytes of an optional tensor.
type Bytes = (*const u8, usize);

fn given(view: Option<&View>, data: Option<&Elements<'_>>, problem: &Problem) -> Bytes {
    match (view, data) {
        (Some(view), Some(data)) => (bytes_of(data), view_bytes(view, problem)),
        _ => (std::ptr::null(), 0),
    }
}

fn given_mask(problem: &Problem, mask: Option<&MaskElements<'_>>) -> Bytes {
    let extent = problem.spec().mask.as_ref().map_or(0, |view| view.extent());
    match mask {
        Some(MaskElements::Bool(x)) => (x.as_ptr(), extent),
        Some(MaskElements::Additive(x)) => (bytes_of(x), extent * x.dtype().size()),
        None => (std::ptr::null(), 0),
    }
}

/// Places host tensors: in place where the device can use them, else in the staging.
struct Placed {
    sources: [Source; 6],
    targets: [Target; 7],
    addresses: Addresses,
}

fn place(
    plan: &GpuPlan,
    problem: &Problem,
    inputs: &Inputs<'_>,
    outputs: &Targets<'_>,
    workspace: &mut GpuWorkspace,
) -> Result<Placed, DeviceError> {
    let s = problem.spec();
    let staging = Staging::of(problem).ok_or(DeviceError::HostMemory { bytes: usize::MAX })?;
    let (rows, dv) = (problem.rows(), problem.value_dim());
    let read: [Bytes; 6] = [
        given(Some(&s.query), Some(&inputs.query), problem),
        given(Some(&s.key), Some(&inputs.key), problem),
        given(Some(&s.value), Some(&inputs.value), problem),
        given(s.past_key.as_ref(), inputs.past_key.as_ref(), problem),
        given(s.past_value.as_ref(), inputs.past_value.as_ref(), problem),
        given_mask(problem, inputs.mask.as_ref()),
    ];
    let read_at =
        [staging.query, staging.key, staging.value, staging.past_key, staging.past_value, staging.mask];
    let bytes = |view: Option<&View>| view.map_or(0, |view| view_bytes(view, problem));
    let singles =
        |data: *mut f32, count: usize| (data.cast::<u8>(), if data.is_null() { 0 } else { 4 * count });
    let w_at = 2 * rows * 4;
    // The first four are staged, the states have a room of their own.
    let written = [
        (outputs.output, bytes(Some(&s.output)), staging.output, Some(s.output)),
        (outputs.present_key, bytes(s.present_key.as_ref()), staging.present_key, s.present_key),
        (outputs.present_value, bytes(s.present_value.as_ref()), staging.present_value, s.present_value),
        (singles(outputs.lse, rows).0, singles(outputs.lse, rows).1, staging.lse, None),
        (singles(outputs.state_m, rows).0, singles(outputs.state_m, rows).1, 0, None),
        (singles(outputs.state_s, rows).0, singles(outputs.state_s, rows).1, rows * 4, None),
        (singles(outputs.state_w, rows * dv).0, singles(outputs.state_w, rows * dv).1, w_at, None),
    ];
    let mut mapped = ([None; 6], [None; 7]);
    if plan.gpu.profile().integrated {
        let entered = workspace.context.enter()?;
        for (to, (data, bytes)) in mapped.0.iter_mut().zip(&read) {
            *to = entered.mapped(data.expose_provenance() as u64, *bytes);
        }
        for (to, (data, bytes, ..)) in mapped.1.iter_mut().zip(&written) {
            *to = entered.mapped(data.expose_provenance() as u64, *bytes);
        }
    }
    let staged = read.iter().zip(&mapped.0).any(|((_, bytes), m)| *bytes > 0 && m.is_none())
        || written[..4].iter().zip(&mapped.1).any(|((_, bytes, ..), m)| *bytes > 0 && m.is_none());
    if staged {
        workspace.reserve_staging(problem)?;
    }
    workspace.reserve_bounce(problem)?;
    if outputs.states() && mapped.1[4..].iter().any(Option::is_none) {
        workspace.reserve_states(problem)?;
    }
    let base = workspace.staging.as_ref().map_or(0, |b| b.address());
    let state_base = workspace.states.as_ref().map_or(0, |b| b.address());
    let sources: [Source; 6] = std::array::from_fn(|i| {
        let (data, bytes) = read[i];
        let device = match (bytes, mapped.0[i]) {
            (0, _) => 0,
            (_, Some(device)) => device,
            (_, None) => base + read_at[i] as u64,
        };
        Source { data, bytes, device, mapped: mapped.0[i].is_some() }
    });
    let targets: [Target; 7] = std::array::from_fn(|i| {
        let (data, bytes, at, view) = written[i];
        let device = match (bytes, mapped.1[i]) {
            (0, _) => 0,
            (_, Some(device)) => device,
            (_, None) => (if i < 4 { base } else { state_base }) + at as u64,
        };
        let gaps = view.filter(|view| view.extent() != view.count());
        Target { data, bytes, device, mapped: mapped.1[i].is_some(), gaps }
    });
    let source = |i: usize| sources[i].device;
    let target = |i: usize| targets[i].device;
    let addresses = Addresses {
        query: source(0),
        key: source(1),
        value: source(2),
        past_key: source(3),
        past_value: source(4),
        mask: source(5),
        output: target(0),
        present_key: target(1),
        present_value: target(2),
        lse: target(3),
        state: [target(4), target(5), target(6)],
    };
    Ok(Placed { sources, targets, addresses })
}

impl<'a> HostCall<'a> {
    /// Places the tensors, which were checked against the problem, and fills what is launched.
    ///
    /// # Errors
    /// Memory that is not there, and a device that fails.
    pub fn new(
        plan: &'a GpuPlan,
        problem: &'a Problem,
        inputs: Inputs<'a>,
        outputs: Targets<'a>,
        workspace: &'a mut GpuWorkspace,
    ) -> Result<HostCall<'a>, DeviceError> {
        revive(plan, problem, workspace)?;
        let placed = place(plan, problem, &inputs, &outputs, workspace)?;
        let launch = prepare(plan, problem, &inputs, &placed.addresses, workspace)?;
        let Placed { sources, targets, .. } = placed;
        Ok(HostCall { plan, problem, inputs, outputs, workspace, sources, targets, launch })
    }

    /// Blocks of threads of the attention kernel.
    pub fn blocks(&self) -> usize {
        self.launch.attention_blocks as usize
    }

    /// Computes, and waits. With `resident` the inputs are those of the run before, and the outputs stay on the
    /// device.
    ///
    /// # Errors
    /// What the device reports. The outputs are then incomplete, and no work is left on them.
    pub fn run(&mut self, resident: bool) -> Result<(), DeviceError> {
        if self.workspace.context.is_lost() {
            revive(self.plan, self.problem, self.workspace)?;
            let placed = place(self.plan, self.problem, &self.inputs, &self.outputs, self.workspace)?;
            self.launch = prepare(self.plan, self.problem, &self.inputs, &placed.addresses, self.workspace)?;
            (self.sources, self.targets) = (placed.sources, placed.targets);
        }
        let context = self.workspace.context.clone();
        let entered = context.enter()?;
        let stream = self.workspace.stream.raw();
        let done = self.enqueue(&entered, stream, resident);
        // Whatever was enqueued must not touch the caller's memory after this call.
        let waited = stream.synchronize(&entered);
        done?;
        waited?;
        if resident { Ok(()) } else { self.fill_gaps(&entered, stream) }
    }

    fn enqueue(&self, entered: &Entered<'_>, stream: RawStream, resident: bool) -> Result<(), DeviceError> {
        if !resident {
            for source in self.sources.iter().filter(|s| !s.mapped) {
                // SAFETY: *room*: the slice has that many bytes, and so has its place in the staging. *alive*:
                // slices and staging outlive `run`, which waits.
                unsafe { stream.copy_in(entered, source.device, source.data, source.bytes)? };
            }
        }
        // SAFETY: *room*: every address is that of a tensor with the bytes of its view, in the staging or mapped,
        // or of the workspace. *alive*: as above.
        unsafe { self.launch.enqueue(entered, stream, self.workspace)? };
        if !resident {
            for target in self.targets.iter().filter(|t| !t.mapped && t.gaps.is_none()) {
                // SAFETY: as for the sources; nobody else uses the targets.
                unsafe { stream.copy_out(entered, target.data, target.device, target.bytes)? };
            }
        }
        Ok(())
    }

    /// Brings back outputs that have gaps, row by row, so that the gaps stay as they are.
    fn fill_gaps(&mut self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        let size = self.problem.spec().dtype.size();
        for target in self.targets.iter().filter(|t| !t.mapped && t.bytes > 0) {
            let Some(view) = target.gaps else { continue };
            let bounce = &mut self.workspace.bounce;
            let bytes = target.bytes.min(bounce.len());
            // SAFETY: *room*: `bytes` on both sides, and `place` has made room for all of the target. *alive*: the stream is waited for, whatever came of it.
            let copied = unsafe { stream.copy_out(entered, bounce.as_mut_ptr(), target.device, bytes) };
            let waited = stream.synchronize(entered);
            copied?;
            waited?;
            let [batch, heads, tokens, dim] = view.shape();
            for b in 0..batch {
                for h in 0..heads {
                    for t in 0..tokens {
                        let at = view.row(b, h, t) * size;
                        let Some(row) = bounce.get(at..at + dim * size) else { continue };
                        // SAFETY: *outputs*: the row lies in the target's view.
                        unsafe { target.data.add(at).copy_from_nonoverlapping(row.as_ptr(), row.len()) };
                    }
                }
            }
        }
        Ok(())
    }
}

/// Gives a workspace whose context was lost a new one.
fn revive(plan: &GpuPlan, problem: &Problem, workspace: &mut GpuWorkspace) -> Result<(), DeviceError> {
    if workspace.context.is_lost() {
        *workspace = GpuWorkspace::new(plan, &plan.gpu.context()?, problem)?;
    }
    Ok(())
}

/// Tensors in device memory that are read, and lists in host memory. Addresses are those of the first element
/// of each view.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceInputs<'a> {
    /// Queries.
    pub query: u64,
    /// Keys.
    pub key: u64,
    /// Values.
    pub value: u64,
    /// Earlier keys.
    pub past_key: Option<u64>,
    /// Earlier values.
    pub past_value: Option<u64>,
    /// The mask.
    pub mask: Option<u64>,
    /// Valid keys of each sequence, `[batch]`.
    pub key_lengths: Option<&'a [i64]>,
    /// Bounds of the packed sequences among the queries, `[sequences + 1]`.
    pub cu_seqlens_q: Option<&'a [i64]>,
    /// Bounds of the packed sequences among the keys, `[sequences + 1]`.
    pub cu_seqlens_k: Option<&'a [i64]>,
}

/// Tensors in device memory that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOutputs {
    /// The output.
    pub output: u64,
    /// Log-sum-exp of each row, singles `[batch, heads, queries]`.
    pub lse: Option<u64>,
    /// The state of each row: `m`, `S` and `W`, singles `[batch, heads, queries]` and the last with `d_v` more.
    pub state: Option<[u64; 3]>,
    /// Earlier and new keys.
    pub present_key: Option<u64>,
    /// Earlier and new values.
    pub present_value: Option<u64>,
}

/// A plan with tensors in device memory. Runs enqueue, and do not wait.
#[derive(Debug)]
pub struct DeviceCall<'a> {
    workspace: &'a mut GpuWorkspace,
    launch: Launch,
    stream: RawStream,
    borrowed: PhantomData<&'a ()>,
}

/// Checks that `bytes` at an address are memory that the device can use.
fn check_address(
    entered: &Entered<'_>,
    argument: &'static str,
    address: u64,
    needed: usize,
    alignment: usize,
) -> Result<u64, BindError> {
    if needed == 0 {
        return Ok(address);
    }
    if !address.is_multiple_of(alignment as u64) {
        return Err(BindError::Alignment { argument, address, alignment });
    }
    if let Some((base, bytes)) = entered.allocation(address) {
        let found = bytes.saturating_sub(usize::try_from(address.saturating_sub(base)).unwrap_or(usize::MAX));
        if found < needed {
            return Err(BindError::DeviceShort { argument, found, needed });
        }
        return Ok(address);
    }
    entered.mapped(address, needed).ok_or(BindError::Address { argument, address })
}

impl<'a> DeviceCall<'a> {
    /// Checks addresses, lists and stream, and fills what is launched.
    ///
    /// # Errors
    /// Whatever is not as the problem says, and a device that fails.
    pub fn new(
        plan: &'a GpuPlan,
        problem: &'a Problem,
        inputs: &DeviceInputs<'a>,
        outputs: &DeviceOutputs,
        stream: Option<RawStream>,
        workspace: &'a mut GpuWorkspace,
    ) -> Result<DeviceCall<'a>, BindError> {
        use elsa_core::problem::ProblemError as E;
        let s = problem.spec();
        let nothing = Elements::F32(&[]);
        let lengths = Inputs {
            key_lengths: inputs.key_lengths,
            cu_seqlens_q: inputs.cu_seqlens_q,
            cu_seqlens_k: inputs.cu_seqlens_k,
            ..Inputs::new(nothing, nothing, nothing)
        };
        lengths.check_lengths(problem)?;
        revive(plan, problem, workspace)?;
        let context = workspace.context.clone();
        let entered = context.enter()?;
        let size = s.dtype.size();
        let tensor = |argument, view: Option<&View>, address: Option<u64>| match (view, address) {
            (Some(view), Some(address)) => {
                check_address(&entered, argument, address, view_bytes(view, problem), size)
            }
            (None, None) => Ok(0),
            (Some(_), None) => Err(E::Needs { argument, other: "its data" }.into()),
            (None, Some(_)) => Err(E::Needs { argument, other: "its shape in the problem" }.into()),
        };
        let singles = |argument, address: Option<u64>, count: usize| match address {
            Some(address) => check_address(&entered, argument, address, count.saturating_mul(4), 4),
            None => Ok(0),
        };
        let mask = match (&s.mask, inputs.mask) {
            (Some(view), Some(address)) => {
                let size = match view.kind() {
                    MaskKind::Bool => 1,
                    MaskKind::Additive(dtype) => dtype.size(),
                };
                check_address(&entered, "mask", address, view.extent() * size, size)?
            }
            (None, None) => 0,
            (Some(_), None) => return Err(E::Needs { argument: "mask", other: "its data" }.into()),
            (None, Some(_)) => {
                return Err(E::Needs { argument: "mask", other: "its shape in the problem" }.into());
            }
        };
        let rows = problem.rows();
        let state = outputs.state;
        let at = Addresses {
            query: tensor("q", Some(&s.query), Some(inputs.query))?,
            key: tensor("k", Some(&s.key), Some(inputs.key))?,
            value: tensor("v", Some(&s.value), Some(inputs.value))?,
            past_key: tensor("past-k", s.past_key.as_ref(), inputs.past_key)?,
            past_value: tensor("past-v", s.past_value.as_ref(), inputs.past_value)?,
            mask,
            output: tensor("out", Some(&s.output), Some(outputs.output))?,
            present_key: tensor("present-k", s.present_key.as_ref(), outputs.present_key)?,
            present_value: tensor("present-v", s.present_value.as_ref(), outputs.present_value)?,
            lse: singles("lse-out", outputs.lse, rows)?,
            state: [
                singles("state-out m", state.map(|s| s[0]), rows)?,
                singles("state-out s", state.map(|s| s[1]), rows)?,
                singles("state-out w", state.map(|s| s[2]), rows.saturating_mul(problem.value_dim()))?,
            ],
        };
        let stream = match stream {
            Some(stream) if !stream.belongs(&entered)? => return Err(BindError::Stream),
            Some(stream) => stream,
            None => workspace.stream.raw(),
        };
        drop(entered);
        let launch = prepare(plan, problem, &lengths, &at, workspace)?;
        Ok(DeviceCall { workspace, launch, stream, borrowed: PhantomData })
    }

    /// Blocks of threads of the attention kernel.
    pub fn blocks(&self) -> usize {
        self.launch.attention_blocks as usize
    }

    /// Enqueues the computation.
    ///
    /// # Safety
    /// The tensors that were bound are still allocated, and stay so until the stream was waited for.
    ///
    /// # Errors
    /// What the device reports.
    pub unsafe fn run(&mut self) -> Result<(), DeviceError> {
        let context = self.workspace.context.clone();
        let entered = context.enter()?;
        // SAFETY: *room*: `new` has checked every address. *alive*: the clause of this function, and what is
        // pending is waited for before the workspace goes.
        let enqueued = unsafe { self.launch.enqueue(&entered, self.stream, self.workspace) };
        let marked = self.workspace.pending.mark(&entered, self.stream);
        enqueued?;
        marked
    }

    /// Waits until everything in the stream is done.
    ///
    /// # Errors
    /// What the device reports, of this call or of what ran.
    pub fn wait(&self) -> Result<(), DeviceError> {
        let entered = self.workspace.context.enter()?;
        self.stream.synchronize(&entered)
    }
}
