//! Conversion between the numbers and structs of the ABI and the types of the runtime.

use crate::fault::Fault;
use crate::types::*;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::plan::Written;
use elsa_core::attention::{
    Alignment, BiasView, MaskKind, MaskView, Problem, Spec, TableView, Window, Windows,
};
use elsa_core::dtype::DType;
use elsa_core::linear::{self, Direction, Form, Rule};
use elsa_core::series::Series;
use elsa_core::series::convolution::{self, Taps};
use elsa_core::series::recurrence::{self, Gate};
use elsa_core::series::selective::{self, Coefficient};
use elsa_core::view::View;
use elsa_runtime::{
    Backend, ConvolutionOptions, CudaContext, CudaOptions, EngineOptions, Fallback, LinearPlanOptions,
    Method, PlanOptions, RecurrenceOptions, SelectiveOptions, Spin, StreamOptions,
};
use std::time::Duration;

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

pub(crate) fn fallback_number(fallback: Fallback) -> elsa_fallback {
    match fallback {
        Fallback::Cpu => ELSA_FALLBACK_CPU,
        Fallback::Fail => ELSA_FALLBACK_FAIL,
    }
}

/// Converts the options of an engine. The options behind pointers are left out: the name of threads, the list of cores
/// and the hook of the host.
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
    let cuda = CudaOptions::default().device(o.cuda_device).context(context);
    let spin = match u64::try_from(o.spin_us) {
        Ok(0) => Spin::default(),
        Ok(micros) => Spin::For(Duration::from_micros(micros)),
        Err(_) => Spin::Never,
    };
    let priority = match (o.priority, u8::try_from(o.priority)) {
        (0, _) => None,
        (_, Ok(priority)) => Some(priority),
        (found, Err(_)) => {
            return Err(Fault::argument(format_args!("priority: {found}; allowed: 1 to 99, or 0")));
        }
    };
    let backend = backend(o.backend)?;
    Ok(EngineOptions::default()
        .backend(backend)
        .threads(threads)
        .spin(spin)
        .priority(priority)
        .fallback(fallback)
        .cuda(cuda))
}

pub(crate) fn plan_options(o: &elsa_plan_options) -> Result<PlanOptions, Fault> {
    let method = match o.method {
        ELSA_METHOD_ELSA => Method::Elsa,
        ELSA_METHOD_MATH => Method::Math,
        found => return unknown("method", found, "one of ELSA_METHOD_*"),
    };
    let default = PlanOptions::default();
    Ok(default
        .method(method)
        .block(if o.block == 0 { default.block } else { o.block })
        .budget((o.budget != 0).then_some(o.budget))
        .half_scores(o.half_scores != 0)
        .certify(o.certify != 0))
}

pub(crate) fn stream_options(o: &elsa_stream_options) -> Result<StreamOptions, Fault> {
    if o.reserved != 0 {
        return unknown("reserved", o.reserved, "0");
    }
    if o.outputs & !(ELSA_STREAM_OUT | ELSA_STREAM_LSE | ELSA_STREAM_STATES) != 0 {
        return unknown("outputs", o.outputs, "ELSA_STREAM_* together, or 0");
    }
    if !(o.eta.is_finite() && o.eta >= 0.0) {
        return Err(Fault::argument(format_args!("eta: {}; allowed: a positive number, or 0", o.eta)));
    }
    let default = StreamOptions::new(o.host_budget);
    let has = |output: elsa_stream_outputs| o.outputs & output != 0;
    let some =
        Written { output: has(ELSA_STREAM_OUT), lse: has(ELSA_STREAM_LSE), states: has(ELSA_STREAM_STATES) };
    Ok(default
        .plan(default.plan.block(if o.block == 0 { default.plan.block } else { o.block }))
        .written(if o.outputs == 0 { default.written } else { some })
        .eta(if o.eta == 0.0 { default.eta } else { o.eta }))
}

fn dtype(argument: &str, value: elsa_dtype) -> Result<DType, Fault> {
    match value {
        ELSA_DTYPE_F32 => Ok(DType::F32),
        ELSA_DTYPE_F16 => Ok(DType::F16),
        ELSA_DTYPE_BF16 => Ok(DType::Bf16),
        found => unknown(argument, found, "one of ELSA_DTYPE_*"),
    }
}

pub(crate) fn dtype_number(dtype: DType) -> elsa_dtype {
    match dtype {
        DType::F32 => ELSA_DTYPE_F32,
        DType::F16 => ELSA_DTYPE_F16,
        DType::Bf16 => ELSA_DTYPE_BF16,
    }
}

