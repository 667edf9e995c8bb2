//! The binary `elsa`.
fn main() {}
