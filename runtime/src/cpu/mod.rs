//! The CPU back end: threads, memory, and the walk over tiles and blocks.

pub mod call;
pub mod detect;
pub mod mapped;
mod math;
pub mod pool;
mod stage;
mod tile;
pub mod workspace;
