//! Computes the first-order recurrence: `h ← a h + b` for each token.

use super::functions::{grown, kept};
use super::kernel::{RecurrenceTile, VECTORS};
use crate::lanes::Lanes;

/// Returns the factor that a row `a` of a tile stands for, and the state by which this factor must be multiplied.
#[inline(always)]
fn factor<L: Lanes, const LOG: bool>(isa: L::Isa, a: L, h: L) -> (L, L) {
    if LOG { grown(isa, a, h) } else { (a, h) }
}

/// Returns `a h + b`, flushed to zero as the recurrence requires.
#[inline(always)]
fn step<L: Lanes>(isa: L::Isa, a: L, h: L, b: L) -> L {
    let h = a.mul_add(kept(isa, a, h), b);
    kept(isa, h, h)
}

/// Computes the state after each token of a tile.
///
/// # Safety
/// - The caller keeps the contract of the [`RecurrenceTile`].
#[inline(always)]
pub unsafe fn run<L: Lanes>(isa: L::Isa, tile: &RecurrenceTile) {
    // SAFETY: the call needs only the clause of this function.
    unsafe {
        if tile.log {
            pass::<L, true>(isa, tile);
        } else {
            pass::<L, false>(isa, tile);
        }
    }
}

/// Computes the tokens of a tile; `LOG` is `tile.log` as a compile-time constant.
///
/// # Safety
/// - The caller keeps the contract of the [`RecurrenceTile`].
#[inline(always)]
unsafe fn pass<L: Lanes, const LOG: bool>(isa: L::Isa, tile: &RecurrenceTile) {
    let wanted = !tile.out.first.is_null();
    // SAFETY: the rows of the tile's tokens and the state have `VECTORS` vectors each (clause).
    unsafe {
        let mut h = [L::splat(isa, 0.0); VECTORS];
        for v in 0..VECTORS {
            h[v] = L::load(isa, tile.state.add(v * L::N));
        }
        for token in 0..tile.tokens {
            let (a, b, out) = (tile.a.row(token), tile.b.row(token), tile.out.row(token));
            for v in 0..VECTORS {
                let (a, grows) = factor::<L, LOG>(isa, L::load(isa, a.add(v * L::N)), h[v]);
                h[v] = step(isa, a, grows, L::load(isa, b.add(v * L::N)));
                if wanted {
                    h[v].store(out.add(v * L::N));
                }
            }
        }
        for v in 0..VECTORS {
            h[v].store(tile.state.add(v * L::N));
        }
    }
}

/// Computes the map of a tile, which combines the maps of all its tokens. Writes the factor to `product` and the addend
/// to the tile's `state`, which is not read. Ignores the tile's `out`.
///
/// # Safety
/// - The caller keeps the contract of [`RecurrenceTile`]; `product` is writable for one value per channel of the tile.
#[inline(always)]
pub unsafe fn fold<L: Lanes>(isa: L::Isa, tile: &RecurrenceTile, product: *mut f32) {
    // SAFETY: the calls need only the clauses of this function.
    unsafe {
        if tile.log {
            fold_of::<L, true>(isa, tile, product);
        } else {
            fold_of::<L, false>(isa, tile, product);
        }
    }
}

/// Computes [`fold`]; `LOG` is `tile.log` as a compile-time constant.
///
/// # Safety
/// - The caller keeps the clauses of [`fold`].
#[inline(always)]
unsafe fn fold_of<L: Lanes, const LOG: bool>(isa: L::Isa, tile: &RecurrenceTile, product: *mut f32) {
    // SAFETY: the rows of the tile's tokens, the state and the product have `VECTORS` vectors each (clauses).
    unsafe {
        let mut h = [L::splat(isa, 0.0); VECTORS];
        let mut all = [L::splat(isa, 1.0); VECTORS];
        for token in 0..tile.tokens {
            let (a, b) = (tile.a.row(token), tile.b.row(token));
            for v in 0..VECTORS {
                let gate = L::load(isa, a.add(v * L::N));
                let (a, grows) = factor::<L, LOG>(isa, gate, h[v]);
                h[v] = step(isa, a, grows, L::load(isa, b.add(v * L::N)));
                let (_, grows) = factor::<L, LOG>(isa, gate, all[v]);
                all[v] = a.times(kept(isa, a, grows));
                all[v] = kept(isa, all[v], all[v]);
            }
        }
        for v in 0..VECTORS {
            h[v].store(tile.state.add(v * L::N));
            all[v].store(product.add(v * L::N));
        }
    }
}

/// Applies the map `h ← a h + b` of a part of the tokens: replaces the state before the part with the state after it.
///
/// # Safety
/// - `a` and `b` are readable, and `state` is readable and writable, for one value per channel of a tile.
#[inline(always)]
pub unsafe fn carry<L: Lanes>(isa: L::Isa, a: *const f32, b: *const f32, state: *mut f32) {
    for v in 0..VECTORS {
        // SAFETY: each operand has vector `v` (clause).
        unsafe {
            let to = state.add(v * L::N);
            let (a, b) = (L::load(isa, a.add(v * L::N)), L::load(isa, b.add(v * L::N)));
            step(isa, a, L::load(isa, to), b).store(to);
        }
    }
}
