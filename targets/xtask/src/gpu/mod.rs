//! Device code: PTX for GPUs, a stand-in driver for machines without one, tests and measurements for machines with one.

pub mod gpu_bench;
pub mod gpu_test;
pub mod ptx;
mod sass;
pub mod standin;
