//! Computes the direct convolution: each output is the sum of the products of the filter's weights and the inputs up to
//! the output's token.
//!
//! The `TOKENS` tokens of a block share each load of a weight. Their sums are independent chains, which overlap.

use super::functions::silu;
use super::kernel::{ConvolutionTile, VECTORS};
use crate::lanes::Lanes;

/// Tokens per block.
const TOKENS: usize = 4;

/// Computes the outputs of a tile.
///
/// # Safety
/// - The caller keeps the contract of [`ConvolutionTile`].
#[inline(always)]
pub unsafe fn run<L: Lanes>(isa: L::Isa, tile: &ConvolutionTile) {
    let whole = tile.tokens / TOKENS * TOKENS;
    // SAFETY: the blocks consist of tokens in the tile (clause).
    unsafe {
        for token in (0..whole).step_by(TOKENS) {
            block::<L, TOKENS>(isa, tile, token);
        }
        for token in whole..tile.tokens {
            block::<L, 1>(isa, tile, token);
        }
    }
}

/// Computes the outputs of the `T` tokens from `token`.
///
/// # Safety
/// - The caller keeps the contract of [`ConvolutionTile`]; the tokens are in the tile.
#[inline(always)]
unsafe fn block<L: Lanes, const T: usize>(isa: L::Isa, tile: &ConvolutionTile, token: usize) {
    // SAFETY: the rows of the tile's tokens and of the inputs before them, the weights and the bias have `VECTORS`
    // vectors each (clause).
    unsafe {
        let mut sums = [[L::splat(isa, 0.0); VECTORS]; T];
        for tap in 0..tile.taps {
            let mut weights = [L::splat(isa, 0.0); VECTORS];
            for v in 0..VECTORS {
                weights[v] = L::load(isa, tile.filter.add((tap * VECTORS + v) * L::N));
            }
            let row = tile.u.row(token).wrapping_offset(-tile.u.stride * tap as isize);
            for t in 0..T {
                let row = row.wrapping_offset(tile.u.stride * t as isize);
                for v in 0..VECTORS {
                    sums[t][v] = weights[v].mul_add(L::load(isa, row.add(v * L::N)), sums[t][v]);
                }
            }
        }
        for t in 0..T {
            let out = tile.out.row(token + t);
            for v in 0..VECTORS {
                let mut sum = sums[t][v];
                if !tile.bias.is_null() {
                    sum = sum.plus(L::load(isa, tile.bias.add(v * L::N)));
                }
                if tile.silu {
                    sum = silu(isa, sum);
                }
                sum.store(out.add(v * L::N));
            }
        }
    }
}
