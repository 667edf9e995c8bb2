//! Exact attention on the CPU or an NVIDIA GPU: [`Engine`] → [`Plan`] → [`Bound`] → run.
//!
//! An [`Engine`] owns the back end and its workers. A [`Plan`] is created once per shape and holds offsets, never
//! pointers. A [`Bound`] plan holds the tensors of a call and is cheap to create. [`Bound::run`] neither allocates
//! nor makes decisions, and produces the same bits for any number of threads, any batch size and any repetition.
//!
//! If a GPU is available, it computes: on host tensors ([`Plan::bind`]), or on tensors in its own memory and in
//! the caller's stream ([`Plan::bind_device`]). If it is missing or fails, [`Fallback`] decides whether the CPU
//! computes instead; the [`Report`] of a run states what happened. [`HostBuffer`] is host memory that a GPU can
//! use.
//!
//! Tensors that are larger than memory are streamed ([`Engine::stream`]): their parts come from a [`Source`] and go to a
//! [`Sink`], the process stays within a budget, and the bits are those of a run in memory. [`prefetch`] has the two
//! buffers through which parts pass.
//!
//! ```
//! use elsa_core::{attention::{Inputs, Outputs, Spec}, dtype::{DType, Elements, ElementsMut}, view::{Layout, View}};
//! use elsa_runtime::{Engine, EngineOptions, PlanOptions};
//!
//! let (heads, tokens, dim) = (2, 5, 8);
//! let q = vec![0.5f32; heads * tokens * dim];
//! let mut y = vec![0.0f32; q.len()];
//! let view = View::dense("q", Layout::Bhnd, &[heads, tokens, dim], None)?;
//! let problem = Spec::new(DType::F32, view, view, view, view).check()?;
//!
//! let engine = Engine::new(&EngineOptions::default())?;
//! let plan = engine.plan(&problem, &PlanOptions::default())?;
//! let mut workspace = plan.workspace()?;
//! let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&q), Elements::F32(&q));
//! plan.bind(inputs, Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?.run()?;
//! assert!((y[0] - 0.5).abs() < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
mod backend;
mod bound;
mod cpu;
mod cuda;
mod engine;
mod error;
mod linear;
mod operator;
mod plan;
mod presence;
mod problem;
mod report;
mod series;
mod stream;
mod tensors;
#[cfg(test)]
mod testing;
mod warm;
mod workspace;

/// Types shared by all operators: plans, bound calls and workspaces. Each operator has aliases of them in this
/// crate.
pub mod operators {
    pub use crate::bound::Bound;
    pub use crate::cuda::bound::DeviceBound;
    pub use crate::operator::Operator;
    pub use crate::plan::Plan;
    pub use crate::workspace::Workspace;
}

pub use attention::backward::{
    Backward, BackwardBound, BackwardPlan, BackwardPlanOptions, BackwardWorkspace,
};
pub use attention::cuda::stream::{
    DeviceKeys, FillAdded, FillKeys, FillRows, Fitted, GpuStream, GpuStreamOptions, KeysFrom, StreamBox,
    StreamBudget, StreamCall, StreamDivision, StreamKeys, StreamRows, StreamTimes, StreamTokens, StreamWants,
    TakeRows,
};
pub use attention::guard::StreamFit;
pub use attention::operator::{Attention, Bound, DeviceBound, DeviceInputs, DeviceOutputs, Plan, Workspace};
pub use attention::options::PlanOptions;
pub use attention::stream::certificate::StreamCertificate;
pub use attention::stream::error::StreamError;
pub use attention::stream::fit::FittedStream;
pub use attention::stream::limits::peak_memory;
pub use attention::stream::plan::{StreamOptions, StreamPlan};
pub use attention::stream::run::StreamReport;
pub use attention::task::{
    BackwardTaskPlan, BackwardTaskReport, GradientMerge, GradientSizes, Held, RowStates, TaskGradients,
    TaskMerge, TaskPlan, TaskReport,
};
pub use attention::traversed::Traversed;
pub use attention::tuned::{Tuned, TunedFile, TunedShape, Tuning};
pub use backend::{Backend, UnknownBackend};
pub use cpu::float::in_default as in_default_float_environment;
pub use cpu::host::{HostTask, HostThreads, ParallelFor};
pub use cpu::limits::{AvailableMemory, MemoryLimit, available_memory};
pub use cpu::spin::Spin;
pub use cuda::driver::RawStream;
pub use cuda::gpu::{CudaContext, CudaOptions, DeviceInfo, LoadedKernel};
pub use cuda::host::CallTimes;
pub use cuda::memory::{Element, HostBuffer};
pub use engine::{Engine, EngineOptions, Fallback};
pub use error::{BindError, DeviceError, PlanError, RunError};
pub use linear::cuda::LinearGpuChoice;
pub use linear::operator::{
    Linear, LinearBound, LinearDeviceBound, LinearDeviceInputs, LinearDeviceOutputs, LinearPlan,
    LinearWorkspace,
};
pub use linear::options::LinearPlanOptions;
pub use linear::plan::LinearDivision;
pub use presence::{Present, backends};
pub use report::{Reason, Report};
pub use series::cuda::SeriesGpuChoice;
pub use series::operators::{
    Convolution, ConvolutionBound, ConvolutionDeviceInputs, ConvolutionPlan, ConvolutionWorkspace,
    Recurrence, RecurrenceBound, RecurrenceDeviceInputs, RecurrencePlan, RecurrenceWorkspace, Selective,
    SelectiveBound, SelectiveDeviceInputs, SelectivePlan, SelectiveWorkspace,
};
pub use series::options::{ConvolutionOptions, RecurrenceOptions, SelectiveOptions};
pub use series::plan::SeriesDivision;
pub use series::tensors::{DeviceElements, SeriesDeviceOutputs};
pub use stream::{Excerpt, PieceError, RowSink, RowSource, Sink, Source, Times, prefetch};

pub use elsa_core::attention::plan::{Account, Method, Part, UnitSizes, Written};
pub use elsa_core::profile::InstructionSet;
