//! What attention over x tokens costs, and what it costs in parts: bytes and seconds as functions fitted to
//! measurements, the arithmetic of dividing by quorums, and the size of a part that costs least.
//!
//! | module | content |
//! |---|---|
//! | [`fit`] | least squares without negative coefficients |
//! | [`cost`] | bytes `D x + E` and seconds `A x² + B x + C` |
//! | [`division`] | tokens, parts and work of each level (Stream-CQSA, section 3.3) |
//! | [`optimum`] | the size of a part that costs least (Stream-CQSA, appendix C) |
//!
//! A time is positive. A function that says otherwise at some size says nothing there: what it is asked for is `None`,
//! and nothing is concluded from it. Fits that are made here are positive everywhere.

pub mod cost;
pub mod division;
pub mod fit;
pub mod optimum;

pub use cost::{Bytes, Seconds};
pub use division::Division;
pub use fit::{FitError, Sample};
pub use optimum::Extremum;
