//! The CPU: its description, its pool of threads, and working memory.

pub mod detect;
pub mod float;
pub mod memory;
pub mod pool;
