//! Exact softmax attention as a scan over the monoid of states `(m, S, W)`.
//!
//! This crate holds every definition that the rest of the house builds on and runs on a machine without
//! an operating system or an allocator: the monoid and its scans, the problem with its masks as data, the
//! schedule and the plan, a scalar attention that needs nothing but the caller's buffers, the f64 oracle
//! and the measures of drift, and what a finished run may claim about its error.
//!
//! One data path runs through the project, and through this crate in the same order:
//!
//! | step | here |
//! |---|---|
//! | tensors as strided views | [`view`] |
//! | a checked problem, with masks as data | [`problem`], [`mask`] |
//! | a plan: kernel, tiles, workspace | [`profile`], [`plan`] |
//! | a schedule: blocks, segments, merge tree | [`schedule`] |
//! | states and their one merge law | [`monoid`], [`state`], [`scan`] |
//! | the scalar fallback | [`attention`] |
//! | what the answer is worth | [`bound`], [`certificate`], [`mod@reference`], [`drift`], [`ulp`] |
#![no_std]
#![forbid(unsafe_code)]

pub mod attention;
pub mod bound;
pub mod certificate;
pub mod drift;
pub mod mask;
pub mod monoid;
pub mod plan;
pub mod problem;
pub mod profile;
pub mod reference;
pub mod scan;
pub mod schedule;
pub mod state;
pub mod ulp;
pub mod view;
