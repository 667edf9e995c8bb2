//! All scan algorithms, as one enum.

use super::form::ScanForm;
use super::slots::{Scratched, Slots};
use super::{blelloch, hillis_steele, kogge_stone, sequential, tree, two_level};
use crate::argument::ArgumentError;
use crate::monoid::Monoid;

/// Number of elements per block of the two-level scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// 64 elements.
    B64,
    /// 128 elements, the size that ELSA uses.
    B128,
    /// 256 elements.
    B256,
}

impl BlockSize {
    /// All block sizes.
    pub const ALL: [BlockSize; 3] = [BlockSize::B64, BlockSize::B128, BlockSize::B256];

    /// Returns the number of elements per block.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            BlockSize::B64 => 64,
            BlockSize::B128 => 128,
            BlockSize::B256 => 256,
        }
    }
}

/// A scan algorithm. The two-level scan also has a block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The algorithm of [`sequential`].
    Sequential,
    /// The algorithm of [`tree`].
    Tree,
    /// The algorithm of [`hillis_steele`].
    HillisSteele,
    /// The algorithm of [`kogge_stone`].
    KoggeStone,
    /// The algorithm of [`blelloch`].
    Blelloch,
    /// The algorithm of [`two_level`], with its block size.
    TwoLevel(BlockSize),
}

impl Scan {
    /// All algorithms, and all block sizes of the two-level scan.
    pub const ALL: [Scan; 8] = [
        Scan::Sequential,
        Scan::Tree,
        Scan::HillisSteele,
        Scan::KoggeStone,
        Scan::Blelloch,
        Scan::TwoLevel(BlockSize::B64),
        Scan::TwoLevel(BlockSize::B128),
        Scan::TwoLevel(BlockSize::B256),
    ];

