//! The tests of the robot. They form one program, so that shared code is compiled and linked once. The test that counts
//! allocations is a separate program.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;
mod gpu;
mod heldout;
mod model;
mod program;
