//! Micro-kernels of exact attention: leaf functions that compute on tiles and registers, without tensors.
//!
//! This crate is a part of [`elsa-edge`](https://docs.rs/elsa-edge). Depend on `elsa-edge` instead: the interface of
//! this crate may change in any version.
//!
//! | module | purpose |
//! |---|---|
//! | [`lanes`] | operations that the algorithms require of a vector unit |
//! | [`isa`] | tokens that prove that the processor has an instruction set |
//! | `product`, [`exp2`], `memory` | shared by the operators: the product, the exponential, moves and conversions |
//! | [`primitives`] | moves and conversions of an instruction set, as a table of functions |
//! | [`attention`], [`linear`], [`series`] | the micro-kernels of each operator, written once |
//! | `scalar`, `neon`, `avx2`, `avx512` | the vector type of an instruction set, and the kernels instantiated for it |
//! | [`registry`] | the tables of CPU kernels |
//! | [`cuda`] | the GPU kernels as data |
//!
//! The crate needs no operating system. The feature `std` detects instruction sets at run time; without it, the crate
//! uses only instruction sets that the compilation target guarantees. `--cfg elsa_without="avx2"` (or `"avx512"`)
//! leaves out the kernels for an instruction set, in builds for one known processor. `"scalar"` leaves out the scalar
//! kernels on aarch64, where every processor has NEON.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "std")]
extern crate std;

mod entry;
pub mod exp2;
mod instance;
pub mod isa;
pub mod lanes;
mod memory;
pub mod primitives;
mod product;

pub mod attention;
pub mod cuda;
pub mod linear;
pub mod registry;
pub mod series;

#[cfg(all(target_arch = "x86_64", not(elsa_without = "avx2")))]
pub mod avx2;
#[cfg(all(target_arch = "x86_64", not(elsa_without = "avx512")))]
pub mod avx512;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod scalar;
#[cfg(all(target_arch = "x86_64", not(all(elsa_without = "avx2", elsa_without = "avx512"))))]
mod x86;
