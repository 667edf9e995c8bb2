//! Plans as data: candidate kernels, the choosers for CPUs and GPUs, and the layout of their workspaces.

mod choice;
mod choose;
mod gpu;
mod kernel;
mod layout;
mod predict;
mod share;

pub use choice::{
    BLOCK_SIZES, ChooseError, CpuChoice, Keeps, LongestPath, MAX_TILES, Method, Options, TaskOrder,
};
pub use choose::choose;
pub use gpu::{
    ByteSpan, GpuChoice, GpuKernelSpec, GpuOptions, GpuResources, GpuWorkspaceLayout, SEQUENCE_BYTES,
    Summation, choose_gpu,
};
pub use kernel::{KernelSpec, KeyLayout};
pub use layout::{Region, Span, TileSpans, WorkspaceLayout};
pub use predict::{GpuCall, GpuCost, GpuLaunch, GpuMachine, GpuMerge, GpuPart, GpuPrediction, predict};
