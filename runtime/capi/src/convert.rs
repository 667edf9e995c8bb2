//! From the types of the ABI to those of the runtime, with the checks that pointers need.

use crate::fault::Fault;
use crate::types::*;
use elsa_core::attention::{Alignment, Inputs, Lengths, Outputs, Problem, Spec, StateOut, Window};
use elsa_core::attention::{MaskElements, MaskKind, MaskView};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::View;
use elsa_runtime::{
    Backend, CudaContext, CudaOptions, DeviceInputs, DeviceOutputs, EngineOptions, Fallback, Method,
    PlanOptions,
};
use half::{bf16, f16};

fn unknown<T>(argument: &str, found: u32, allowed: &str) -> Result<T, Fault> {
    Err(Fault::argument(format_args!("{argument}: {found}; allowed: {allowed}")))
}

pub(crate) fn backend(value: elsa_backend) -> Result<Option<Backend>, Fault> {
    Ok(Some(match value {
        ELSA_BACKEND_AUTO => return Ok(None),
        ELSA_BACKEND_SCALAR => Backend::SCALAR,
        ELSA_BACKEND_NEON => Backend::NEON,
        ELSA_BACKEND_AVX2 => Backend::AVX2,
        ELSA_BACKEND_AVX512 => Backend::AVX512,
        ELSA_BACKEND_CUDA => Backend::Cuda,
        _ => return unknown("backend", value, "one of ELSA_BACKEND_*"),
    }))
}

pub(crate) fn backend_number(backend: Backend) -> elsa_backend {
    match backend {
        Backend::SCALAR => ELSA_BACKEND_SCALAR,
        Backend::NEON => ELSA_BACKEND_NEON,
        Backend::AVX2 => ELSA_BACKEND_AVX2,
        Backend::AVX512 => ELSA_BACKEND_AVX512,
        Backend::Cuda => ELSA_BACKEND_CUDA,
    }
}

pub(crate) fn engine_options(o: &elsa_engine_options) -> Result<EngineOptions, Fault> {
    let context = match o.cuda_context {
        ELSA_CUDA_CONTEXT_PRIMARY => CudaContext::Primary,
        ELSA_CUDA_CONTEXT_CURRENT => CudaContext::Current,
        found => return unknown("cuda_context", found, "one of ELSA_CUDA_CONTEXT_*"),
    };
    let fallback = match o.fallback {
        ELSA_FALLBACK_CPU => Fallback::Cpu,
        ELSA_FALLBACK_FAIL => Fallback::Fail,
        found => return unknown("fallback", found, "one of ELSA_FALLBACK_*"),
    };
    let threads = (o.threads != 0).then_some(o.threads);
    let cuda = CudaOptions { device: o.cuda_device, context };
    Ok(EngineOptions { backend: backend(o.backend)?, threads, fallback, cuda })
}

pub(crate) fn plan_options(o: &elsa_plan_options) -> Result<PlanOptions, Fault> {
    let method = match o.method {
        ELSA_METHOD_ELSA => Method::Elsa,
        ELSA_METHOD_MATH => Method::Math,
        found => return unknown("method", found, "one of ELSA_METHOD_*"),
    };
    let budget = (o.budget != 0).then_some(o.budget);
    Ok(PlanOptions {
        method,
        block: o.block,
        budget,
        half_scores: o.half_scores != 0,
        ..PlanOptions::default()
    })
}

fn dtype(value: elsa_dtype) -> Result<DType, Fault> {
    match value {
        ELSA_DTYPE_F32 => Ok(DType::F32),
        ELSA_DTYPE_F16 => Ok(DType::F16),
        ELSA_DTYPE_BF16 => Ok(DType::Bf16),
        found => unknown("dtype", found, "one of ELSA_DTYPE_*"),
    }
}

pub(crate) fn dtype_number(dtype: DType) -> elsa_dtype {
    match dtype {
        DType::F32 => ELSA_DTYPE_F32,
        DType::F16 => ELSA_DTYPE_F16,
        DType::Bf16 => ELSA_DTYPE_BF16,
    }
}

