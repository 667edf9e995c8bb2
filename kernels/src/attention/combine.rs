//! Adds two biases, and masks the pairs of tokens in a shifted window that are on different sides of the picture's
//! border.

use super::mask::Seen;
use crate::lanes::Lanes;
use core::f32::consts::LOG2_E;
use elsa_core::attention::MASK_LIMIT;

/// Writes `a + b` to `dst`. All three are biases in base-2 units, whose finite elements have a magnitude of at most
/// `MASK_LIMIT · log2 e`. The result is `−∞` where `a` or `b` is `−∞`. Sums of finite elements are clamped to this
/// limit. `dst` may be `a` or `b`.
///
/// # Safety
/// - `n` values are readable at `a` and `b` and writable at `dst`. `n` is a multiple of the number of lanes, unless a
///   tile has one row.
#[inline(always)]
pub unsafe fn add<L: Lanes>(isa: L::Isa, a: *const f32, b: *const f32, n: usize, dst: *mut f32) {
    let out = L::splat(isa, f32::NEG_INFINITY);
    let (zero, most) = (L::splat(isa, 0.0), L::splat(isa, MASK_LIMIT * LOG2_E));
    let least = zero.minus(most);
    let mut i = 0;
    while i + L::N <= n {
        // SAFETY: the vector at `i` is within the `n` values (clauses).
        unsafe {
            let (x, y) = (L::load(isa, a.add(i)), L::load(isa, b.add(i)));
            let mut sum = x.plus(y);
            if sum.abs().any_greater(most) {
                let limited = sum.if_greater(most, most, least.if_greater(sum, least, sum));
                let finite = x.abs().if_greater(most, sum, y.abs().if_greater(most, sum, limited));
                sum = finite;
            }
            x.if_present(y.if_present(sum, out), out).store(dst.add(i));
        }
        i += L::N;
    }
    while i < n {
        // SAFETY: `i` is below `n` (clauses).
        unsafe {
            let (x, y) = (a.add(i).read(), b.add(i).read());
            let most = MASK_LIMIT * LOG2_E;
            let sum = if x == f32::NEG_INFINITY || y == f32::NEG_INFINITY {
                f32::NEG_INFINITY
            } else if x.abs() <= most && y.abs() <= most {
                (x + y).clamp(-most, most)
            } else {
                x + y
            };
            dst.add(i).write(sum);
        }
        i += 1;
    }
}

/// A query tile and a key block in a shifted window. The picture's border splits the tokens of the window into numbered
/// groups, which are called sides. Tokens on different sides do not attend to each other.
///
/// Contract, for a tile of `width` rows: `rows` is readable for `width` values and `keys` for `count` values; `count`
/// is at least one. `bias` is null, or readable for `count · width` values.
#[derive(Clone, Copy, Debug)]
pub struct SideTile {
    /// Number of the side of each row. Entries past the last row repeat the side of another row.
    pub rows: *const f32,
    /// Number of the side of each key.
    pub keys: *const f32,
    /// Number of keys.
    pub count: usize,
    /// Terms that are already added to the scores, `[key][width]`, in base-2 units; null if there are none.
    pub bias: *const f32,
}

/// Returns `true` if all `n` values at `p` are equal. `n` must be at least one.
///
/// # Safety
/// - `n` values are readable at `p`.
#[inline(always)]
unsafe fn all_equal<L: Lanes>(isa: L::Isa, p: *const f32, n: usize) -> bool {
    // SAFETY: all indices are below `n` (clause).
    unsafe {
        let first = p.read();
        let (zero, same) = (L::splat(isa, 0.0), L::splat(isa, first));
        let mut i = 0;
        while i + L::N <= n {
            if L::load(isa, p.add(i)).minus(same).abs().any_greater(zero) {
                return false;
            }
            i += L::N;
        }
        while i < n {
            if p.add(i).read() != first {
                return false;
            }
            i += 1;
        }
    }
    true
}

/// Writes the bias for a tile and a block to `dst`, `[key][width]`. The bias is `−∞` where row and key are on different
/// sides. Elsewhere it is the tile's `bias`, or zero if that pointer is null. Reports in `seen` which pairs attend.
/// Writes nothing if all rows are on one side and all keys are on one side, whether these two sides are equal or not.
///
/// # Safety
/// - The clauses of [`SideTile`] hold.
/// - `count · width` values are writable at `dst`, and `width` is one or a multiple of the number of lanes.
#[inline(always)]
pub unsafe fn divide<L: Lanes>(isa: L::Isa, tile: &SideTile, width: usize, dst: *mut f32, seen: &mut Seen) {
    let (zero, out) = (L::splat(isa, 0.0), L::splat(isa, f32::NEG_INFINITY));
    // SAFETY: row indices are below `width`, and key indices are below `count` (clauses).
    unsafe {
        if all_equal::<L>(isa, tile.rows, width) && all_equal::<L>(isa, tile.keys, tile.count) {
            *seen = if tile.rows.read() == tile.keys.read() { Seen::Plain } else { Seen::Nothing };
            return;
        }
        *seen = Seen::Biased;
        for key in 0..tile.count {
            let side = tile.keys.add(key).read();
            if width == 1 {
                let own = if tile.bias.is_null() { 0.0 } else { tile.bias.add(key).read() };
                dst.add(key).write(if tile.rows.read() == side { own } else { f32::NEG_INFINITY });
                continue;
            }
            let side = L::splat(isa, side);
            for row in (0..width).step_by(L::N) {
                let at = key * width + row;
                let own = if tile.bias.is_null() { zero } else { L::load(isa, tile.bias.add(at)) };
                let differ = L::load(isa, tile.rows.add(row)).minus(side).abs();
                differ.if_greater(zero, out, own).store(dst.add(at));
            }
        }
    }
}
