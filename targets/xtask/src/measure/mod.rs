//! Commands that measure speed, memory or instructions. They are not part of the tests.

pub mod calls;
pub mod count;
pub mod fingerprint;
pub mod models;
pub mod peers;
pub mod stream;