fn mask(mask: &elsa_mask) -> Result<Option<MaskView>, Fault> {
    let kind = match mask.kind {
        ELSA_MASK_NONE => return Ok(None),
        ELSA_MASK_BOOL => MaskKind::Bool,
        ELSA_MASK_F32 => MaskKind::Additive(DType::F32),
        ELSA_MASK_F16 => MaskKind::Additive(DType::F16),
        ELSA_MASK_BF16 => MaskKind::Additive(DType::Bf16),
        found => return unknown("mask.kind", found, "one of ELSA_MASK_*"),
    };
    match usize::try_from(mask.rank).ok().and_then(|rank| mask.dims.get(..rank)) {
        Some(dims) => Ok(Some(MaskView::dense(kind, dims)?)),
        None => unknown("mask.rank", mask.rank, "1 to 4"),
    }
}

pub(crate) fn problem(p: &elsa_problem) -> Result<Problem, Fault> {
    let view = |argument, view: &elsa_view| View::new(argument, view.shape, view.strides);
    let optional = |has: u32, argument, v: &elsa_view| (has != 0).then(|| view(argument, v)).transpose();
    let mut spec = Spec::new(
        dtype(p.dtype)?,
        view("q", &p.q)?,
        view("k", &p.k)?,
        view("v", &p.v)?,
        view("out", &p.out)?,
    );
    spec.past_key = optional(p.has_past, "past-k", &p.past_k)?;
    spec.past_value = optional(p.has_past, "past-v", &p.past_v)?;
    spec.present_key = optional(p.has_present, "present-k", &p.present_k)?;
    spec.present_value = optional(p.has_present, "present-v", &p.present_v)?;
    spec.scale = (p.has_scale != 0).then_some(p.scale);
    spec.softcap = Some(p.softcap);
    spec.causal = match p.causal {
        ELSA_CAUSAL_NONE => None,
        ELSA_CAUSAL_TOP_LEFT => Some(Alignment::TopLeft),
        ELSA_CAUSAL_BOTTOM_RIGHT => Some(Alignment::BottomRight),
        found => return unknown("causal", found, "one of ELSA_CAUSAL_*"),
    };
    let side = |keys: i64| usize::try_from(keys).ok();
    spec.window = Window { left: side(p.window_left), right: side(p.window_right) };
    spec.mask = mask(&p.mask)?;
    spec.key_lengths = p.has_key_lengths != 0;
    spec.packed = (p.packed != 0).then_some(p.packed);
    Ok(spec.check()?)
}

/// Checks an address before it becomes a slice of `needed` elements of `size` bytes. Gives whether there is memory.
fn check(argument: &str, address: usize, bytes: usize, needed: usize, size: usize) -> Result<bool, Fault> {
    let elements = bytes / size;
    if address == 0 {
        // A tensor without elements needs no memory.
        return if bytes == 0 && needed == 0 { Ok(false) } else { Err(Fault::null(argument)) };
    }
    if !address.is_multiple_of(size) {
        return Err(Fault::argument(format_args!(
            "{argument}: address {address:#x}; allowed: a multiple of {size}"
        )));
    }
    if address.checked_add(bytes).is_none() || bytes > isize::MAX as usize {
        return Err(Fault::argument(format_args!(
            "{argument}: {bytes} bytes from {address:#x}; allowed: bytes that end within the address space"
        )));
    }
    if elements < needed {
        return Err(Fault::argument(format_args!(
            "{argument}: {bytes} bytes; allowed: at least {}",
            needed.saturating_mul(size)
        )));
    }
    Ok(needed > 0)
}

/// # Safety
/// `input` is readable for its bytes as long as `'a`, and nobody writes there.
unsafe fn read<'a, T>(argument: &str, input: &elsa_input, needed: usize) -> Result<&'a [T], Fault> {
    let (address, size) = (input.data as usize, size_of::<T>());
    if !check(argument, address, input.bytes, needed, size)? {
        return Ok(&[]);
    }
    // SAFETY: not null, aligned and long enough, as `check` has found; readable by the clause of this function.
    // Every pattern of bits is a T, which is a number here.
    Ok(unsafe { std::slice::from_raw_parts(input.data.cast(), needed) })
}

