//! Tensors in files: `.npy`, and named tensors in `.npz` and `.safetensors`.
//!
//! This crate is a part of [`elsa-edge`](https://docs.rs/elsa-edge), and users depend on that crate instead. The
//! interface of this crate may change in any version.
//!
//! [`read`] turns the bytes of a file into a tensor in memory. The parsers trust nothing in a file, never panic, and
//! need little more memory than the tensor. [`Tensor::load`] opens a file, reads it, and detects changes to it.
//! [`Writer`] writes either all output tensors of a call or none, and [`Target`] writes any other file. [`task`] is the
//! format of the states and gradient shares of quorum tasks, and [`merge`] merges these files.
//!
//! If a signal handler calls [`temporary::remove_all`], the process leaves no half-written file behind, unless the
//! process is killed.
//!
//! Each call takes the name of the caller's argument that the file belongs to, and error messages start with that name.
//!
//! ```no_run
//! use elsa_files::{Accept, FileError, Tensor, TensorPath};
//!
//! # fn main() -> Result<(), FileError> {
//! let source: TensorPath = "layer.safetensors#q".parse().expect("a path and a name");
//! let query = Tensor::load("q", &source, Accept::Float)?;
//! println!("{} {:?}", query.dtype().name(), query.shape());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod contents;
mod error;
mod file;
mod infos;
mod load;
mod memory;
pub mod merge;
pub mod npy;
mod npz;
mod outlet;
mod output;
mod part;
mod places;
mod rows;
pub mod safetensors;
mod source;
mod stored;
pub mod sums;
mod target;
pub mod task;
pub mod temporary;
mod turn;

pub use contents::{Accept, Contents, Data, header, read};
pub use error::{FileError, MemoryError, TensorError};
pub use file::InputFile;
pub use load::{Tensor, with_file};
pub use memory::{Buffer, SPARE, leaves_enough, reserved, zeros};
pub use outlet::Reads;
pub use output::{Array, Content, ExistingFile, Output, Prepared, Writer};
pub use part::Part;
pub use source::{Format, TensorPath};
pub use stored::{Fault, Header, Stored};
pub use target::Target;
