//! Scans over any monoid.
//!
//! A reduction returns `x_0 ⊕ … ⊕ x_{n−1}`; an inclusive scan returns every prefix that ends with its own
//! element, an exclusive one every prefix that ends before it. All keep the order of the elements, so the
//! operation need not commute, and all take any length.
//!
//! | module | reduction | inclusive | exclusive | works on |
//! |---|---|---|---|---|
//! | [`sequential`] | yes | yes | yes | the elements themselves |
//! | [`tree`] | yes | | | the elements themselves |
//! | [`hillis_steele`] | yes | yes | | two buffers |
//! | [`kogge_stone`] | yes | yes | | the elements themselves |
//! | [`blelloch`] | yes | yes | yes | the elements themselves |
//! | [`two_level`] | yes | yes | | the elements, one block and one element per block |
//! | [`stack`] | yes | | | slots of the caller; the tree that runs execute |
//!
//! Every parallel algorithm is a number of steps and a pure function from a step and an index to the
//! elements that meet there. Merges of one step do not depend on each other; the next step begins when all
//! are done. The loops here execute steps one element after the other, and any machine that keeps the order
//! of steps gets the same bits.
//!
//! Every algorithm is written over [`Slots`], numbered places that hold the elements: a slice of a
//! [`Monoid`](crate::monoid::Monoid), or a workspace whose elements have sizes that are known at run time.
//!
//! **Depth** is the greatest number of executions of [`Slots::combine`] on any path from an input to an output. The functions that return it are exact. A merge with the identity is executed and so it counts;
//! since it rounds nothing, [`Scan::identity_merges`] returns how many of them a longest path holds.
//!
//! **The published depth** of the two-level scan, [`elsa_depth`], is at least three more than what
//! [`two_level`] executes at any length, as long as its inter-block term is not taken below zero.

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

pub use algorithm::{Block, Scan};
pub use depth::{ceil_log2, elsa_depth};
pub use form::{Form, ScanError};
pub use slots::{Scratched, Slots};
