//! Records that a benchmark reports while it runs, and their framing on a serial line.
//!
//! | module | contents |
//! |---|---|
//! | [`record`] | the records: one definition for the benchmark, its files, and the line |
//! | [`frame`] | the frames of the line: numbered, checked, and resynchronised after damage |
//!
//! Nothing here allocates or needs an operating system, so a microcontroller can read the output of a board.

pub mod frame;
pub mod record;
