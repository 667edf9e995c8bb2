//! Tensors in files: `.npy`, and `.npz` and `.safetensors` with the name of a tensor.
//!
//! [`read`] takes the bytes of a file to a tensor in memory. The parsers of the formats trust nothing in a file, never
//! panic, and hold little more in memory than the tensor. [`Tensor::load`] opens a file, reads it, and notices when it
//! changes. [`Writer`] writes all tensors of a call or none, and [`Target`] any other file.
//!
//! Whatever ends the process, a kill aside, no half-written file stays, if a handler of signals calls
//! [`temporary::remove_all`].
//!
//! Each call names the argument of its caller that a file is for, and errors start with it.
//!
//! ```no_run
//! use elsa_files::{Accept, FileError, Source, Tensor};
//!
//! # fn main() -> Result<(), FileError> {
//! let source: Source = "layer.safetensors#q".parse().expect("a path and a name");
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
pub mod npy;
mod npz;
mod outlet;
mod output;
mod part;
mod places;
pub mod safetensors;
mod source;
mod stored;
mod target;
pub mod temporary;
mod turn;

pub use contents::{Accept, Contents, Data, header, read};
pub use error::{FileError, MemoryError, TensorError};
pub use file::InputFile;
pub use load::{Tensor, with_file};
pub use memory::{Buffer, SPARE, leaves_enough, reserved, zeros};
pub use outlet::Reads;
pub use output::{Array, Content, Kept, Output, Prepared, Writer};
pub use part::Part;
pub use source::{Format, Source};
pub use stored::{Fault, Header, Stored};
pub use target::Target;
