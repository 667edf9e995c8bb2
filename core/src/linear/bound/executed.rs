//! The structure that a run executed.

use crate::linear::rule::Form;

/// Method by which the delta rules solve the rows of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Solve {
    /// Solves one row after another. Each row depends on the state before the chunk and on the earlier rows of the
    /// chunk.
    Rows,
    /// Computes the rows as `û = U − W S`, where `W` and `U` are independent of the state. `W` and `U` are computed by
    /// substitution, or by an inverse `T` that is computed by substitution.
    Factors,
}

/// The part of the executed structure on which the error bound of a run depends. It is a function of the plan and of the
/// kernel's entry in the table of kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Executed {
    /// The order of operations.
    pub form: Form,
    /// Number of tokens that are applied to a state together: 1 for the recurrence, the number of tokens per chunk for a
    /// chunked form, the number of all tokens for [`Form::Parallel`]. Within each part, a scan applies this number of
    /// tokens together.
    pub chunk: usize,
    /// Number of tokens per part of [`Form::Scan`]; the last part may have fewer. Every part begins at a multiple of
    /// `part`.
    pub part: usize,
    /// Largest relative error of the exponential of a gate logarithm, or of a sum of gate logarithms, after rounding to
    /// f32. It includes the error of the sum in f64.
    pub exp_relative: f64,
    /// Largest relative error of an element of a query after scaling, and after normalisation if the problem
    /// normalises.
    pub query_relative: f64,
    /// Largest relative error of an element of a key; zero unless the problem normalises.
    pub key_relative: f64,
    /// Largest number of roundings that a product undergoes in a sum over the dims of a key, including the first rounding.
    pub dims: usize,
    /// Largest number of roundings that a product undergoes in a sum over the tokens of a chunk, including the first
    /// rounding.
    pub tokens: usize,
    /// Method by which the delta rules solve a chunk.
    pub solve: Solve,
    /// Base-2 logarithm of the largest factor by which stored keys, queries or the state are scaled when a product of
    /// gates is split into factors; zero without a split.
    pub factored: f64,
}
