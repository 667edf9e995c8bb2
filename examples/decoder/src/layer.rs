//! Sizes of a layer, and the positions of its weights in memory.

use crate::error::Error;
use std::ops::Range;

/// Sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Number of dims per head.
    pub head_dim: usize,
    /// Inner size of the gated MLP.
    pub mlp: usize,
}

/// A weight tensor of a layer. Matrices are `[inputs, outputs]`, stored by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Scales of the norm before attention, `[dim]`.
    AttentionNorm,
    /// Projection to queries, `[dim, dim]`.
    Query,
    /// Projection to keys, `[dim, kv_heads · head_dim]`.
    Key,
    /// Projection to values, `[dim, kv_heads · head_dim]`.
    Value,
    /// Projection of the output of attention, `[dim, dim]`.
    Output,
    /// Scales of the norm before the MLP, `[dim]`.
    MlpNorm,
    /// Projection to the gates of the MLP, `[dim, mlp]`.
    Gate,
    /// Projection to the gated values of the MLP, `[dim, mlp]`.
    Up,
    /// Projection from the MLP to the residual stream, `[mlp, dim]`.
    Down,
}

impl Weight {
    /// Every weight, in the order of the file.
    pub const ALL: [Weight; 9] = [
        Weight::AttentionNorm,
        Weight::Query,
        Weight::Key,
        Weight::Value,
        Weight::Output,
        Weight::MlpNorm,
        Weight::Gate,
        Weight::Up,
        Weight::Down,
    ];

    /// Returns the numbers of rows and columns. A norm has one row.
    #[must_use]
    pub fn shape(self, sizes: &Sizes) -> [usize; 2] {
        let (dim, kv, mlp) = (sizes.dim(), sizes.kv_heads * sizes.head_dim, sizes.mlp);
        match self {
            Weight::AttentionNorm | Weight::MlpNorm => [1, dim],
            Weight::Query | Weight::Output => [dim, dim],
            Weight::Key | Weight::Value => [dim, kv],
            Weight::Gate | Weight::Up => [dim, mlp],
            Weight::Down => [mlp, dim],
        }
    }

    /// Returns the range of the weight's elements within a layer's elements.
    #[must_use]
    pub fn range(self, sizes: &Sizes) -> Range<usize> {
        let count = |weight: Weight| weight.shape(sizes).iter().product::<usize>();
        let start = Weight::ALL.into_iter().take_while(|weight| *weight != self).map(count).sum();
        start..start + count(self)
    }
}

impl Sizes {
    /// Returns the width of the residual stream.
    #[must_use]
    pub const fn dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the number of elements in a layer's weights.
    #[must_use]
    pub fn elements(&self) -> usize {
        Weight::Down.range(self).end
    }

    /// Checks the sizes: each size and the width [`Sizes::dim`] are from 1 to 32768, the number of key heads divides
    /// the number of query heads, and a layer's weights occupy at most 16 GiB.
    ///
    /// # Errors
    /// Returns an error if a size does not meet these conditions.
    pub fn check(self) -> Result<Sizes, Error> {
        let refuse =
            |argument, found: usize, allowed| Error::Argument { argument, found: found.to_string(), allowed };
        const MOST: usize = 1 << 15;
        for (argument, found) in
            [("heads", self.heads), ("kv-heads", self.kv_heads), ("dim", self.head_dim), ("mlp", self.mlp)]
        {
            if found == 0 || found > MOST {
                return Err(refuse(argument, found, "1 to 32768"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(refuse("kv-heads", self.kv_heads, "a divisor of --heads"));
        }
        if self.dim() > MOST {
            return Err(refuse("heads", self.heads, "--heads times --dim up to 32768"));
        }
        Ok(self)
    }
}
