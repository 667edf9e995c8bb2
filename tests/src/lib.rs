//! What the tests that cross crates share: problems with owned data, and the definition of attention
//! applied to them naively.
//!
//! [`cases`] makes problems, at random ([`cases::any_case`], [`cases::Params`]) and by intent
//! ([`cases::hard_cases`]). [`naive`] answers them from the definition and bounds how far a computation in
//! f32 may be from that; [`naive::Answer::check_all`] compares everything that a call returns. [`longest`] measures how
//! many additions a run executes. [`standin`] runs tests against the stand-in CUDA driver.
#![forbid(unsafe_code)]

pub mod cases;
pub mod longest;
pub mod naive;
pub mod random;
pub mod standin;
mod states;
