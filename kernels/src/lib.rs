//! Leaf arithmetic of exact attention: micro-kernels that know tiles and registers, never tensors.
//!
//! | file | duty |
//! |---|---|
//! | [`lanes`] | what the algorithms ask of a vector unit |
//! | [`isa`] | tokens that prove an instruction set present |
//! | [`generic`] | the micro-kernels, written once |
//! | [`cuda`] | the GPU kernels as data |
//! | `scalar`, `neon`, `avx2`, `avx512` | a vector and an instance each, nothing else |
//! | [`kernel`], [`registry`] | entry points as data, and the one table of them |
//!
//! The crate needs no operating system. With the feature `std` instruction sets are detected at run time;
//! without it, only those that the program was compiled for are known.
#![no_std]

#[cfg(feature = "std")]
extern crate std;

pub mod cuda;
pub mod generic;
mod instance;
pub mod isa;
pub mod kernel;
pub mod lanes;
pub mod registry;

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod scalar;
