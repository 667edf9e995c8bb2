//! The error bound of a schedule.
//!
//! This is the room of a rigorous bound: one that covers dot product, exponential, accumulation and merge
//! tree as they are executed. What there is today, [`rounding`], needs the probabilities and the answer of
//! the f64 oracle: it tells after the fact whether rounding can explain an answer, and serves verification.
//! It is not the certificate of a run. What is published, and what that leaves out, is in
//! [`super::certificate`].

pub mod rounding;
