//! NVIDIA GPUs: the driver, a device with its context, and host memory that it can use. Operators launch their
//! kernels through these.

pub mod driver;
pub mod gpu;
pub mod memory;
mod ptx;
