//! Device code: PTX for GPUs, a stand-in driver for machines without a GPU, and tests and measurements for machines
//! with a GPU.

pub mod gpu_bench;
pub mod gpu_test;
pub mod ptx;
mod sass;
pub mod standin;
