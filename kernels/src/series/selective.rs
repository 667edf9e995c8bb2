//! The selective scan: `x ← exp(δ A) x + δ B u` for each token and number of a state, and `y = C · x + D u`.
//!
//! The numbers of a state pass between two tokens through memory, `[state][W]`: there are more of them than registers. Those
//! of one token do not depend on each other, so their exponentials overlap.

use super::functions::{exp, kept, silu, softplus};
use super::kernel::{Coefficients, SelectiveTile, VECTORS};
use crate::lanes::Lanes;

/// Coefficient `n` of a token, for vector `v` of a tile's channels.
///
/// # Safety
/// - `of` is that of a tile with more than `token` tokens and more than `n` states.
#[inline(always)]
unsafe fn coefficient<L: Lanes>(isa: L::Isa, of: &Coefficients, token: usize, n: usize, v: usize) -> L {
    // SAFETY: the coefficient of the token, or those of the channels (clause).
    unsafe {
        match of {
            Coefficients::Token(rows) => L::splat(isa, rows.row(token).add(n).read()),
            Coefficients::Channel(at) => L::load(isa, at.add((n * VECTORS + v) * L::N)),
        }
    }
}

/// The outputs of a tile, and its last states.
///
/// # Safety
/// - The contract of the [`SelectiveTile`].
#[inline(always)]
pub unsafe fn run<L: Lanes>(isa: L::Isa, tile: &SelectiveTile) {
    for v in 0..VECTORS {
        let lane = v * L::N;
        for token in 0..tile.tokens {
            // SAFETY: rows of the tile's tokens, its parameters and its state (clause).
            unsafe {
                let raw = L::load(isa, tile.delta.row(token).add(lane));
                let raw = raw.plus(L::load(isa, tile.bias.add(lane)));
                let delta = if tile.softplus { softplus(isa, raw) } else { raw };
                let u = L::load(isa, tile.u.row(token).add(lane));
                let added = delta.times(u);
                let mut y = L::splat(isa, 0.0);
                for n in 0..tile.states {
                    let at = (n * VECTORS + v) * L::N;
                    let a = exp(isa, delta.times(L::load(isa, tile.a.add(at))));
                    let b = coefficient::<L>(isa, &tile.b, token, n, v);
                    let x = kept(isa, a, L::load(isa, tile.state.add(at)));
                    let x = a.mul_add(x, added.times(b));
                    let x = kept(isa, x, x);
                    x.store(tile.state.add(at));
                    y = x.mul_add(coefficient::<L>(isa, &tile.c, token, n, v), y);
                }
                if tile.out.first.is_null() {
                    continue;
                }
                if !tile.skip.is_null() {
                    y = u.mul_add(L::load(isa, tile.skip.add(lane)), y);
                }
                if !tile.z.first.is_null() {
                    y = y.times(silu(isa, L::load(isa, tile.z.row(token).add(lane))));
                }
                y.store(tile.out.row(token).add(lane));
            }
        }
    }
}
