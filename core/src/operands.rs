//! Lists of operands: the tensors that a call of an operator reads and writes.
//!
//! For each operator, `operands!` defines an enum of its operands. The enum defines the names and the order of the
//! operands. Code that handles every operand (views, host pointers, device addresses, offsets in a staging buffer)
//! stores an [`Operands`] and loops over it instead of repeating the list.

use crate::dtype::{DType, Elements, ElementsMut};
use core::fmt;
use core::ops::{Index, IndexMut};

/// A tensor that calls of an operator read or write.
pub trait Operand: Copy + Eq + fmt::Debug + Send + Sync + 'static {
    /// Array type with a value for each operand.
    type Each<T>: AsRef<[T]> + AsMut<[T]>;

    /// Every operand: the inputs, then the outputs.
    const LIST: &'static [Self];

    /// Returns the index of the operand in [`Operand::LIST`].
    fn number(self) -> usize;

    /// Returns the name of the operand in error messages. The operand's field in the C interface has the same name.
    fn argument(self) -> &'static str;

    /// Returns whether the operand is an output.
    fn is_written(self) -> bool;

    /// Calls `of` for each operand, in the order of the list, and collects the results.
    fn each<T>(of: impl FnMut(Self) -> T) -> Self::Each<T>;
}

/// Defines the enum of an operator's operands: the inputs, then the outputs, each with its name in error messages.
macro_rules! operands {
    (
        $(#[$list:meta])*
        read { $($(#[$input:meta])* $read:ident = $of_input:literal,)* }
        written { $($(#[$output:meta])* $written:ident = $of_output:literal,)* }
    ) => {
        $(#[$list])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operand {
            $($(#[$input])* $read,)*
            $($(#[$output])* $written,)*
        }

        impl Operand {
            /// Every operand: the inputs, then the outputs.
            pub const ALL: [Operand; [$($of_input,)* $($of_output,)*].len()] =
                [$(Operand::$read,)* $(Operand::$written,)*];

            /// Returns the name of the operand in error messages. The operand's field in the C interface has the same
            /// name.
            #[must_use]
            pub const fn argument(self) -> &'static str {
                match self {
                    $(Operand::$read => $of_input,)*
                    $(Operand::$written => $of_output,)*
                }
            }

            /// Returns whether the operand is an output.
            #[must_use]
            pub const fn is_written(self) -> bool {
                matches!(self, $(Operand::$written)|*)
            }
        }

        impl $crate::operands::Operand for Operand {
            type Each<T> = [T; Operand::ALL.len()];

            const LIST: &'static [Operand] = &Operand::ALL;

            #[inline(always)]
            fn number(self) -> usize {
                self as usize
            }

            fn argument(self) -> &'static str {
                Operand::argument(self)
            }

            fn is_written(self) -> bool {
                Operand::is_written(self)
            }

            fn each<T>(mut of: impl FnMut(Operand) -> T) -> Self::Each<T> {
                core::array::from_fn(|i| of(Operand::ALL[i]))
            }
        }

        /// A value of type `T` for each [`Operand`].
        pub type Operands<T> = $crate::operands::Operands<Operand, T>;
    };
}
pub(crate) use operands;

/// A value of type `T` for each operand.
pub struct Operands<O: Operand, T>(O::Each<T>);

impl<O: Operand, T> Operands<O, T> {
    /// Calls `of` for each operand, in order, and collects the results.
    #[must_use]
    pub fn from_fn(of: impl FnMut(O) -> T) -> Operands<O, T> {
        Operands(O::each(of))
    }

    /// Calls `of` for each operand, in order, and collects the results; stops at the first error.
    ///
    /// # Errors
    /// Returns the first error of `of`.
    pub fn try_from_fn<E>(mut of: impl FnMut(O) -> Result<T, E>) -> Result<Operands<O, T>, E>
    where
        T: Default,
    {
        let mut operands = Operands::from_fn(|_| T::default());
        for operand in O::LIST {
            operands[*operand] = of(*operand)?;
        }
        Ok(operands)
    }

    /// Iterates over the operands and their values, in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = (O, &T)> {
        O::LIST.iter().copied().zip(self.0.as_ref())
    }

    /// Iterates over the values, in the order of the list.
    pub fn values(&self) -> impl Iterator<Item = &T> + Clone {
        self.0.as_ref().iter()
    }

    /// Iterates mutably over the values, in the order of the list.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.as_mut().iter_mut()
    }
}

impl<O: Operand<Each<T>: Clone>, T> Clone for Operands<O, T> {
    fn clone(&self) -> Operands<O, T> {
        Operands(self.0.clone())
    }
}

impl<O: Operand<Each<T>: Copy>, T> Copy for Operands<O, T> {}

impl<O: Operand, T: fmt::Debug> fmt::Debug for Operands<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<O: Operand, T: PartialEq> PartialEq for Operands<O, T> {
    fn eq(&self, other: &Operands<O, T>) -> bool {
        self.0.as_ref() == other.0.as_ref()
    }
}

impl<O: Operand, T: Eq> Eq for Operands<O, T> {}

impl<O: Operand, T: Default> Default for Operands<O, T> {
    fn default() -> Operands<O, T> {
        Operands::from_fn(|_| T::default())
    }
}

impl<O: Operand, T> Index<O> for Operands<O, T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, operand: O) -> &T {
        &self.0.as_ref()[operand.number()]
    }
}

impl<O: Operand, T> IndexMut<O> for Operands<O, T> {
    #[inline(always)]
    fn index_mut(&mut self, operand: O) -> &mut T {
        &mut self.0.as_mut()[operand.number()]
    }
}

/// Storage of a tensor's elements in a call: a slice on the host, or an address in device memory.
pub trait Place {
    /// Type of an address: a pointer on the host, a number on a device.
    type Address: Copy + fmt::Debug;

    /// Returns the address of the first element. The caller must not write to an input through the address.
    fn address(&mut self) -> Self::Address;

    /// Returns the element type. Returns `None` if the place does not state a type, or states a type that is not a
    /// [`DType`].
    fn dtype(&self) -> Option<DType> {
        None
    }
}

impl Place for Elements<'_> {
    type Address = *mut u8;

    fn address(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }

    fn dtype(&self) -> Option<DType> {
        Some(Elements::dtype(self))
    }
}

impl Place for ElementsMut<'_> {
    type Address = *mut u8;

    fn address(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn dtype(&self) -> Option<DType> {
        Some(ElementsMut::dtype(self))
    }
}

impl<T> Place for &[T] {
    type Address = *mut u8;

    fn address(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut().cast()
    }
}

impl<T> Place for &mut [T] {
    type Address = *mut u8;

    fn address(&mut self) -> *mut u8 {
        self.as_mut_ptr().cast()
    }
}

/// An address in device memory.
impl Place for u64 {
    type Address = u64;

    fn address(&mut self) -> u64 {
        *self
    }
}

/// Location of a tensor of a call: its address, and its element type if the call states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location<A> {
    /// Address of the first element.
    pub address: A,
    /// Type of the elements; `None` if the call does not state it.
    pub dtype: Option<DType>,
}

impl<A> Location<A> {
    /// Returns the location of `place`.
    pub fn of<P: Place<Address = A> + ?Sized>(place: &mut P) -> Location<A> {
        Location { address: place.address(), dtype: place.dtype() }
    }
}

/// The tensors of a call, which can be looked up by operand.
pub trait ByOperand<O: Operand> {
    /// Type of the tensors' addresses.
    type Address: Copy + fmt::Debug;

    /// Returns the location of an operand; `None` if the call does not have it or if these tensors do not include it.
    fn place(&mut self, operand: O) -> Option<Location<Self::Address>>;
}

/// Implements [`ByOperand`]: finds an operand in fields that every call has, in optional fields, and in members of an
/// optional group.
macro_rules! by_operand {
    (
        $tensors:ident<$($lifetime:lifetime,)? $($elements:ident),*>:
        $(required $($required:ident = $field:ident),*;)?
        optional $($optional:ident = $of:ident),*;
        $(within $group:ident $($inner:ident = $member:ident),*;)?
    ) => {
        impl<A, $($elements),*> $crate::operands::ByOperand<Operand> for $tensors<$($lifetime,)? $($elements),*>
        where
            A: Copy + core::fmt::Debug,
            $($elements: $crate::operands::Place<Address = A>,)*
        {
            type Address = A;

            fn place(&mut self, operand: Operand) -> Option<$crate::operands::Location<A>> {
                use $crate::operands::Location;
                match operand {
                    $($(Operand::$required => Some(Location::of(&mut self.$field)),)*)?
                    $(Operand::$optional => self.$of.as_mut().map(Location::of),)*
                    $($(Operand::$inner => self.$group.as_mut().map(|of| Location::of(&mut of.$member)),)*)?
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use by_operand;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::Operand as Attention;
    use crate::series::selective::Operand as Selective;

    #[test]
    fn the_list_is_in_the_order_of_its_numbers() {
        fn ordered<O: Operand>() -> usize {
            for (i, operand) in O::LIST.iter().enumerate() {
                assert_eq!(operand.number(), i);
            }
            assert!(O::LIST.is_sorted_by_key(|operand| operand.is_written()));
            let of = Operands::from_fn(|operand: O| operand.number());
            assert!(of.iter().all(|(operand, number)| operand.number() == *number));
            O::LIST.len()
        }
        assert_eq!((ordered::<Attention>(), ordered::<Selective>()), (15, 11));
        assert_eq!(
            (Attention::PastValue.argument(), Attention::StateWeighted.argument()),
            ("past_v", "state_w")
        );
    }

    #[test]
    fn the_first_error_ends_the_list() {
        let of = |operand| if operand == Attention::Mask { Err(operand) } else { Ok(1u8) };
        assert_eq!(Operands::try_from_fn(of), Err(Attention::Mask));
        let all = Operands::try_from_fn(|operand: Attention| Ok::<_, ()>(operand as usize));
        assert!(all.is_ok_and(|all| all.iter().all(|(operand, n)| operand as usize == *n)));
    }
}
