//! Computes the selective scan: `x ← exp(δ A) x + δ B u` for each token and state element, and `y = C · x + d u`.
//!
//! State elements stay in memory between tokens, `[state][W]`, because they outnumber the registers. The elements of a
//! channel are independent, so their exponentials overlap.

use super::functions::{exp, grown, kept, silu, softplus};
use super::kernel::{Coefficients, SelectiveTile, VECTORS};
use crate::lanes::Lanes;
use elsa_core::series::functions::MOST_LOG;

/// Loads coefficient `n` of a token, for vector `v` of a tile's channels.
///
/// # Safety
/// - `of` contains the coefficients of a tile with more than `token` tokens and more than `n` states.
#[inline(always)]
unsafe fn coefficient<L: Lanes>(isa: L::Isa, of: &Coefficients, token: usize, n: usize, v: usize) -> L {
    // SAFETY: the tile has coefficients for the token or for its channels (clause).
    unsafe {
        match of {
            Coefficients::Token(rows) => L::splat(isa, rows.row(token).add(n).read()),
            Coefficients::Channel(at) => L::load(isa, at.add((n * VECTORS + v) * L::N)),
        }
    }
}

/// Returns `true` if a single exponential is not enough for the factors of a vector of channels. This is the case if
/// the product of `delta` and a rate exceeds [`MOST_LOG`], or if a rate is infinite. The rates range from `least` to
/// `most`; `infinite` says whether any rate is infinite.
#[inline(always)]
fn leaves<L: Lanes>(isa: L::Isa, delta: L, [least, most]: [L; 2], infinite: bool) -> bool {
    let (zero, one, limit) = (L::splat(isa, 0.0), L::splat(isa, 1.0), L::splat(isa, MOST_LOG));
    let beyond = delta.times(most).if_greater(limit, one, zero);
    infinite || delta.times(least).if_greater(limit, one, beyond).lane_sum() > 0.0
}

/// Returns, for each channel in vector `v`, the smallest and the largest number among zero and the channel's rates.
/// Also returns `true` if a rate is infinite.
///
/// # Safety
/// - The caller keeps the contract of the [`SelectiveTile`].
#[inline(always)]
unsafe fn rates<L: Lanes>(isa: L::Isa, tile: &SelectiveTile, v: usize) -> ([L; 2], bool) {
    let (mut least, mut most) = (L::splat(isa, 0.0), L::splat(isa, 0.0));
    for n in 0..tile.states {
        // SAFETY: the tile has rates for its channels (clause).
        let a = unsafe { L::load(isa, tile.a.add((n * VECTORS + v) * L::N)) };
        least = least.if_greater(a, a, least);
        most = a.if_greater(most, a, most);
    }
    let largest = L::splat(isa, f32::MAX);
    let (zero, one) = (L::splat(isa, 0.0), L::splat(isa, 1.0));
    let infinite = least.abs().if_greater(largest, one, most.if_greater(largest, one, zero));
    ([least, most], infinite.lane_sum() > 0.0)
}

/// Computes the outputs of a tile and its last states.
///
/// # Safety
/// - The caller keeps the contract of the [`SelectiveTile`].
#[inline(always)]
pub unsafe fn run<L: Lanes>(isa: L::Isa, tile: &SelectiveTile) {
    for v in 0..VECTORS {
        let lane = v * L::N;
        // SAFETY: the call needs only the clause of this function.
        let (bounds, infinite) = unsafe { rates::<L>(isa, tile, v) };
        for token in 0..tile.tokens {
            // SAFETY: the rows are those of the tile's tokens, and the tile has parameters and a state (clause).
            unsafe {
                let raw = L::load(isa, tile.delta.row(token).add(lane));
                let raw = raw.plus(L::load(isa, tile.bias.add(lane)));
                let delta = if tile.softplus { softplus(isa, raw) } else { raw };
                let u = L::load(isa, tile.u.row(token).add(lane));
                let of = Token { number: token, v, raw, delta, added: delta.times(u) };
                let mut y = match leaves(isa, delta, bounds, infinite) {
                    true => states::<L, true>(isa, tile, &of),
                    false => states::<L, false>(isa, tile, &of),
                };
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

/// Operands of one token, for a vector of channels.
struct Token<L> {
    number: usize,
    v: usize,
    /// Time step plus bias, before any softplus. `delta` is the time step in effect, after any softplus.
    raw: L,
    delta: L,
    /// Effective time step times the input.
    added: L,
}

/// Updates the states of a vector of channels for one token, and returns the sum of the products of states and output
/// coefficients. `LEAVES` allows factors beyond the range of f32, and infinite rates.
///
/// # Safety
/// - The caller keeps the contract of [`SelectiveTile`]; the token is in the tile.
#[inline(always)]
unsafe fn states<L: Lanes, const LEAVES: bool>(isa: L::Isa, tile: &SelectiveTile, of: &Token<L>) -> L {
    let mut y = L::splat(isa, 0.0);
    let zero = L::splat(isa, 0.0);
    for n in 0..tile.states {
        let at = (n * VECTORS + of.v) * L::N;
        // SAFETY: the tile has rates, coefficients and states for its channels (clause).
        unsafe {
            let (rate, state) = (L::load(isa, tile.a.add(at)), L::load(isa, tile.state.add(at)));
            let exponent = of.delta.times(rate);
            let (a, grows) = match LEAVES {
                true => {
                    // In exact arithmetic, a time step that underflows is greater than zero, so its product with an
                    // infinite rate is infinite.
                    let given = of.raw.if_greater(L::splat(isa, f32::NEG_INFINITY), rate, exponent);
                    let vanished = of.delta.if_greater(zero, exponent, given);
                    let infinite = rate.abs().if_greater(L::splat(isa, f32::MAX), vanished, exponent);
                    grown(isa, if tile.softplus { infinite } else { exponent }, state)
                }
                false => (exp(isa, exponent), state),
            };
            let b = coefficient::<L>(isa, &tile.b, of.number, n, of.v);
            let x = a.mul_add(kept(isa, a, grows), of.added.times(b));
            let x = kept(isa, x, x);
            x.store(tile.state.add(at));
            y = x.mul_add(coefficient::<L>(isa, &tile.c, of.number, n, of.v), y);
        }
    }
    y
}
