//! The CPU: its description, its processes and threads, and working memory.

pub mod detect;
pub mod float;
pub mod memory;
pub mod pool;
pub mod process;