/// # Safety
/// `output` is writable for its bytes as long as `'a`, and nobody else uses that memory.
unsafe fn write<'a, T>(argument: &str, output: &elsa_output, needed: usize) -> Result<&'a mut [T], Fault> {
    let (address, size) = (output.data as usize, size_of::<T>());
    if !check(argument, address, output.bytes, needed, size)? {
        return Ok(&mut []);
    }
    // SAFETY: not null, aligned and long enough, as `check` has found; writable by the clause of this function.
    // Every pattern of bits is a T, which is a number here.
    Ok(unsafe { std::slice::from_raw_parts_mut(output.data.cast(), needed) })
}

/// # Safety
/// As for [`read`].
unsafe fn elements<'a>(
    argument: &str,
    dtype: DType,
    input: &elsa_input,
    needed: usize,
) -> Result<Elements<'a>, Fault> {
    // SAFETY: the clause of this function.
    unsafe {
        Ok(match dtype {
            DType::F32 => Elements::F32(read::<f32>(argument, input, needed)?),
            DType::F16 => Elements::F16(read::<f16>(argument, input, needed)?),
            DType::Bf16 => Elements::Bf16(read::<bf16>(argument, input, needed)?),
        })
    }
}

/// # Safety
/// As for [`write`].
unsafe fn elements_mut<'a>(
    argument: &str,
    dtype: DType,
    output: &elsa_output,
    needed: usize,
) -> Result<ElementsMut<'a>, Fault> {
    // SAFETY: the clause of this function.
    unsafe {
        Ok(match dtype {
            DType::F32 => ElementsMut::F32(write::<f32>(argument, output, needed)?),
            DType::F16 => ElementsMut::F16(write::<f16>(argument, output, needed)?),
            DType::Bf16 => ElementsMut::Bf16(write::<bf16>(argument, output, needed)?),
        })
    }
}

/// # Safety
/// `list` is readable for its entries as long as `'a`, and nobody writes there.
unsafe fn integers<'a>(argument: &str, list: &elsa_integers, has: bool) -> Result<Option<&'a [i64]>, Fault> {
    if !has && list.data.is_null() && list.count == 0 {
        return Ok(None);
    }
    let input = elsa_input { data: list.data.cast(), bytes: list.count.saturating_mul(size_of::<i64>()) };
    // SAFETY: the clause of this function.
    unsafe { read(argument, &input, list.count) }.map(Some)
}

fn none(data: usize, bytes: usize) -> bool {
    data == 0 && bytes == 0
}

/// The tensors of a frame, with what the problem says that each needs: elements and their size.
struct Need {
    argument: &'static str,
    address: usize,
    bytes: usize,
    elements: usize,
    size: usize,
}

/// Elements of `view`; where there is none, the memory must be none, too.
fn extent(argument: &str, view: Option<usize>, data: usize, bytes: usize) -> Result<Option<usize>, Fault> {
    match view {
        None if !none(data, bytes) => Err(Fault::argument(format_args!(
            "{argument}: given, and the problem does not have it; allowed: null with 0 bytes"
        ))),
        view => Ok(view),
    }
}

fn mask_size(kind: MaskKind) -> usize {
    match kind {
        MaskKind::Bool => 1,
        MaskKind::Additive(dtype) => dtype.size(),
    }
}

