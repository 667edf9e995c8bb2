//! What needs the machine at hand and unsafe code.

pub mod mapped;
