//! The board that a benchmark runs on: what it is, what it does meanwhile, and whether that spoils the numbers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`describe`](mod@describe) | what the machine is: model, releases, power mode, clocks, zones, rails |
//! | [`monitor`] | a thread that watches it while a benchmark runs |
//! | [`tally`] | what is kept of a cell: energy, temperature, clocks, throttling, load of others |
//! | [`inclusion`] | whether the total power holds its parts |
//! | [`gate`] | whether a cell means anything, and what helps |
//! | [`sources`] | the files that are read, all together |
//! | [`zones`], [`clocks`], [`rails`], [`throttle`], [`load`], [`release`] | the files that are read, by kind |
//! | [`root`] | the folder under which all of them lie, a parameter: tests stand in for a board with a tree of files |
//!
//! Everything is read from sysfs and procfs, without root where the system permits it. What it does not tell is `None`;
//! no number stands for one that is unknown.

pub mod clocks;
pub mod describe;
pub mod gate;
pub mod inclusion;
pub mod load;
pub mod monitor;
pub mod rails;
pub mod release;
pub mod root;
pub mod sources;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod throttle;
pub mod zones;

pub use describe::{Description, describe};
pub use gate::{Limits, Mark, judge, quiet};
pub use inclusion::{Inclusion, inclusions};
pub use monitor::{Monitor, Span};
pub use root::Root;
pub use tally::Readings;
