//! Exact softmax attention as a scan over the monoid of states `(m, S, W)`.
//!
//! This crate holds every definition that the rest of the house builds on and runs on a machine without
//! an operating system or an allocator: the monoid and its scans, the problem with its masks as data, the
//! schedule and the plan, a scalar attention that needs nothing but the caller's buffers, the f64 oracle
//! and the measures of drift, and what a finished run may claim about its error.
//!
//! What every operator shares stands at the top, each operator in a module of its own. One data path runs through
//! the project, and through this crate in the same order:
//!
//! | step | here |
//! |---|---|
//! | tensors as strided views, and errors that name the argument | [`dtype`], [`view`], [`argument`] |
//! | a checked problem, its plan and its schedule | [`attention`] |
//! | states and their one merge law | [`monoid`], [`state`], [`scan`] |
//! | what a device is | [`profile`] |
//! | measures of error | [`drift`], [`ulp`] |
#![no_std]
#![forbid(unsafe_code)]

pub mod argument;
pub mod attention;
pub mod drift;
pub mod dtype;
pub mod monoid;
pub mod profile;
pub mod scan;
pub mod state;
pub mod ulp;
pub mod view;
