//! Runs operators on NVIDIA GPUs. Contains the driver, a device with its context, host memory that a device can use,
//! the working memory of calls, copies of host tensors, and the launches of a run.
//!
//! An operator fills a list of launches ([`launch`]) when tensors are bound, and declares the workspace size that it
//! needs ([`workspace`]). A run on host tensors copies inputs to the device before the kernels run, and outputs back
//! after the kernels. It then waits, because the caller reads the outputs next ([`host`]). An integrated GPU uses
//! page-locked memory in place ([`staging`]). A run on device tensors uses the tensors in place and only enqueues its
//! work ([`device`]).

pub mod bound;
pub mod copies;
pub mod device;
pub mod driver;
pub mod gpu;
pub mod host;
mod kept;
pub mod launch;
mod lent;
pub mod marshal;
pub mod memory;
pub mod parameter;
pub mod plan;
mod ptx;
pub mod staging;
pub mod workspace;

/// Tells the compiler that the code after this call needs GPU kernels. A build without them opens no driver
/// ([`driver::Driver::open`]), so it never has a GPU, and the compiler leaves this code out.
#[inline(always)]
fn with_kernels() {
    if !cfg!(feature = "cuda") {
        unreachable!("a GPU in a build without GPU kernels");
    }
}
