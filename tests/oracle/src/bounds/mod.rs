//! Hunts for a violation of an error bound: every back end answers hard problems ([`draw`]), and the answers are
//! compared with the bounds of the exact ones ([`judge`]).

pub mod draw;
pub mod hunt;
pub mod judge;

pub use draw::{Drawn, HARD, Hard};
pub use hunt::{Found, Hunter, Tightness, hunters};
pub use judge::{Judge, Judged};
