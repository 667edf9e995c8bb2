//! The CPU: its description, its processes and threads, and working memory.

pub mod detect;
pub mod float;
pub mod host;
mod lent;
pub mod limits;
pub mod memory;
pub mod place;
pub mod plan;
pub mod pool;
pub mod process;
pub mod slices;
pub mod spin;
mod standing;
pub mod tensor;
