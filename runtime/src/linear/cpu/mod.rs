//! Computes linear attention on the CPU: chunks of tokens and strips of columns, divided among the threads of
//! the pool.

pub mod call;
mod context;
pub mod plan;
mod scan;
mod stage;
mod state;
mod walk;
