//! What a run executed.

use crate::linear::rule::Form;

/// How the rows of a chunk of the delta rules are solved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Solve {
    /// Row by row, each with the state before the chunk and the rows before it.
    Rows,
    /// From `W` and `U`, which do not know the state: `û = U − W S`. Both by substitution, or by an inverse `T` that is.
    Factors,
}

/// What a run executed, as far as its error bound depends on it. A function of the plan and of the kernel's entry in the
/// table of kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Executed {
    /// The order of operations.
    pub form: Form,
    /// Tokens that meet a state at once: 1 of the recurrence, the chunk of a chunked form, all of them of [`Form::Parallel`].
    /// Of a scan, those within its parts.
    pub chunk: usize,
    /// Tokens of a part of [`Form::Scan`], of which the last may have fewer. Parts begin at its multiples.
    pub part: usize,
    /// Largest relative error of `exp` of a gate, or of a sum of gates, rounded to f32: that of the sum in f64 included.
    pub exp_relative: f64,
    /// Largest relative error of an element of a query with its scale, normalised where the problem asks for it.
    pub query_relative: f64,
    /// Largest relative error of an element of a key: zero unless the problem normalises.
    pub key_relative: f64,
    /// Largest number of roundings of a product in a sum over the dims of a key, its own included.
    pub dims: usize,
    /// Largest number of roundings of a product in a sum over the tokens of a chunk, its own included.
    pub tokens: usize,
    /// How the delta rules solve a chunk.
    pub solve: Solve,
    /// Base-2 logarithm of the largest factor by which keys, queries or the state are scaled while they are held, because
    /// gates are split into factors; zero if they never are.
    pub factored: f64,
}
