//! Minimal example.
fn main() {}
