//! The operands of an attention call: the single list of tensors that it reads and writes.
//!
//! Code that handles every operand (views, host pointers, device addresses, offsets in a staging buffer) keeps an
//! [`Operands<T>`] and loops over [`Operand::ALL`] instead of repeating the list.

use core::array;
use core::ops::{Index, IndexMut};

/// A tensor that an attention call reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// Queries, `[batch, heads, queries, d]`.
    Query,
    /// New keys, `[batch, kv_heads, keys, d]`.
    Key,
    /// New values, `[batch, kv_heads, keys, d_v]`.
    Value,
    /// Past keys, `[batch, kv_heads, past, d]`.
    PastKey,
    /// Past values, `[batch, kv_heads, past, d_v]`.
    PastValue,
    /// The mask, broadcast to `[batch, heads, queries, keys]`.
    Mask,
    /// The bias, broadcast as the mask is, or a table of relative positions, `[entries, heads]`.
    Bias,
    /// The entry of the table for each query and key, i64 `[queries, keys]`.
    BiasIndex,
    /// The output, `[batch, heads, queries, d_v]`.
    Output,
    /// Past and new keys, `[batch, kv_heads, past + keys, d]`.
    PresentKey,
    /// Past and new values, `[batch, kv_heads, past + keys, d_v]`.
    PresentValue,
    /// Log-sum-exp of each row, f32 `[batch, heads, queries]`.
    LogSumExp,
    /// References `m` of the states, f32 `[batch, heads, queries]`.
    StateReference,
    /// Sums `S` of the states, f32 `[batch, heads, queries]`.
    StateSum,
    /// Weighted sums `W` of the states, f32 `[batch, heads, queries, d_v]`.
    StateWeighted,
}

impl Operand {
    /// Every operand: the inputs, then the outputs.
    pub const ALL: [Operand; 15] = [
        Operand::Query,
        Operand::Key,
        Operand::Value,
        Operand::PastKey,
        Operand::PastValue,
        Operand::Mask,
        Operand::Bias,
        Operand::BiasIndex,
        Operand::Output,
        Operand::PresentKey,
        Operand::PresentValue,
        Operand::LogSumExp,
        Operand::StateReference,
        Operand::StateSum,
        Operand::StateWeighted,
    ];

    /// The name of the operand in error messages, such as `q`, `past_k`, `lse` or `state_m`: that of its field in the
    /// C interface.
    #[must_use]
    pub const fn argument(self) -> &'static str {
        match self {
            Operand::Query => "q",
            Operand::Key => "k",
            Operand::Value => "v",
            Operand::PastKey => "past_k",
            Operand::PastValue => "past_v",
            Operand::Mask => "mask",
            Operand::Bias => "bias",
            Operand::BiasIndex => "bias_index",
            Operand::Output => "out",
            Operand::PresentKey => "present_k",
            Operand::PresentValue => "present_v",
            Operand::LogSumExp => "lse",
            Operand::StateReference => "state_m",
            Operand::StateSum => "state_s",
            Operand::StateWeighted => "state_w",
        }
    }

    /// Whether the operand is an output.
    #[must_use]
    pub const fn is_written(self) -> bool {
        self as usize >= Operand::Output as usize
    }

    /// Whether the operand is one of the three arrays of a state output.
    #[must_use]
    pub const fn is_state(self) -> bool {
        matches!(self, Operand::StateReference | Operand::StateSum | Operand::StateWeighted)
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

    /// Calls `of` for each operand, in order, and stops at the first error.
    ///
    /// # Errors
    /// Returns the first error of `of`.
    pub fn try_from_fn<E>(mut of: impl FnMut(Operand) -> Result<T, E>) -> Result<Operands<T>, E>
    where
        T: Default,
    {
        let mut operands = Operands::from_fn(|_| T::default());
        for operand in Operand::ALL {
            operands[operand] = of(operand)?;
        }
        Ok(operands)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_the_order_of_its_numbers() {
        for (i, operand) in Operand::ALL.into_iter().enumerate() {
            assert_eq!(operand as usize, i);
            assert_eq!(operand.is_written(), i >= 8);
        }
        let names = Operands::from_fn(Operand::argument);
        assert!(names.iter().all(|(operand, name)| operand.argument() == *name));
        assert_eq!((names[Operand::PastValue], names[Operand::StateWeighted]), ("past_v", "state_w"));
    }

    #[test]
    fn the_first_error_ends_the_list() {
        let of = |operand| if operand == Operand::Mask { Err(operand) } else { Ok(1u8) };
        assert_eq!(Operands::try_from_fn(of), Err(Operand::Mask));
        let all = Operands::try_from_fn(|operand| Ok::<_, ()>(operand as usize));
        assert!(all.is_ok_and(|all| all.iter().all(|(operand, n)| operand as usize == *n)));
    }
}
