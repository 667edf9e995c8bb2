//! Exact softmax attention as a scan over the monoid of states `(m, S, W)`.
//!
//! This crate is a part of [`elsa-edge`](https://docs.rs/elsa-edge). Depend on `elsa-edge` instead: the interface of this
//! crate may change in any version.
//!
//! The crate contains every definition that the other crates build on: the monoid and its scans, the checked problem
//! with its masks, the schedule and the plan, a scalar implementation of attention, the f64 oracle, the measures of
//! drift, and the error certificate. It needs no operating system and no allocator; the caller supplies all memory.
//!
//! Modules shared by all operators are at the top level, and each operator has a separate module. The table follows
//! the data path:
//!
//! | step | module |
//! |---|---|
//! | tensors as strided views, and errors that name the argument | [`dtype`], [`view`], [`memory`], [`argument`] |
//! | lists of the tensors that a call uses, errors of the choosers | [`operands`], [`plan`] |
//! | a checked problem, its plan and its schedule | [`attention`] |
//! | linear attention: recurrences and their scans | [`linear`] |
//! | independent channels: recurrences, selective scans, convolutions | [`series`] |
//! | states and their merge law | [`monoid`], [`state`], [`scan`] |
//! | attention divided into independent tasks | [`quorum`] |
//! | layout of a workspace | [`room`] |
//! | the description of a device | [`profile`] |
//! | measures of error, and the double-double arithmetic that checks the oracle | [`drift`], [`double`] |
//!
//! The feature `telemetry` adds the module `telemetry`: the records that a benchmark reports while it runs, and
//! their framing on a serial line.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod argument;
pub mod attention;
pub mod double;
pub mod drift;
pub mod dtype;
mod lengths;
pub mod linear;
pub mod memory;
pub mod monoid;
pub mod operands;
pub mod plan;
pub mod profile;
pub mod quorum;
#[doc(hidden)]
pub mod random;
pub mod room;
pub mod scan;
pub mod series;
mod setters;
pub mod state;
#[cfg(feature = "telemetry")]
pub mod telemetry;
pub mod view;
mod workers;
