//! Plans as data: candidate kernels, the choice among them, and the layout of the workspace.

mod choice;
mod choose;
mod gpu;
mod kernel;
mod layout;

pub use choice::{BLOCK_SIZES, ChooseError, CpuChoice, MOST_TILES, Method, Options};
pub use choose::choose;
pub use gpu::{
    GpuChoice, GpuDepth, GpuKernelSpec, GpuOptions, GpuResources, GpuSpan, GpuWorkspaceLayout,
    SEQUENCE_BYTES, choose_gpu,
};
pub use kernel::{KernelSpec, KeyLayout};
pub use layout::{Region, Span, TileSpans, WorkspaceLayout};
