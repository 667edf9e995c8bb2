//! Plans as data: candidate kernels, the choice for CPUs and GPUs, and the layout of their workspaces.

mod budget;
mod choice;
mod choose;
mod gpu;
mod gpu_choice;
mod gpu_math;
mod gpu_split;
mod kernel;
mod layout;
mod race;
mod share;
#[cfg(test)]
mod testing;
mod tuned;

pub use budget::{Account, Limits, Part, StreamChoice, StreamOptions, UnitSizes, Written, choose_stream};
pub use choice::{
    BLOCK_SIZES, CpuChoice, CpuDivision, Division, Keeps, LongestPath, MAX_TILES, Method, Options, TaskOrder,
};
pub use choose::choose;
pub use gpu::choose_gpu;
pub use gpu_choice::{
    ARRIVALS, ByteSpan, GpuChoice, GpuKernelSpec, GpuOptions, GpuResources, GpuWorkspaceLayout,
    SEQUENCE_BYTES, SplitChoice, Summation, TensorCores,
};
pub use gpu_math::choose_gpu_math;
pub use gpu_split::{SplitKernels, choose_gpu_split};
pub use kernel::{KernelSpec, KeyLayout};
pub use layout::{NORMS, TileSpans, WorkspaceLayout};
pub use race::{Generation, Pace, Paces};
pub use tuned::{Changes, ShapeClass, alternatives, cpu_alternatives};
