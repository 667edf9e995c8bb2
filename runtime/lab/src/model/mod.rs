//! Cost of attention over x tokens, and of the tasks into which it is divided. The modules fit bytes and seconds to
//! measurements as functions of x, compute how quorums divide tokens into tasks, and find the cheapest task size.
//!
//! | module | content |
//! |---|---|
//! A time must be positive. If a fitted function is not positive at some number of tokens, the result for this number
//! is `None`, and no conclusion is drawn from it. The functions that this module fits are positive everywhere.
//! | [`cost`] | bytes `D x + E` and seconds `A x² + B x + C` |
//! | [`division`] | tokens, tasks and work at each level (Stream-CQSA, section 3.3) |
//! | [`optimum`] | the task size with the lowest cost (Stream-CQSA, appendix C) |
//!
//! A time must be positive. For a number of tokens at which a fitted function is not positive, the result is `None`,
//! and no conclusion is drawn. The functions that this module fits are positive everywhere.

pub mod cost;
pub mod division;
pub mod fit;
pub mod optimum;

pub use cost::{Bytes, Seconds};
pub use division::Division;
pub use fit::{FitError, Sample};
pub use optimum::Extremum;