/// Checks everything that can be said of the tensors without reading them: addresses, sizes, overlap.
fn check_memory(problem: &Problem, inputs: &elsa_inputs, outputs: &elsa_outputs) -> Result<(), Fault> {
    let s = problem.spec();
    let size = s.dtype.size();
    let of = |view: &Option<View>| view.as_ref().map(View::extent);
    let rows = problem.rows();
    let weights = rows.checked_mul(problem.value_dim());
    let too_large =
        || Fault::argument(format_args!("state_w: {rows} rows; allowed: sizes that can be counted"));
    let weights = weights.filter(|n| n.checked_mul(4).is_some()).ok_or_else(too_large)?;
    let mask = s.mask.as_ref();
    let i = inputs;
    let mask_bytes = mask.map_or(1, |mask| mask_size(mask.kind()));
    let read = [
        ("q", &i.q, Some(s.query.extent()), size),
        ("k", &i.k, Some(s.key.extent()), size),
        ("v", &i.v, Some(s.value.extent()), size),
        ("past_k", &i.past_k, of(&s.past_key), size),
        ("past_v", &i.past_v, of(&s.past_value), size),
        ("mask", &i.mask, mask.map(MaskView::extent), mask_bytes),
    ];
    let o = outputs;
    let single = |output: &elsa_output, n| (!none(output.data as usize, output.bytes)).then_some(n);
    let (m, sums, w) = (single(&o.state_m, rows), single(&o.state_s, rows), single(&o.state_w, weights));
    if m.is_some() != sums.is_some() || m.is_some() != w.is_some() {
        return Err(Fault::argument(format_args!(
            "state_m, state_s, state_w: some are null; allowed: all or none"
        )));
    }
    let written = [
        ("out", &o.out, Some(s.output.extent()), size),
        ("lse", &o.lse, single(&o.lse, rows), 4),
        ("state_m", &o.state_m, m, 4),
        ("state_s", &o.state_s, sums, 4),
        ("state_w", &o.state_w, w, 4),
        ("present_k", &o.present_k, of(&s.present_key), size),
        ("present_v", &o.present_v, of(&s.present_value), size),
    ];
    let need = |argument, address, bytes, view, size| -> Result<Option<Need>, Fault> {
        let Some(elements) = extent(argument, view, address, bytes)? else { return Ok(None) };
        let there = check(argument, address, bytes, elements, size)?;
        Ok(there.then_some(Need { argument, address, bytes: elements * size, elements, size }))
    };
    let mut all: heapless::Vec<Need, 16> = heapless::Vec::new();
    let mut writes = 0;
    for (argument, output, view, size) in written {
        if let Some(need) = need(argument, output.data as usize, output.bytes, view, size)? {
            // Thirteen tensors at most.
            let _ = all.push(need);
            writes += 1;
        }
    }
    for (argument, input, view, size) in read {
        if let Some(need) = need(argument, input.data as usize, input.bytes, view, size)? {
            let _ = all.push(need);
        }
    }
    for (argument, list) in [
        ("key_lengths", &i.key_lengths),
        ("cu_seqlens_q", &i.cu_seqlens_q),
        ("cu_seqlens_k", &i.cu_seqlens_k),
    ] {
        let (address, bytes) = (list.data as usize, list.count.saturating_mul(8));
        if check(argument, address, bytes, list.count, 8)? {
            let _ = all.push(Need { argument, address, bytes, elements: list.count, size: 8 });
        }
    }
    for (n, a) in all.iter().take(writes).enumerate() {
        for b in all.iter().skip(n + 1) {
            if a.address < b.address + b.bytes && b.address < a.address + a.bytes {
                return Err(Fault::argument(format_args!(
                    "{}: {} elements of {} bytes at {:#x} overlap {} at {:#x}; allowed: memory of its own",
                    a.argument, a.elements, a.size, a.address, b.argument, b.address
                )));
            }
        }
    }
    Ok(())
}

