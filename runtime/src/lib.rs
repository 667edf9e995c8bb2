//! Engines, plans, bound plans and runs of exact attention.
//!
//! This crate is a part of [`elsa-edge`](https://docs.rs/elsa-edge). Depend on `elsa-edge` instead, because the
//! interface of this crate may change in any version.
//!
//! An [`Engine`] owns the back end and its workers. A [`Plan`] is created once per shape and contains offsets, never
//! pointers. A [`Bound`] plan contains the tensors of a call; its run neither allocates nor makes decisions. These
//! types are generic over [`operators::Operator`]. For each operator, this crate exports aliases of these types.

mod addresses;
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

/// The generic plans, bound plans and workspaces that all operators share. For each operator, this crate exports
/// aliases of these types.
pub mod operators {
    pub use crate::addresses::Addresses;
    pub use crate::bound::Bound;
    pub use crate::cuda::bound::DeviceBound;
    pub use crate::operator::{LengthsOf, Operator};
    pub use crate::plan::Plan;
    pub use crate::workspace::Workspace;
}

pub use attention::backward::{
    Backward, BackwardBound, BackwardPlan, BackwardPlanOptions, BackwardWorkspace,
};
pub use attention::cuda::stream::{
    DeviceKeys, FillAddends, FillKeys, FillRows, Fitted, GpuStream, GpuStreamOptions, KeysFrom, StreamBox,
    StreamBudget, StreamCall, StreamDivision, StreamKeys, StreamRows, StreamTimes, StreamTokens, StreamWants,
    TakeRows,
};
pub use attention::guard::StreamFit;
pub use attention::operator::{Attention, Bound, DeviceBound, DeviceInputs, DeviceOutputs, Plan, Workspace};
pub use attention::options::PlanOptions;
pub use attention::refusals::RefusedBlocks;
pub use attention::stream::certificate::StreamCertificate;
pub use attention::stream::error::StreamError;
pub use attention::stream::fit::FittedStream;
pub use attention::stream::limits::{fixed_memory, peak_memory};
pub use attention::stream::plan::{StreamOptions, StreamPlan};
pub use attention::stream::run::StreamReport;
pub use attention::task::{
    BackwardTaskPlan, BackwardTaskReport, GradientMerge, GradientSizes, RowStates, TaskGradients, TaskMerge,
    TaskPlan, TaskReport, TaskTokens,
};
pub use attention::traversed::Traversed;
pub use attention::tuned::{Tuned, TunedFile, TunedShape, Tuning};
pub use backend::{Backend, UnknownBackend};
pub use cpu::float::in_default as in_default_float_environment;
pub use cpu::host::{HostTask, HostThreads, ParallelFor};
pub use cpu::limits::{AvailableMemory, MemoryLimit, available_memory};
pub use cpu::place::place_thread;
pub use cpu::spin::Spin;
pub use cuda::device::Trust;
pub use cuda::driver::{RawEvent, RawStream};
pub use cuda::gpu::{CudaContext, CudaOptions, DeviceInfo, LoadedKernel};
pub use cuda::host::CallTimes;
pub use cuda::memory::{Element, HostBuffer};
pub use engine::{Engine, EngineOptions, Fallback};
pub use error::{BindError, DeviceError, PlanError, RunError};
pub use linear::certify::LinearCertificate;
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

pub use elsa_core::attention::plan::{Account, Method, Part, TensorCores, UnitSizes, Written};
pub use elsa_core::profile::InstructionSet;
