//! What a benchmark tells while it runs, and how it travels over a serial line.
//!
//! | module | what it holds |
//! |---|---|
//! | [`record`] | the records: one definition for the benchmark, its files, and the line |
//! | [`frame`] | the frames of the line: numbered, checked, and found again after damage |
//!
//! Nothing here allocates or needs an operating system, so that a microcontroller reads what a board sends.

pub mod frame;
pub mod record;
