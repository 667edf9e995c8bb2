//! The tests of the robot, in one program: what they share is compiled and linked once. The test that counts
//! allocations has a program of its own.

mod common;
mod gpu;
mod heldout;
mod model;
mod program;
