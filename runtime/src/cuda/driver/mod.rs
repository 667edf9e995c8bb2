//! Calls the NVIDIA driver. This is the only module that names its API.
//!
//! **The naive way** links libcuda, calls it, and turns its errors into panics. This module differs, because the
//! machine may have no driver, an old one, or one that fails.
//!
//! 1. *The library is opened at run time*, and every function that may be called is looked up by name before the
//!    first call. A missing function is an error that names it. A driver of CUDA 10.2 exports all of them.
//! 2. *Status codes stay integers.* A newer driver returns codes that an older binding's enumeration lacks, and
//!    reading those as that enumeration is undefined behaviour.
//! 3. *A context is current only while an [`Entered`] lives.* Every call that needs a current context takes an
//!    `Entered` as proof, and dropping it restores the thread's previous context.
//! 4. *A context can be lost*, after an error from which the driver cannot recover. No resource of a lost context
//!    is passed to the driver again; the driver frees its memory with the context.
//! 5. *A context belongs to one process.* In a child of `fork` nothing is passed to the driver of the parent; every
//!    use is [`DeviceError::Forked`](crate::DeviceError::Forked), and nothing is freed.
//! 6. *Resources of a workspace have a `close`* that returns the driver's error. Dropping them does the same and
//!    logs the error.
//!
//! # Contract
//!
//! Safety comments cite these clauses.
//! - *signatures*: the functions of `Api` have the types that the driver's header declares.
//! - *current*: the context of the resource is current, which an [`Entered`] of the same context proves.
//! - *handle*: the handle was returned by the driver and has not been released.
//! - *room*: a pointer is valid for as many bytes as are read or written through it.
//! - *lent*: the caller's device memory is valid, and nothing else uses it, as long as its buffer exists.
//! - *alive*: memory that a stream uses stays allocated until the stream has been waited for, or its context is
//!   lost.

mod api;
mod capture;
mod context;
mod device;
mod graph;
mod memory;
mod module;
mod pointers;
mod resource;
mod stream;

pub use capture::Capture;
pub use context::{Context, Entered};
pub use device::{Device, Driver};
pub use graph::Graph;
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use module::{Function, Module};
pub use stream::{Event, RawStream, Stream};
