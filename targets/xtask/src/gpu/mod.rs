//! Device code: PTX for GPUs, a stand-in driver for machines without a GPU, and measurements for machines with a GPU.

pub mod gpu_bench;
pub mod ptx;
mod sass;
pub mod standin;
