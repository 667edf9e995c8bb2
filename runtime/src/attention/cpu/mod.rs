//! Computes attention on the CPU: query tiles times key blocks, divided among the threads of the pool.

mod addends;
mod bias;
pub mod call;
pub mod context;
mod diagonal;
mod finish;
mod gate;
mod mask_cache;
mod math;
mod measure;
mod norms;
pub mod plan;
pub mod resident;
mod stage;
mod traverse;
mod unseen;
mod walk;
