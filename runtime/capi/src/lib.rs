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
//! | `library`, `log`, `view`, `mask` | `types`: the structs and constants of `elsa.h`; `growing`: extensible structs |
//! | `engine`, `plan`, `workspace`, `buffer` | `handles`: numbers that name objects; `objects`: plans, workspaces and bound calls behind handles; `pointer`: checked pointers; `lend`: targets of pointers in an engine's options |
//! | `run`, `bound`, `linear`, `series` | `operator`: their implementation, once for all operators; `convert`: enumerations and problems; `tensors`, `linear_tensors`, `series_tensors`: the memory of a call; `memory`: the memory of one tensor |
//! | `stream` | `rows`: its callbacks as source and sink of the runtime |
//! | `states` | `fault`: status, message, the panic wall; `text`: strings for C |

// The comments are also those of elsa.h, in plain text, where [rows] is a shape and not a link.
#![allow(rustdoc::broken_intra_doc_links)]

mod bound;
mod buffer;
mod certify;
mod convert;
mod engine;
mod fault;
mod growing;
mod handles;
mod lend;
mod library;
mod linear;
mod linear_tensors;
mod log;
mod mask;
mod memory;
mod objects;
mod operands;
mod operator;
mod plan;
mod pointer;
mod rows;
mod run;
mod series;
mod series_tensors;
mod states;
mod stream;
mod tensors;
mod text;
mod types;
mod view;
mod workspace;

pub use self::log::*;
pub use bound::*;
pub use buffer::*;
pub use certify::*;
pub use engine::*;
pub use library::*;
pub use linear::*;
pub use mask::*;
pub use plan::*;
pub use run::*;
pub use series::*;
pub use states::*;
pub use stream::*;
pub use types::*;
pub use view::*;
pub use workspace::*;
