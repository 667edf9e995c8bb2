//! The NVIDIA driver: the one file that names its API.
//!
//! The naive way links libcuda, calls it, and lets its errors become panics. This one differs, because the
//! machine may have no driver, an old one, or one that fails:
//!
//! 1. The library is opened at run time, and every function that may be called is looked up by name before the
//!    first call. What is missing is an error that names it. All names are exported by a driver of CUDA 10.2.
//! 2. Status codes stay integers. A newer driver returns codes that an older binding's enumeration does not have,
//!    and reading those as that enumeration is undefined.
//! 3. A context is current only while an [`Entered`] lives. Everything that needs one takes it as proof, and the
//!    thread is left with the context that it had.
//! 4. After an error that the driver cannot recover from, a context is *lost*. Nothing is called with what belongs
//!    to it any more; its memory goes with it.
//! 5. What a workspace holds has a `close` that returns the driver's error. Dropping it does the same and logs.
//!
//! # Contract
//!
//! Safety comments cite these clauses.
//! - *signatures*: the functions of [`Api`] have the types that the driver's header gives them.
//! - *current*: the context of the resource is current, which an [`Entered`] of the same context proves.
//! - *handle*: a handle that the driver gave out and that was not given back.
//! - *room*: what a pointer points to is valid for as many bytes as are read or written through it.
//! - *alive*: memory that a stream works on stays allocated until the stream was waited for, or is lost.

mod api;
mod context;
mod device;
mod memory;
mod module;
mod pointers;
mod resource;
mod stream;

pub use context::{Context, Entered};
pub use device::{Device, Driver};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use module::{Function, Module};
pub use stream::{Event, RawStream, Stream};
