//! The hunt for a violation of an error bound: hard problems ([`draw`]), answered by every back end, with their answers
//! compared with the bounds of the exact ones ([`judge`]).

pub mod draw;
pub mod hunt;
pub mod judge;

pub use draw::{Drawn, HARD, Hard};
pub use hunt::{Found, Hunter, Tightness, hunters};
pub use judge::{Judge, Judged};
