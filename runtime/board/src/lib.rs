//! The board that runs a benchmark: its description, its behaviour during the run, and the validity of the
//! measurements.
//!
//! This crate is a part of [`elsa-edge`](https://docs.rs/elsa-edge). Depend on `elsa-edge` instead: the interface of
//! this crate may change in any version.
//!
//! | item | purpose |
//! |---|---|
//! | [`describe()`] | describes the machine: model, releases, power mode, clocks, zones, rails |
//! | [`Monitor`] | a thread that watches the machine while a benchmark runs |
//! | [`Readings`] | readings over a span: energy, temperature, clocks, throttling, load of other processes |
//! | [`Inclusion`] | comparison of the total power with a rail that it should include |
//! | [`judge`], [`quiet`] | the validity of a measurement, and remedies |
//! | [`serial`] | serial ports, and the sink that sends a benchmark's records through one |
//! | [`Root`] | the folder that contains `sys`, `proc` and `etc`; tests simulate a board with a tree of files |
//!
//! [`Monitor::of_tree`] measures a program that the process starts: its load does not count as load of others.
//!
//! Everything is read from sysfs and procfs, without root if the system permits it. Values that the machine does not
//! report are `None`; an unknown value is never replaced by a number.
//!
//! ```
//! use elsa_board::{Limits, Monitor, Root, describe, judge};
//!
//! let root = Root::machine();
//! let board = describe(&root);
//! let monitor = Monitor::start(&root, std::process::id());
//! let span = monitor.open();
//! // The work that is measured.
//! let readings = monitor.close(span, 1);
//! println!("{:?} mW", readings.power_mw);
//! for mark in judge(&board, &readings, false, &Limits::default()) {
//!     println!("{mark}");
//! }
//! ```
#![forbid(unsafe_code)]

mod clocks;
mod describe;
mod gate;
mod inclusion;
mod load;
mod monitor;
mod rails;
mod release;
mod root;
pub mod serial;
mod sources;
mod tally;
#[cfg(test)]
mod tests;
mod throttle;
mod zones;

pub use clocks::Reading;
pub use describe::{Description, RailReading, ZoneReading, describe};
pub use gate::{Limits, Mark, judge, quiet};
pub use inclusion::Inclusion;
pub use load::{Busy, Others};
pub use monitor::{Monitor, Span};
pub use rails::Place;
pub use release::PowerMode;
pub use root::Root;
pub use tally::Readings;
