//! NVIDIA GPUs: the driver, a device with its context, host memory that it can use, and calls of any operator: their working
//! memory, the copies of host tensors, and the launches of a run.
//!
//! An operator fills a list of launches ([`launch`]) when tensors are bound, and chooses the size of a workspace
//! ([`workspace`]). Host tensors are copied to the device before the kernels and back after them, and the run waits, because
//! the caller reads them next ([`host`]). An integrated GPU uses page-locked memory in place ([`staging`]). Device tensors
//! are used in place, and such a run only enqueues ([`device`]).

pub mod bound;
pub mod copies;
pub mod device;
pub mod driver;
pub mod gpu;
pub mod host;
pub mod launch;
mod lent;
pub mod marshal;
pub mod memory;
pub mod plan;
mod ptx;
pub mod staging;
pub mod workspace;
