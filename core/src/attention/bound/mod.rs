//! Error bounds of a run.
//!
//! [`rounding`] bounds how far rounding can move an answer, covering the dot product, the exponential, the
//! accumulation and the merge tree as they are executed. It needs the probabilities and the answer of the f64
//! oracle, so it judges an answer afterwards and serves verification.
//!
//! It is not the certificate of a run. The published claim, and what that omits, is in [`super::certificate`].

pub mod rounding;
