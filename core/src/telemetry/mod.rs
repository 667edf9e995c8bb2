//! Records that a benchmark reports while it runs, and frames that carry them over a serial line.
//!
//! | module | contents |
//! |---|---|
//! | [`record`] | the records: one definition for the benchmark, its files and the serial line |
//! | [`frame`] | the frames on the line: numbered, checked, and synchronised again after damage |
//!
//! Nothing here allocates or needs an operating system, so a microcontroller can read the output of a board.

pub mod frame;
pub mod record;