/// Converts a mask or a dense bias; `argument` is its name in messages.
fn mask(argument: &'static str, mask: &elsa_mask) -> Result<Option<MaskView>, Fault> {
    let kind = match mask.kind {
        ELSA_MASK_NONE => return Ok(None),
        ELSA_MASK_BOOL => MaskKind::Bool,
        ELSA_MASK_F32 => MaskKind::Additive(DType::F32),
        ELSA_MASK_F16 => MaskKind::Additive(DType::F16),
        ELSA_MASK_BF16 => MaskKind::Additive(DType::Bf16),
        found => return unknown(&format!("{argument}.kind"), found, "one of ELSA_MASK_*"),
    };
    match usize::try_from(mask.rank).ok().and_then(|rank| mask.dims.get(..rank)) {
        Some(dims) => Ok(Some(MaskView::dense(kind, dims).map_err(|e| e.renamed(|_| argument))?)),
        None => unknown(&format!("{argument}.rank"), mask.rank, "1 to 4"),
    }
}

/// Converts the bias, which is either a tensor or a table. If both are given, returns an error.
fn bias(tensor: &elsa_mask, table: &elsa_table) -> Result<Option<BiasView>, Fault> {
    let tensor = mask("bias", tensor)?;
    if *table == elsa_table::default() {
        return Ok(tensor.map(BiasView::Dense));
    }
    if tensor.is_some() {
        return Err(ArgumentError::Conflict { argument: "bias", other: "bias_table" }.into());
    }
    let elsa_table { entries, heads, .. } = *table;
    let (dtype, indexed) = (dtype("bias_table.dtype", table.dtype)?, table.has_index != 0);
    Ok(Some(BiasView::Table(TableView { dtype, entries, heads, indexed })))
}

fn windows(w: &elsa_windows) -> Option<Windows> {
    (*w != elsa_windows::default()).then_some(Windows { picture: w.picture, size: w.size, shift: w.shift })
}

fn side(argument: &str, has: u32, keys: i64) -> Result<Option<usize>, Fault> {
    match usize::try_from(keys) {
        Ok(keys) => Ok((has != 0).then_some(keys)),
        Err(_) if has == 0 => Ok(None),
        Err(_) => Err(Fault::argument(format_args!("{argument}: {keys}; allowed: 0 or more"))),
    }
}

pub(crate) fn problem(p: &elsa_problem) -> Result<Problem, Fault> {
    if p.reserved != 0 {
        return unknown("reserved", p.reserved, "0");
    }
    let view = |argument, view: &elsa_view| View::new(argument, view.shape, view.strides);
    let optional = |has: u32, argument, v: &elsa_view| (has != 0).then(|| view(argument, v)).transpose();
    let mut spec = Spec::new(
        dtype("dtype", p.dtype)?,
        view("q", &p.q)?,
        view("k", &p.k)?,
        view("v", &p.v)?,
        view("out", &p.out)?,
    );
    spec.past_key = optional(p.has_past, "past_k", &p.past_k)?;
    spec.past_value = optional(p.has_past, "past_v", &p.past_v)?;
    spec.present_key = optional(p.has_present, "present_k", &p.present_k)?;
    spec.present_value = optional(p.has_present, "present_v", &p.present_v)?;
    spec.append = p.append != 0;
    spec.scale = (p.has_scale != 0).then_some(p.scale);
    spec.softcap = Some(p.softcap);
    spec.causal = match p.causal {
        ELSA_CAUSAL_NONE => None,
        ELSA_CAUSAL_TOP_LEFT => Some(Alignment::TopLeft),
        ELSA_CAUSAL_BOTTOM_RIGHT => Some(Alignment::BottomRight),
        found => return unknown("causal", found, "one of ELSA_CAUSAL_*"),
    };
    spec.window = Window {
        left: side("window_left", p.has_window_left, p.window_left)?,
        right: side("window_right", p.has_window_right, p.window_right)?,
    };
    spec.mask = mask("mask", &p.mask)?;
    spec.bias = bias(&p.bias, &p.bias_table)?;
    spec.windows = windows(&p.windows);
    spec.key_lengths = p.has_key_lengths != 0;
    spec.packed = (p.packed != 0).then_some(p.packed);
    Ok(spec.check()?)
}

/// Converts the view of an optional tensor; `None` if `has` is 0.
fn optional(has: u32, argument: &'static str, view: &elsa_view) -> Result<Option<View>, ArgumentError> {
    (has != 0).then(|| View::new(argument, view.shape, view.strides)).transpose()
}

