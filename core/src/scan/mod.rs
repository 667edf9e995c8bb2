//! Scans over any monoid.
//!
//! A reduction returns `x_0 ⊕ … ⊕ x_{n−1}`, an inclusive scan the prefix that ends with each element, and an exclusive
//! scan the prefix that ends before each element. All keep the order of the elements, so the operation need not
//! commute, and all accept any length.
//!
//! | module | reduction | inclusive | exclusive | works on |
//! |---|---|---|---|---|
//! | [`sequential`] | yes | yes | yes | the elements in place |
//! | [`tree`] | yes | | | the elements in place |
//! | [`hillis_steele`] | yes | yes | | two buffers |
//! | [`kogge_stone`] | yes | yes | | the elements in place |
//! | [`blelloch`] | yes | yes | yes | the elements in place |
//! | [`two_level`] | yes | yes | | the elements, one block and one element per block |
//! | [`stack`] | yes | | | slots of the caller; used to merge attention segments |
//!
//! Every parallel algorithm consists of steps. For a step and an index, a pure function returns the elements that
//! merge. Merges of one step are independent; the next step begins when all are done. The loops here execute the merges
//! of a step one by one, and any machine that keeps the order of the steps gets the same bits.
//!
//! Every algorithm is written for [`Slots`], numbered places that hold the elements: a slice of a
//! [`Monoid`](crate::monoid::Monoid), or a workspace whose elements have sizes known only at run time.
//!
//! **Depth** is the largest number of executions of [`Slots::combine`] on any path from an input to an output. The
//! functions that return it are exact. A merge with the identity is executed and therefore counted, but it does not
//! round; [`Scan::identity_merges`] returns how many such merges a longest path contains.
//!
//! **The published depth** of the two-level scan, [`elsa_depth`], exceeds the executed depth of [`two_level`] by at
//! least three. This holds for any length, because [`elsa_depth`] replaces a negative inter-block term by zero.

mod algorithm;
pub mod blelloch;
mod depth;
mod form;
pub mod hillis_steele;
pub mod kogge_stone;
pub mod sequential;
mod slots;
pub mod stack;
pub mod tree;
pub mod two_level;

pub use algorithm::{BlockSize, Scan};
pub use depth::{ceil_log2, elsa_depth};
pub use form::ScanForm;
pub use slots::{Scratched, Slots};
