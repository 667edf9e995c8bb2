//! What schedules do with given tensors: the study of `elsa verify --study`.
//!
//! Every table and figure of the article on vector relieved attention (VFA, VSA) has its place, measured on the tensors at
//! hand by the scalar run of [`elsa_core::attention::traversal`] in place of a model's score on a benchmark. Answers stand
//! beside exact attention in f64, and beside their bounds.
//!
//! | of the article | here | module |
//! |---|---|---|
//! | table 1, figure 1 | operations of a weight, their share per instruction set and head size | [`operations`] |
//! | table 2 | needs language models, and is left out with words | [`page`] |
//! | table 3 | rows that ten settings would lose to f16 and f32 weights | [`tables`] |
//! | table 4 | sparsity, bound and error of 21 settings, and of error budgets | [`tables`] |
//! | figures 2 and 5 | where maxima lie, a map of P, block maxima | [`seen`] |
//! | figures 3 and 4 | similarity within blocks, norms | [`tokens`] |
//!
//! [`measure`] runs the schedules, over all tiles or a sample of them where all would take too long.

mod measure;
mod operations;
mod page;
mod places;
mod seen;
mod settings;
mod tables;
mod tokens;

pub use measure::{Study, study};
pub use page::page;
