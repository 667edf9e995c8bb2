//! The operands of a call: the single list of tensors that it reads and writes.

use core::array;
use core::ops::{Index, IndexMut};

/// A tensor that a call of linear attention reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// Queries, `[batch, heads, tokens, d_k]`.
    Query,
    /// Keys, `[batch, key_heads, tokens, d_k]`.
    Key,
    /// Values, `[batch, state_heads, tokens, d_v]`.
    Value,
    /// Natural logarithms of gates, `[batch, state_heads, tokens, 1 or d_k]`.
    Decay,
    /// Rates of the delta rules, `[batch, state_heads or 1, tokens, 1]`.
    Beta,
    /// States before the first token, f32 `[sequences, state_heads, d_k, d_v]`.
    PastState,
    /// The output, `[batch, output_heads, tokens, d_v]`.
    Output,
    /// States after the last token, f32 `[sequences, state_heads, d_k, d_v]`.
    PresentState,
}

impl Operand {
    /// Every operand: the inputs, then the outputs.
    pub const ALL: [Operand; 8] = [
        Operand::Query,
        Operand::Key,
        Operand::Value,
        Operand::Decay,
        Operand::Beta,
        Operand::PastState,
        Operand::Output,
        Operand::PresentState,
    ];

    /// The name of the operand in error messages, such as `q` or `past_state`: that of its field in the C interface.
    #[must_use]
    pub const fn argument(self) -> &'static str {
        match self {
            Operand::Query => "q",
            Operand::Key => "k",
            Operand::Value => "v",
            Operand::Decay => "decay",
            Operand::Beta => "beta",
            Operand::PastState => "past_state",
            Operand::Output => "out",
            Operand::PresentState => "present_state",
        }
    }

    /// Whether the operand is an output.
    #[must_use]
    pub const fn is_written(self) -> bool {
        matches!(self, Operand::Output | Operand::PresentState)
    }
}

/// A value of type `T` for each [`Operand`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands<T>([T; Operand::ALL.len()]);

impl<T> Operands<T> {
    /// Calls `of` for each operand.
    #[must_use]
    pub fn from_fn(mut of: impl FnMut(Operand) -> T) -> Operands<T> {
        Operands(array::from_fn(|i| of(Operand::ALL[i])))
    }

    /// Iterates over the operands and their values, in the order of [`Operand::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Operand, &T)> {
        Operand::ALL.into_iter().zip(&self.0)
    }
}

impl<T: Default> Default for Operands<T> {
    fn default() -> Operands<T> {
        Operands::from_fn(|_| T::default())
    }
}

impl<T> Index<Operand> for Operands<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, operand: Operand) -> &T {
        &self.0[operand as usize]
    }
}

impl<T> IndexMut<Operand> for Operands<T> {
    #[inline(always)]
    fn index_mut(&mut self, operand: Operand) -> &mut T {
        &mut self.0[operand as usize]
    }
}