    /// Returns the name of the algorithm, including the block size of the two-level scan.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Scan::Sequential => "sequential",
            Scan::Tree => "tree",
            Scan::HillisSteele => "hillis-steele",
            Scan::KoggeStone => "kogge-stone",
            Scan::Blelloch => "blelloch",
            Scan::TwoLevel(BlockSize::B64) => "two-level-64",
            Scan::TwoLevel(BlockSize::B128) => "two-level-128",
            Scan::TwoLevel(BlockSize::B256) => "two-level-256",
        }
    }

    /// Returns the exact depth of `form` over `n` elements; `None` if the algorithm does not support the form.
    #[must_use]
    pub const fn depth(self, form: ScanForm, n: usize) -> Option<usize> {
        Some(match (self, form) {
            (Scan::Sequential, ScanForm::Reduction) => sequential::reduction_depth(n),
            (Scan::Sequential, ScanForm::Inclusive) => sequential::inclusive_depth(n),
            (Scan::Sequential, ScanForm::Exclusive) => sequential::exclusive_depth(n),
            (Scan::Tree, ScanForm::Reduction) => tree::depth(n),
            (Scan::HillisSteele, ScanForm::Reduction | ScanForm::Inclusive) => hillis_steele::depth(n),
            (Scan::KoggeStone, ScanForm::Reduction | ScanForm::Inclusive) => kogge_stone::depth(n),
            (Scan::Blelloch, ScanForm::Reduction) => blelloch::reduction_depth(n),
            (Scan::Blelloch, ScanForm::Inclusive) => blelloch::inclusive_depth(n),
            (Scan::Blelloch, ScanForm::Exclusive) => blelloch::exclusive_depth(n),
            (Scan::TwoLevel(b), ScanForm::Reduction) => two_level::reduction_depth(n, b.size()),
            (Scan::TwoLevel(b), ScanForm::Inclusive) => two_level::inclusive_depth(n, b.size()),
            _ => return None,
        })
    }

    /// Returns the number of merges with the identity on a longest path. Such merges count towards the depth but do not
    /// round.
    #[must_use]
    pub const fn identity_merges(self, form: ScanForm, n: usize) -> usize {
        let any = match (self, form) {
            (Scan::Sequential | Scan::Blelloch, ScanForm::Exclusive) => n > 1,
            (Scan::TwoLevel(b), ScanForm::Inclusive) => n > b.size(),
            _ => false,
        };
        any as usize
    }

    /// Returns the number of scratch elements that the algorithm needs for `form` over `n` elements.
    #[must_use]
    pub const fn scratch_len(self, form: ScanForm, n: usize) -> usize {
        match (self, form) {
            (Scan::HillisSteele, _) => hillis_steele::scratch_len(n),
            (Scan::TwoLevel(b), _) => two_level::scratch_len(n, b.size()),
            _ => 0,
        }
    }

    /// Reduces the elements of `slots` and returns the place of their total. Returns `None` if there are no elements;
    /// the total is then the identity. The elements are overwritten.
    ///
    /// # Errors
    /// Returns an error if the scratch is shorter than [`Scan::scratch_len`].
    pub fn reduce_slots<S: Slots + ?Sized>(self, slots: &mut S) -> Result<Option<usize>, ArgumentError> {
        match self {
            Scan::Sequential => Ok(sequential::reduce(slots)),
            Scan::Tree => Ok(tree::reduce(slots)),
            Scan::HillisSteele => hillis_steele::reduce(slots),
            Scan::KoggeStone => Ok(kogge_stone::reduce(slots)),
            Scan::Blelloch => Ok(blelloch::reduce(slots)),
            Scan::TwoLevel(b) => two_level::reduce(slots, b.size()),
        }
    }

    /// Replaces every element of `slots` by the prefix that ends with it.
    ///
    /// # Errors
    /// Returns an error if the scratch is shorter than [`Scan::scratch_len`] or if the algorithm does not support
    /// inclusive scans.
    pub fn inclusive_slots<S: Slots + ?Sized>(self, slots: &mut S) -> Result<(), ArgumentError> {
        match self {
            Scan::Sequential => sequential::inclusive(slots),
            Scan::Tree => {
                return Err(ArgumentError::Form { scan: self.name(), form: ScanForm::Inclusive.name() });
            }
            Scan::HillisSteele => hillis_steele::inclusive(slots)?,
            Scan::KoggeStone => kogge_stone::inclusive(slots),
            Scan::Blelloch => blelloch::inclusive(slots),
            Scan::TwoLevel(b) => two_level::inclusive(slots, b.size())?,
        }
        Ok(())
    }

    /// Replaces every element of `slots` by the prefix that ends before it; the first becomes the identity. Needs no
    /// scratch.
    ///
    /// # Errors
    /// Returns an error if the algorithm does not support exclusive scans.
    pub fn exclusive_slots<S: Slots + ?Sized>(self, slots: &mut S) -> Result<(), ArgumentError> {
        match self {
            Scan::Sequential => sequential::exclusive(slots),
            Scan::Blelloch => blelloch::exclusive(slots),
            _ => return Err(ArgumentError::Form { scan: self.name(), form: ScanForm::Exclusive.name() }),
        }
        Ok(())
    }

    /// Reduces `items` and returns their total. Returns the identity if `items` is empty. The items are overwritten.
    ///
    /// # Errors
    /// Returns an error if the scratch is shorter than [`Scan::scratch_len`].
    pub fn reduce<M: Monoid>(self, items: &mut [M], scratch: &mut [M]) -> Result<M, ArgumentError> {
        let mut slots = Scratched::new(items, scratch);
        let total = self.reduce_slots(&mut slots)?.and_then(|at| slots.get(at));
        Ok(total.map_or_else(M::identity, M::clone))
    }

    /// Replaces every element by the prefix that ends with it.
    ///
    /// # Errors
    /// Returns an error if the scratch is shorter than [`Scan::scratch_len`] or if the algorithm does not support
    /// inclusive scans.
    pub fn inclusive<M: Monoid>(self, items: &mut [M], scratch: &mut [M]) -> Result<(), ArgumentError> {
        self.inclusive_slots(&mut Scratched::new(items, scratch))
    }

    /// Replaces every element by the prefix that ends before it; the first becomes the identity.
    ///
    /// # Errors
    /// Returns an error if the algorithm does not support exclusive scans.
    pub fn exclusive<M: Monoid>(self, items: &mut [M]) -> Result<(), ArgumentError> {
        self.exclusive_slots(items)
    }
}
