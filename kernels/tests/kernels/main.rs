//! The tests of the kernels, in one program: what they share is compiled and linked once.

mod exponential;
mod gpu;
mod mask;
mod registry;
mod subnormal;
