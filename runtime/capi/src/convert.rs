//! Conversion between the numbers and structs of the ABI and the types of the runtime, for all operators. The problems
//! and options of an operator are converted in its folder.

use crate::fault::Fault;
use crate::types::*;
use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::view::View;
use elsa_runtime::{Backend, CudaContext, CudaOptions, EngineOptions, Fallback, Spin};
use std::time::Duration;

pub(crate) fn unknown<T>(argument: &str, found: u32, allowed: &str) -> Result<T, Fault> {
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

pub(crate) fn dtype(argument: &str, value: elsa_dtype) -> Result<DType, Fault> {
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

/// Converts the view of an optional tensor; `None` if `has` is 0.
pub(crate) fn optional(
    has: u32,
    argument: &'static str,
    view: &elsa_view,
) -> Result<Option<View>, ArgumentError> {
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
