//! The hunt for a violation of an error bound: problems made to be hard ([`draw`]), answered by every back end, and their
//! answers beside the bounds of the exact ones ([`judge`]).

pub mod draw;
pub mod hunt;
pub mod judge;

pub use draw::{Drawn, HARD, Hard};
pub use hunt::{Found, Hunter, Tightness, hunters};
pub use judge::{Judge, Judged};