/// Converts the element types of the gates and of the other tensors. Returns an error unless the gates are f32 or
/// have the type of the other tensors.
pub(crate) fn gated_types(most: elsa_dtype, gates: elsa_dtype) -> Result<(DType, DType), Fault> {
    let most = dtype("dtype", most)?;
    match dtype("gate_dtype", gates)? {
        found if found == DType::F32 || found == most => Ok((most, found)),
        _ => unknown("gate_dtype", gates, "ELSA_DTYPE_F32, or dtype"),
    }
}

pub(crate) fn linear_problem(p: &elsa_linear_problem) -> Result<linear::Problem, Fault> {
    if p.reserved != 0 {
        return unknown("reserved", p.reserved, "0");
    }
    let view = |argument, view: &elsa_view| View::new(argument, view.shape, view.strides);
    let (q, k, v) = (view("q", &p.q)?, view("k", &p.k)?, view("v", &p.v)?);
    let (dtype, gate_dtype) = gated_types(p.dtype, p.gate_dtype)?;
    let mut spec = linear::Spec::new(dtype, q, k, v, view("out", &p.out)?);
    spec.gate_dtype = gate_dtype;
    spec.rule = match p.rule {
        ELSA_RULE_LINEAR => Rule::Linear,
        ELSA_RULE_GATED => Rule::Gated,
        ELSA_RULE_DELTA => Rule::Delta,
        ELSA_RULE_GATED_DELTA => Rule::GatedDelta,
        found => return unknown("rule", found, "one of ELSA_RULE_*"),
    };
    spec.direction = match p.direction {
        ELSA_DIRECTION_FORWARD => Direction::Forward,
        ELSA_DIRECTION_REVERSE => Direction::Reverse,
        ELSA_DIRECTION_BIDIRECTIONAL => Direction::Bidirectional,
        ELSA_DIRECTION_NON_CAUSAL => Direction::NonCausal,
        found => return unknown("direction", found, "one of ELSA_DIRECTION_*"),
    };
    spec.decay = optional(p.has_decay, "decay", &p.decay)?;
    spec.beta = optional(p.has_beta, "beta", &p.beta)?;
    spec.past_state = optional(p.has_past_state, "past_state", &p.past_state)?;
    spec.present_state = optional(p.has_present_state, "present_state", &p.present_state)?;
    spec.in_place = p.in_place != 0;
    spec.scale = (p.has_scale != 0).then_some(p.scale);
    spec.normalize = (p.has_normalize != 0).then_some(p.normalize);
    spec.packed = (p.packed != 0).then_some(p.packed);
    Ok(spec.check()?)
}

/// Algorithms of linear attention and their numbers in the ABI.
const FORMS: [(elsa_form, Form); 5] = [
    (ELSA_FORM_RECURRENT, Form::Recurrent),
    (ELSA_FORM_CHUNK, Form::Chunk),
    (ELSA_FORM_FUSED_CHUNK, Form::FusedChunk),
    (ELSA_FORM_PARALLEL, Form::Parallel),
    (ELSA_FORM_SCAN, Form::Scan),
];

pub(crate) fn form_number(form: Form) -> elsa_form {
    FORMS.into_iter().find(|(_, of)| *of == form).map_or(ELSA_FORM_AUTO, |(number, _)| number)
}

pub(crate) fn linear_options(o: &elsa_linear_options) -> Result<LinearPlanOptions, Fault> {
    if o.reserved != 0 {
        return unknown("reserved", o.reserved, "0");
    }
    let form = match FORMS.into_iter().find(|(number, _)| *number == o.form) {
        Some((_, form)) => Some(form),
        None if o.form == ELSA_FORM_AUTO => None,
        None => return unknown("form", o.form, "one of ELSA_FORM_*"),
    };
    let some = |n: usize| (n != 0).then_some(n);
    let (chunk, parts, budget) = (some(o.chunk), some(o.parts), some(o.budget));
    Ok(LinearPlanOptions::default().form(form).chunk(chunk).parts(parts).budget(budget))
}

fn series(argument: &'static str, view: &elsa_view) -> Result<Series, ArgumentError> {
    View::new(argument, view.shape, view.strides).map(Series::of)
}

