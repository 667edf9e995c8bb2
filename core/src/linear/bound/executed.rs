//! The structure that a run executed.

use crate::linear::rule::Form;

/// Method by which the delta rules solve the rows of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Solve {
    /// Row by row, each with the state before the chunk and the earlier rows.
    Rows,
    /// From `W` and `U`, which are independent of the state: `û = U − W S`. Both by substitution, or by an inverse `T`
    /// computed by substitution.
    Factors,
}

/// The structure that a run executed, as far as its error bound depends on it. It is a function of the plan and of the
/// kernel's entry in the table of kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Executed {
    /// The order of operations.
    pub form: Form,
    /// Number of tokens that meet a state at once: 1 for the recurrence, the chunk of a chunked form, all of them for
    /// [`Form::Parallel`]. For a scan, the number within its parts.
    pub chunk: usize,
    /// Number of tokens of a part of [`Form::Scan`]; the last part may have fewer. Parts begin at its multiples.
    pub part: usize,
    /// Largest relative error of `exp` of a gate, or of a sum of gates, rounded to f32, including the error of the sum in
    /// f64.
    pub exp_relative: f64,
    /// Largest relative error of an element of a query with its scale, normalised if the problem normalises.
    pub query_relative: f64,
    /// Largest relative error of an element of a key: zero unless the problem normalises.
    pub key_relative: f64,
    /// Largest number of roundings of a product in a sum over the dims of a key, including its own.
    pub dims: usize,
    /// Largest number of roundings of a product in a sum over the tokens of a chunk, including its own.
    pub tokens: usize,
    /// Method by which the delta rules solve a chunk.
    pub solve: Solve,
    /// Base-2 logarithm of the largest factor by which stored keys, queries or the state are scaled because gates are split
    /// into factors; zero if they never are.
    pub factored: f64,
}
