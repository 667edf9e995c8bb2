//! Exact attention on the CPU or an NVIDIA GPU, with a proven bound on the error of each output.
//!
//! ```
//! use elsa_edge::{DType, Engine, EngineOptions, View, attention::{Inputs, Outputs, Spec}};
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let view = View::bhnd("q", [1, 12, 197, 64])?; // batch, heads, tokens, head size
//!     let (x, mut y) = (vec![0.5f32; view.count()], vec![0.0f32; view.count()]);
//!     let problem = Spec::new(DType::F32, view, view, view, view).check()?;
//!     let engine = Engine::new(&EngineOptions::default())?;
//!     engine.attention(&problem, Inputs::new(&x[..], &x[..], &x[..]), Outputs::new(&mut y[..]))?;
//!     println!("the answer begins with {:.3}", y[0]);
//!     Ok(())
//! }
//! ```
//!
//! # From one call to many
//!
//! A program that computes one shape many times plans it once: [`Engine`] → [`Plan`](attention::Plan) →
//! [`Bound`](attention::Bound) → run.
//!
//! An [`Engine`] owns the back end and its workers. A plan is created once per shape and contains offsets, never
//! pointers. A bound plan borrows the tensors of a call and is cheap to create. [`run`](operators::Bound::run) neither
//! allocates nor makes decisions, and produces the same bits each time, for any number of threads and any batch size.
//!
//! ```
//! use elsa_edge::{DType, Engine, EngineOptions, View, attention::{Inputs, Outputs, PlanOptions, Spec}};
//!
//! let view = View::bhnd("q", [1, 2, 5, 8])?;
//! let problem = Spec::new(DType::F32, view, view, view, view).check()?;
//! let engine = Engine::new(&EngineOptions::default())?;
//! let plan = engine.plan(&problem, &PlanOptions::default())?;
//! let mut workspace = plan.workspace()?;
//!
//! let q = vec![0.5f32; view.count()];
//! let mut y = vec![0.0f32; view.count()];
//! let inputs = Inputs::new(&q[..], &q[..], &q[..]);
//! let mut bound = plan.bind(inputs, Outputs::new(&mut y[..]), &mut workspace)?;
//! let report = bound.run()?;
//! println!("{} computed with {}", report.backend, plan.kernel());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The GPU
//!
//! If a GPU is available, it does the work. The tensors are in host memory or in the GPU's memory. For tensors in the
//! GPU's memory ([`bind_device`](operators::Plan::bind_device)), the caller may provide a stream, and the work then
//! runs in this stream. If no GPU is available, or the GPU fails, [`Fallback`] decides whether the CPU computes
//! instead; the [`Report`] of a run states what happened. [`HostBuffer`] is host memory that a GPU can access.
//!
//! # Modules
//!
//! | module | operators |
//! |---|---|
//! | [`attention`] | softmax attention, its gradients, error certificates, schedules that skip keys |
//! | [`linear`] | linear attention and delta rules |
//! | [`series`] | recurrence, selective scan and convolution on separate channels |
//! | [`stream`] | attention over tensors that are larger than memory |
//! | [`quorum`] | attention divided into tasks, for several boards |
//! | [`operators`] | the types that all operators share |

#![forbid(unsafe_code)]

pub mod attention;
pub mod linear;
pub mod quorum;
pub mod series;
pub mod stream;

#[doc(inline)]
pub use elsa_core::argument::ArgumentError;
#[doc(inline)]
pub use elsa_core::dtype::{DType, Elements, ElementsMut};
#[doc(inline)]
pub use elsa_core::memory::Memory;
#[doc(inline)]
pub use elsa_core::plan::ChooseError;
#[doc(inline)]
pub use elsa_core::profile::{DeviceProfile, InstructionSet};
#[doc(inline)]
pub use elsa_core::view::{Layout, View};
#[doc(inline)]
pub use elsa_runtime::{
    AvailableMemory, Backend, BindError, CallTimes, CudaContext, CudaOptions, DeviceError, DeviceInfo,
    Element, Engine, EngineOptions, Fallback, HostBuffer, HostTask, HostThreads, LoadedKernel, MemoryLimit,
    ParallelFor, PlanError, Present, RawEvent, RawStream, Reason, Report, RunError, Spin, Trust,
    UnknownBackend, available_memory, backends, in_default_float_environment, operators, place_thread,
};
pub use half::{bf16, f16};
