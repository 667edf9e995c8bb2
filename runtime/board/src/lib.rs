//! The board that a benchmark runs on: what it is, what it does meanwhile, and whether that spoils the numbers.
//!
//! | item | what it is |
//! |---|---|
//! | [`describe()`] | what the machine is: model, releases, power mode, clocks, zones, rails |
//! | [`Monitor`] | a thread that watches it while a benchmark runs |
//! | [`Readings`] | what is kept of a stretch of time: energy, temperature, clocks, throttling, load of others |
//! | [`Inclusion`] | whether the total power holds its parts |
//! | [`judge`], [`quiet`] | whether a measurement means anything, and what helps |
//! | [`Root`] | the folder under which all files lie, a parameter: tests stand in for a board with a tree of files |
//!
//! Everything is read from sysfs and procfs, without root where the system permits it. What it does not tell is `None`;
//! no number stands for one that is unknown.
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