pub(crate) fn recurrence_problem(p: &elsa_recurrence_problem) -> Result<recurrence::Problem, Fault> {
    if p.reserved != 0 {
        return unknown("reserved", p.reserved, "0");
    }
    let mut spec = recurrence::Spec::new(series("a", &p.a)?, series("b", &p.b)?, series("out", &p.out)?);
    spec.gate = match p.gate {
        ELSA_GATE_FACTOR => Gate::Factor,
        ELSA_GATE_LOG => Gate::Log,
        found => return unknown("gate", found, "one of ELSA_GATE_*"),
    };
    (spec.reverse, spec.in_place) = (p.reverse != 0, p.in_place != 0);
    Ok(spec.check()?)
}

pub(crate) fn selective_problem(p: &elsa_selective_problem) -> Result<selective::Problem, Fault> {
    let coefficient = |fixed: u32, argument, view: &elsa_view| match fixed {
        0 => series(argument, view).map(Coefficient::Token),
        _ => Ok(Coefficient::Channel),
    };
    let (b, c) = (coefficient(p.fixed_b, "b", &p.b)?, coefficient(p.fixed_c, "c", &p.c)?);
    let (u, delta, out) = (series("u", &p.u)?, series("delta", &p.delta)?, series("out", &p.out)?);
    let mut spec = selective::Spec::new(u, delta, p.states, b, c, out);
    spec.z = (p.has_z != 0).then(|| series("z", &p.z)).transpose()?;
    (spec.softplus, spec.reverse, spec.in_place) = (p.softplus != 0, p.reverse != 0, p.in_place != 0);
    Ok(spec.check()?)
}

pub(crate) fn convolution_problem(p: &elsa_convolution_problem) -> Result<convolution::Problem, Fault> {
    let mut spec = convolution::Spec::new(series("u", &p.u)?, p.taps, series("out", &p.out)?);
    spec.order = match p.order {
        ELSA_TAPS_NEWEST_FIRST => Taps::NewestFirst,
        ELSA_TAPS_NEWEST_LAST => Taps::NewestLast,
        found => return unknown("order", found, "one of ELSA_TAPS_*"),
    };
    (spec.shared, spec.silu) = (p.shared != 0, p.silu != 0);
    (spec.reverse, spec.in_place) = (p.reverse != 0, p.in_place != 0);
    Ok(spec.check()?)
}

/// Options of a plan of a recurrence, a selective scan or a convolution.
struct SeriesOptions {
    parts: Option<usize>,
    budget: Option<usize>,
    method: Option<convolution::Method>,
}

/// Converts the options of a recurrence, a selective scan or a convolution. Returns an error if they set parts for an
/// operator without parts, or a method for an operator without methods.
fn series_options(
    o: &elsa_series_options,
    has_parts: bool,
    has_methods: bool,
) -> Result<SeriesOptions, Fault> {
    if o.reserved != 0 {
        return unknown("reserved", o.reserved, "0");
    }
    if o.parts != 0 && !has_parts {
        return Err(Fault::argument(format_args!("parts: {}; allowed: 0, but for a recurrence", o.parts)));
    }
    let method = match o.method {
        ELSA_CONVOLUTION_AUTO => None,
        found if !has_methods => return unknown("method", found, "0, but for a convolution"),
        ELSA_CONVOLUTION_DIRECT => Some(convolution::Method::Direct),
        ELSA_CONVOLUTION_FFT => Some(convolution::Method::Fft),
        found => return unknown("method", found, "one of ELSA_CONVOLUTION_*"),
    };
    let some = |n: usize| (n != 0).then_some(n);
    Ok(SeriesOptions { parts: some(o.parts), budget: some(o.budget), method })
}

pub(crate) fn recurrence_options(o: &elsa_series_options) -> Result<RecurrenceOptions, Fault> {
    let SeriesOptions { parts, budget, .. } = series_options(o, true, false)?;
    Ok(RecurrenceOptions::default().parts(parts).budget(budget))
}

pub(crate) fn selective_options(o: &elsa_series_options) -> Result<SelectiveOptions, Fault> {
    let SeriesOptions { budget, .. } = series_options(o, false, false)?;
    Ok(SelectiveOptions::default().budget(budget))
}

pub(crate) fn convolution_options(o: &elsa_series_options) -> Result<ConvolutionOptions, Fault> {
    let SeriesOptions { budget, method, .. } = series_options(o, false, true)?;
    Ok(ConvolutionOptions::default().budget(budget).method(method))
}

pub(crate) fn convolution_method_number(method: convolution::Method) -> elsa_convolution_method {
    match method {
        convolution::Method::Direct => ELSA_CONVOLUTION_DIRECT,
        convolution::Method::Fft => ELSA_CONVOLUTION_FFT,
    }
}
