//! Exact softmax attention as a scan over the monoid of states `(m, S, W)`.
//!
//! This crate holds every definition that the other crates build on: the monoid and its scans, the checked problem
//! with its masks, the schedule and the plan, a scalar attention, the f64 oracle, the measures of drift, and the
//! error certificate. It needs neither an operating system nor an allocator; all memory comes from the caller.
//!
//! Modules that every operator shares stand at the top level; each operator has a module of its own. The modules
//! below are in the order of the data path:
//!
//! | step | module |
//! |---|---|
//! | tensors as strided views, and errors that name the argument | [`dtype`], [`view`], [`memory`], [`argument`] |
//! | a checked problem, its plan and its schedule | [`attention`] |
//! | linear attention: recurrences and their scans | [`linear`] |
//! | channels by themselves: recurrences, selective scans, convolutions | [`series`] |
//! | states and their merge law | [`monoid`], [`state`], [`scan`] |
//! | attention divided into tasks that share nothing | [`quorum`] |
//! | the room of a workspace | [`room`] |
//! | the description of a device | [`profile`] |
//! | what attention costs, whole and in tasks | [`model`] |
//! | measures of error, and numbers to measure the measure with | [`drift`], [`ulp`], [`double`] |
//!
//! With the feature `telemetry` there is a module of that name: what a benchmark tells while it runs, and how it
//! travels over a serial line.
#![no_std]
#![forbid(unsafe_code)]

pub mod argument;
pub mod attention;
pub mod double;
pub mod drift;
pub mod dtype;
mod lengths;
pub mod linear;
pub mod memory;
pub mod model;
pub mod monoid;
pub mod profile;
pub mod quorum;
#[doc(hidden)]
pub mod random;
pub mod room;
pub mod scan;
pub mod series;
pub mod state;
#[cfg(feature = "telemetry")]
pub mod telemetry;
pub mod ulp;
pub mod view;
mod workers;
