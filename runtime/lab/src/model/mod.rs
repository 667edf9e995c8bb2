//! Cost of attention over x tokens, and of its parts: bytes and seconds as functions fitted to measurements, the
//! arithmetic of dividing by quorums, and the cheapest size of a part.
//!
//! | module | content |
//! |---|---|
//! | [`fit`] | least squares without negative coefficients |
//! | [`cost`] | bytes `D x + E` and seconds `A x² + B x + C` |
//! | [`division`] | tokens, parts and work of each level (Stream-CQSA, section 3.3) |
//! | [`optimum`] | the size of a part that costs least (Stream-CQSA, appendix C) |
//!
//! A time is positive. A function with another value at some size is undefined there: the result is `None`, and
//! nothing is concluded from it. Fits that are made here are positive everywhere.

pub mod cost;
pub mod division;
pub mod fit;
pub mod optimum;

pub use cost::{Bytes, Seconds};
pub use division::Division;
pub use fit::{FitError, Sample};
pub use optimum::Extremum;
