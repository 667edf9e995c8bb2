//! Commands that measure speed, memory or instructions. They are not part of the tests.

mod calls;
pub mod count;
pub mod fingerprint;
pub mod models;
pub mod peers;
pub mod stream;
