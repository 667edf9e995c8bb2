//! Hunts for a violation of an error bound: every back end computes hard problems ([`draw`]), and every row is compared
//! with the bounds of its exact value ([`judge`]).

pub mod draw;
pub mod hunt;
pub mod judge;

pub use draw::{Drawn, HARD, Hard, Values};
pub use hunt::{Findings, Hunter, Tightness, hunters};
pub use judge::{Judge, Judged};
