//! Shapes on the command line, and the problem that a shape stands for.

use crate::error::Error;
use elsa_core::attention::{Problem, Spec};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use std::str::FromStr;

/// The sizes of plain attention, written `B,H,NQ,NK,D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Heads, of queries and keys alike.
    pub heads: usize,
    /// Query tokens.
    pub queries: usize,
    /// Key tokens.
    pub keys: usize,
    /// Head size, of keys and values alike.
    pub dim: usize,
}

impl Shape {
    /// Plain attention of dense tensors `[batch, heads, tokens, dim]`, not yet checked.
    ///
    /// # Errors
    /// Sizes whose product overflows.
    pub fn spec(self, dtype: DType) -> Result<Spec, Error> {
        let Shape { batch, heads, queries, keys, dim } = self;
        let view = |name, tokens| View::dense(name, Layout::Bhnd, &[batch, heads, tokens, dim], None);
        Ok(Spec::new(dtype, view("q", queries)?, view("k", keys)?, view("v", keys)?, view("out", queries)?))
    }

    /// The checked problem of [`Shape::spec`].
    ///
    /// # Errors
    /// Sizes that are not a valid problem.
    pub fn problem(self, dtype: DType) -> Result<Problem, Error> {
        Ok(self.spec(dtype)?.check()?)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        let sizes: Option<Vec<usize>> =
            text.split(',').map(|size| size.parse().ok().filter(|size| *size > 0)).collect();
        match sizes.as_deref() {
            Some(&[batch, heads, queries, keys, dim]) => Ok(Shape { batch, heads, queries, keys, dim }),
            _ => Err("allowed: B,H,NQ,NK,D, whole numbers from 1".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_five_sizes() {
        let shape = Shape { batch: 1, heads: 2, queries: 3, keys: 4, dim: 5 };
        assert_eq!("1,2,3,4,5".parse(), Ok(shape));
        assert!("1,2,3,4".parse::<Shape>().is_err() && "1,2,3,4,0".parse::<Shape>().is_err());
    }
}
