//! Tensors in files: `.npy`, and `.npz` and `.safetensors` with the name of a tensor.
//!
//! [`read`] takes the bytes of a file to a tensor in memory. The parsers of the formats ([`npy`], [`npz`],
//! [`safetensors`]) trust nothing in a file, never panic, and hold little more in memory than the tensor.
//! [`Tensor::load`] opens a file, reads it, and notices when it changes. [`output`] writes.

mod contents;
mod file;
mod infos;
mod load;
pub mod npy;
pub mod npz;
pub mod output;
mod part;
mod places;
pub mod safetensors;
mod source;
mod stored;
mod turn;

pub use contents::{Accept, Contents, Data, header, read};
pub use file::InputFile;
pub use load::Tensor;
pub use part::{Part, read_part, shape};
pub use source::{Format, Source};
pub use stored::{Fault, Header, Stored};
