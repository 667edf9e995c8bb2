//! Calls the NVIDIA driver. Only this module uses the names of its API.
//!
//! **The naive way** links libcuda, calls it, and turns its errors into panics. This module differs, because the
//! machine may have no driver, an old driver, or a driver that fails.
//!
//! 1. *The library is opened at run time*, and every function that may be called is looked up by name before the first
//!    call. If a function is missing, the error names the function. A driver of CUDA 10.2 exports all functions.
//! 2. *Status codes stay integers.* A newer driver returns codes that the enumeration of an older binding lacks.
//!    Reading such a code as a value of the enumeration is undefined behaviour.
//! 3. *A context is current only while an [`Entered`] lives.* Every call that needs a current context takes an
//!    `Entered` as proof. Dropping the `Entered` restores the thread's previous context.
//! 4. *A context can be lost* after an error from which the driver cannot recover. Resources of a lost context are
//!    not passed to the driver again; the driver frees their memory with the context.
//! 5. *A context belongs to one process.* A child of `fork` passes nothing to the driver of its parent. Every use of
//!    the context returns [`DeviceError::Forked`](crate::DeviceError::Forked), and nothing is freed.
//! 6. *Resources of a workspace have a function `close`*, which returns the driver's error. Dropping a resource also
//!    releases it, but logs the error.
//!
//! # Contract
//!
//! Safety comments cite these clauses.
//! - *signatures*: the functions of `Api` have the types that the driver's header declares.
//! - *current*: the context of the resource is current, which an [`Entered`] of the same context proves.
//! - *handle*: the handle was returned by the driver and has not been released.
//! - *room*: a pointer is valid for all bytes that are read or written through it.
//! - *lent*: while its buffer exists, the caller's device memory is valid, and nothing else uses this memory.
//! - *alive*: memory that a stream uses stays allocated until the stream has been waited for, or until the stream's
//!   context is lost.

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
pub use stream::{Event, RawEvent, RawStream, Stream};
