//! The C ABI. The headers that `elsa.h` includes are generated from this crate; `elsa.hpp` wraps them.
//!
//! Every function has inputs before outputs, writes only on success (a run that fails on a device may leave outputs
//! incomplete), and returns a status. No function lets a panic escape. Pointers are checked for null, alignment, size
//! and overlap; the caller guarantees that the memory is valid.
//!
//! Clauses that unsafe blocks cite:
//! - *read*: a pointer to a struct or an array that a function reads is null or valid for reads, and nothing writes
//!   there during the call.
//! - *write*: a pointer to memory that a function writes is null or valid for writes, and nothing else uses that memory
//!   during the call.
//! - *tensors*: memory named in `elsa_inputs`, `elsa_outputs` and their counterparts for other operators is as those
//!   structs describe, and satisfies *read* and *write*, until the run is done.
//! - *callbacks*: `read` and `write` of `elsa_stream_data` may be called with `user` until the run returns. `read` may
//!   be called by another thread and while `write` runs. Both stay within the memory passed to them, return, and do not
//!   unwind.
//! - *hook*: any thread may call `parallel_for` of the options with `parallel_user` until the engine and everything
//!   created from it are gone; `parallel_for` returns, and does not throw.
//!
//! # Modules
//!
//! | functions of `elsa.h` | built on |
//! |---|---|
//! | `library`, `log`, `view` | `types`: the structs and constants of `elsa.h`; `growing`: extensible structs; `fault`: status, message, the panic wall; `text`: strings for C |
//! | `engine`, `plan`, `bound`, `workspace`, `buffer` | `handles`: numbers that name objects; `objects`: plans, workspaces and bound calls behind handles; `pointer`: checked pointers; `lend`: targets of pointers in an engine's options |
//! | `attention`, `gradients`, `linear`, `series` | `operator`: their implementation, once for all operators; `convert`: enumerations, here and in each folder; `tensors` in each folder: the memory of a call; `memory`: the memory of one tensor |
//! | `task` | `tensors` of `attention`: the memory of its inputs and states; `planned`: what all tasks share |
//! | `gradients_task` | `tensors` of `gradients`: the memory of its calls; `planned` of `task` |
//! | `stream` | in its folder, `rows`: its callbacks as source and sink of the runtime; `gpu`: streams that a GPU computes |
//!
//! # Features
//!
//! Each of the folders `attention`, `gradients`, `linear`, `series`, `stream` and `task` is compiled only with the feature
//! of its name, and `gradients_task` with both features of its name. Without them, the library lacks its functions; the headers and the types stay the same. With the feature `cuda`, a GPU
//! computes too.

// The comments are also those of elsa.h, in plain text, where [rows] is a shape and not a link.
#![allow(rustdoc::broken_intra_doc_links)]
// What operators share, a library with some of them uses only in part.
#![cfg_attr(
    not(all(
        feature = "gradients",
        feature = "linear",
        feature = "series",
        feature = "stream",
        feature = "task"
    )),
    allow(dead_code)
)]

#[cfg(not(any(feature = "attention", feature = "linear", feature = "series")))]
compile_error!("features: no operator; allowed: at least one of attention, linear and series");

#[cfg(feature = "attention")]
mod attention;
mod bound;
mod buffer;
mod convert;
mod engine;
mod fault;
#[cfg(feature = "gradients")]
mod gradients;
#[cfg(all(feature = "gradients", feature = "task"))]
mod gradients_task;
mod growing;
mod handles;
mod lend;
mod library;
#[cfg(feature = "linear")]
mod linear;
mod log;
mod memory;
mod objects;
mod operands;
mod operator;
mod plan;
mod pointer;
#[cfg(feature = "series")]
mod series;
#[cfg(feature = "stream")]
mod stream;
#[cfg(feature = "task")]
mod task;
mod text;
mod types;
mod view;
mod workspace;

pub use self::log::*;
#[cfg(feature = "attention")]
pub use attention::*;
pub use bound::*;
pub use buffer::*;
pub use engine::*;
#[cfg(feature = "gradients")]
pub use gradients::*;
#[cfg(all(feature = "gradients", feature = "task"))]
pub use gradients_task::*;
pub use library::*;
#[cfg(feature = "linear")]
pub use linear::*;
pub use plan::*;
#[cfg(feature = "series")]
pub use series::*;
#[cfg(feature = "stream")]
pub use stream::*;
#[cfg(feature = "task")]
pub use task::*;
pub use types::*;
pub use view::*;
pub use workspace::*;
