//! A stream: its plan, its memory, and the order of its work.

use super::memory::Memory;
use super::plan::{self, GpuStreamOptions, StreamDivision, StreamPlan};
use super::steps;
use crate::attention::stream::error::StreamError;
use crate::cpu::limits::available_memory;
use crate::cuda::driver::{Context, Event, Function, Stream};
use crate::cuda::gpu::Gpu;
use crate::engine::Engine;
use crate::error::DeviceError;
use elsa_core::attention::Problem;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use std::sync::Arc;

/// Number of steps whose events are kept: two steps in progress, the step whose times are read, and the step before it.
pub const MARKS: usize = 4;

/// The events that record the times of a step.
#[derive(Debug)]
pub struct Marks {
    /// Events before and after the copies of the step's keys, values, mask and bias.
    pub copy: [Event; 2],
    /// Events before and after the step's products.
    pub work: [Event; 2],
}

impl Marks {
    fn new(context: &Arc<Context>) -> Result<Marks, DeviceError> {
        let event = || Event::timed(context);
        Ok(Marks { copy: [event()?, event()?], work: [event()?, event()?] })
    }
}

/// Returns the kernel that merges the states of a chunk with those of earlier chunks, and the number of states that the
/// kernel absorbs at once.
pub fn merging() -> Result<(&'static GpuKernel, usize), DeviceError> {
    let found = GPU_KERNELS.iter().find_map(|k| match k.role {
        Role::AttentionStream { states, .. } => Some((k, states)),
        _ => None,
    });
    found.ok_or(DeviceError::NoKernel { role: "streaming" })
}

/// Attention on a GPU over keys and values of any length, which are streamed in chunks past resident queries.
///
/// A stream owns all memory that its runs need; a run allocates nothing on the device. The bits of the results depend
/// on the problem, the device, and the number of keys per split (`division.keys / division.splits`). They do not depend
/// on the number of resident queries, the splits per chunk, or the source of the keys.
///
/// Masks and biases are transferred for each pair of a query block and a key chunk. Past keys come before the new keys.
/// Windows are processed picture by picture, and packed sequences one by one.
#[derive(Debug)]
pub struct GpuStream {
    pub(super) engine: Engine,
    pub(super) plan: StreamPlan,
    pub(super) context: Arc<Context>,
    pub(super) attention: Function,
    pub(super) merge: Function,
    /// Stream for products. Before a run returns, it waits for this stream and for `copy`. After the run, no work uses
    /// the fields below.
    pub(super) compute: Stream,
    pub(super) copy: Stream,
    pub(super) start: Event,
    pub(super) done: Event,
    pub(super) marks: [Marks; MARKS],
    pub(super) memory: Memory,
}

fn gpu_of(engine: &Engine) -> Result<&Arc<Gpu>, StreamError> {
    engine.gpu().ok_or(StreamError::NoGpu)
}

impl GpuStream {
    /// Creates a stream and allocates everything that its runs need. Before it allocates host memory, checks the limits
    /// of the machine, of control groups and of the process.
    ///
    /// # Errors
    /// Returns an error if the engine has no GPU, if the problem or the division is not supported, if memory is not
    /// available, or if the device fails.
    pub fn new(
        engine: &Engine,
        problem: &Problem,
        options: &GpuStreamOptions,
    ) -> Result<GpuStream, StreamError> {
        let gpu = gpu_of(engine)?;
        let plan = StreamPlan::new(gpu, problem, options)?;
        let [device, pinned] = plan.bytes();
        let needed = if gpu.profile().integrated { pinned.saturating_add(device) } else { pinned };
        if let Some(room) = available_memory()
            && needed as u64 > room.bytes
        {
            return Err(StreamError::Limit { needed, available: room.bytes, limit: room.limit.name() });
        }
        let context = gpu.context()?;
        let attention = gpu.function(&context, plan.kernel)?;
        let merge = gpu.function(&context, merging()?.0)?;
        let memory = Memory::new(&context, plan.layouts[0], plan.layouts[1])?;
        let marks = || Marks::new(&context);
        Ok(GpuStream {
            engine: engine.clone(),
            compute: Stream::new(&context)?,
            copy: Stream::new(&context)?,
            start: Event::timed(&context)?,
            done: Event::new(&context)?,
            marks: [marks()?, marks()?, marks()?, marks()?],
            plan,
            context,
            attention,
            merge,
            memory,
        })
    }

    /// Returns the number of query rows per thread block of the kernel for this problem. [`StreamDivision::rows`] is a
    /// multiple of this number, or the number of all queries per sequence and head.
    ///
    /// # Errors
    /// Returns an error if the engine has no GPU, or if no kernel supports the problem.
    pub fn kernel_rows(engine: &Engine, problem: &Problem, half_scores: bool) -> Result<usize, StreamError> {
        let (_, choice) = plan::kernel(gpu_of(engine)?, problem, half_scores)?;
        Ok(choice.kernel.rows)
    }

    /// Returns the number of bytes of device memory and the number of bytes of page-locked memory that a stream would
    /// allocate. On an integrated GPU, both kinds are memory of the host.
    ///
    /// # Errors
    /// Returns an error if the engine has no GPU, or if the problem or the division is not supported.
    pub fn bytes_of(
        engine: &Engine,
        problem: &Problem,
        options: &GpuStreamOptions,
    ) -> Result<[usize; 2], StreamError> {
        Ok(StreamPlan::new(gpu_of(engine)?, problem, options)?.bytes())
    }

    /// Returns the problem.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.plan.problem
    }

    /// Returns the name of the attention kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.plan.kernel.name
    }

    /// Returns the number of bytes of device memory and the number of bytes of page-locked memory that the stream has
    /// allocated.
    #[must_use]
    pub fn bytes(&self) -> [usize; 2] {
        self.memory.bytes()
    }

    /// Returns the division of queries and keys.
    #[must_use]
    pub fn division(&self) -> StreamDivision {
        self.plan.options.division
    }

    /// Returns the number of query rows that are resident at once, summed over heads and sequences. With packed
    /// sequences, fewer rows may be resident.
    #[must_use]
    pub fn resident_rows(&self) -> usize {
        let problem = &self.plan.problem;
        let rows = self.plan.options.division.rows.min(problem.spec().query.tokens());
        rows.saturating_mul(problem.heads()).saturating_mul(steps::at_once(problem))
    }

    /// Frees all memory and all driver objects of the stream. Dropping the stream does the same, but logs errors
    /// instead of returning them.
    ///
    /// # Errors
    /// Returns the first error that the driver reports. Everything else is freed even after an error.
    pub fn close(self) -> Result<(), DeviceError> {
        let GpuStream { compute, copy, start, done, marks, memory, .. } = self;
        let mut closed = vec![compute.close(), copy.close(), start.close(), done.close()];
        for Marks { copy, work } in marks {
            closed.extend(copy.into_iter().chain(work).map(crate::cuda::driver::Event::close));
        }
        closed.push(memory.close());
        closed.into_iter().collect()
    }
}
