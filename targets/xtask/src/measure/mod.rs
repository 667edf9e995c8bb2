//! Measurements apart from the tests.

pub mod count;
pub mod fingerprint;
pub mod mca;
pub mod models;
pub mod peers;
mod program;
pub mod stream;