/// The tensors of a frame in memory of the host.
///
/// # Safety
/// As long as `'a`, every input is readable for its bytes and nobody writes there, and every output is writable and
/// nobody else uses it.
pub(crate) unsafe fn host<'a>(
    problem: &Problem,
    inputs: &elsa_inputs,
    outputs: &elsa_outputs,
) -> Result<(Inputs<'a>, Outputs<'a>), Fault> {
    check_memory(problem, inputs, outputs)?;
    let s = problem.spec();
    let i = inputs;
    // SAFETY: the clause of this function; `check_memory` has found no overlap of an output with anything.
    unsafe {
        let tensor =
            |argument, input: &elsa_input, view: &View| elements(argument, s.dtype, input, view.extent());
        let optional = |argument, input, view: &Option<View>| {
            view.as_ref().map(|view| tensor(argument, input, view)).transpose()
        };
        let mask = match &s.mask {
            None => None,
            Some(view) => Some(match view.kind() {
                MaskKind::Bool => MaskElements::Bool(read("mask", &i.mask, view.extent())?),
                MaskKind::Additive(dtype) => {
                    MaskElements::Additive(elements("mask", dtype, &i.mask, view.extent())?)
                }
            }),
        };
        let packed = s.packed.is_some();
        let read = Inputs {
            query: tensor("q", &i.q, &s.query)?,
            key: tensor("k", &i.k, &s.key)?,
            value: tensor("v", &i.v, &s.value)?,
            past_key: optional("past_k", &i.past_k, &s.past_key)?,
            past_value: optional("past_v", &i.past_v, &s.past_value)?,
            mask,
            lengths: Lengths {
                keys: integers("key_lengths", &i.key_lengths, s.key_lengths)?,
                cu_seqlens_q: integers("cu_seqlens_q", &i.cu_seqlens_q, packed)?,
                cu_seqlens_k: integers("cu_seqlens_k", &i.cu_seqlens_k, packed)?,
            },
        };
        let o = outputs;
        let written = |argument, output, view: &Option<View>| {
            view.as_ref().map(|view| elements_mut(argument, s.dtype, output, view.extent())).transpose()
        };
        let rows = problem.rows();
        let has = |output: &elsa_output| !none(output.data as usize, output.bytes);
        let lse = if has(&o.lse) { Some(write("lse", &o.lse, rows)?) } else { None };
        let state = if has(&o.state_m) {
            Some(StateOut {
                m: write("state_m", &o.state_m, rows)?,
                s: write("state_s", &o.state_s, rows)?,
                w: write("state_w", &o.state_w, rows * problem.value_dim())?,
            })
        } else {
            None
        };
        let written = Outputs {
            output: elements_mut("out", s.dtype, &o.out, s.output.extent())?,
            lse,
            state,
            present_key: written("present_k", &o.present_k, &s.present_key)?,
            present_value: written("present_v", &o.present_v, &s.present_value)?,
        };
        read.check(problem)?;
        written.check(problem)?;
        Ok((read, written))
    }
}

/// The tensors of a frame in memory of a GPU; the lists lie in memory of the host.
///
/// # Safety
/// As long as `'a`, the lists are readable for their entries and nobody writes there.
pub(crate) unsafe fn device<'a>(
    problem: &Problem,
    inputs: &elsa_inputs,
    outputs: &elsa_outputs,
) -> Result<(DeviceInputs<'a>, DeviceOutputs), Fault> {
    check_memory(problem, inputs, outputs)?;
    let s = problem.spec();
    let (i, o) = (inputs, outputs);
    let at = |has: bool, input: &elsa_input| has.then_some(input.data as u64);
    let to = |has: bool, output: &elsa_output| has.then_some(output.data as u64);
    let given = |output: &elsa_output| to(!output.data.is_null(), output);
    let state = match (given(&o.state_m), given(&o.state_s), given(&o.state_w)) {
        (Some(m), Some(s), Some(w)) => Some([m, s, w]),
        _ => None,
    };
    let packed = s.packed.is_some();
    // SAFETY: the clause of this function.
    let lengths = unsafe {
        Lengths {
            keys: integers("key_lengths", &i.key_lengths, s.key_lengths)?,
            cu_seqlens_q: integers("cu_seqlens_q", &i.cu_seqlens_q, packed)?,
            cu_seqlens_k: integers("cu_seqlens_k", &i.cu_seqlens_k, packed)?,
        }
    };
    let read = DeviceInputs {
        query: i.q.data as u64,
        key: i.k.data as u64,
        value: i.v.data as u64,
        past_key: at(s.past_key.is_some(), &i.past_k),
        past_value: at(s.past_value.is_some(), &i.past_v),
        mask: at(s.mask.is_some(), &i.mask),
        lengths,
    };
    let written = DeviceOutputs {
        output: o.out.data as u64,
        lse: given(&o.lse),
        state,
        present_key: to(s.present_key.is_some(), &o.present_k),
        present_value: to(s.present_value.is_some(), &o.present_v),
    };
    Ok((read, written))
}
