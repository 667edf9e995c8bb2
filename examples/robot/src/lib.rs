//! A fixed-rate loop on a robot: frames in, classes out, attention by ELSA.
//!
//! | module | contents |
//! |---|---|
//! | [`source`] | frames from a folder, a raw pipe or a V4L2 camera; never waits |
//! | [`frame`] | shapes, formats and pixels of frames |
//! | [`model`] | the Vision Transformer of `examples/cpp-vision`, with attention by `elsa-runtime` |
//! | [`clock`] | absolute deadlines on the monotonic clock |
//! | [`realtime`] | core, real-time priority and locked memory |
//! | [`sink`] | lines on standard output or a serial port; never waits |
//! | [`report`] | answers, counts and the summary |
//! | [`robot`] | the loop |
//!
//! Between the first and the last frame the loop allocates nothing.
#![forbid(unsafe_code)]

pub mod args;
pub mod clock;
pub mod error;
pub mod frame;
pub mod model;
pub mod realtime;
pub mod report;
mod request;
pub mod robot;
pub mod sink;
pub mod source;
