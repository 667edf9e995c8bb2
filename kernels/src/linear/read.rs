//! Computes products with a constant state.

use super::factor::flushed;
use super::kernel::Reading;
use super::tile::reads;
use crate::lanes::Lanes;

/// Writes `scale · X S`. The results are the outputs of queries that read a state, or the rows of a transition times a
/// state. A register tile has `R` rows. The widest strip has `V` vectors, or `W` vectors under the delta rules.
///
/// # Safety
/// - The clauses of [`Reading`] hold.
#[inline(always)]
pub unsafe fn read<L: Lanes, const R: usize, const V: usize, const W: usize>(isa: L::Isa, reading: &Reading) {
    // SAFETY: the calls need only the clauses of this function, and the width is one of three.
    unsafe {
        if reading.width == L::N {
            strip::<L, R, 1>(isa, reading);
        } else if W == V || reading.width == V * L::N {
            strip::<L, R, V>(isa, reading);
        } else {
            strip::<L, R, W>(isa, reading);
        }
    }
}

/// Computes all rows of a reading whose strip has `V` vectors.
///
/// # Safety
/// - The clauses of [`read`] hold; the width is `V` vectors.
#[inline(always)]
unsafe fn strip<L: Lanes, const R: usize, const V: usize>(isa: L::Isa, reading: &Reading) {
    let mut row = 0;
    while row < reading.rows {
        let whole = row + R <= reading.rows;
        // SAFETY: the calls need only the clauses of this function, and the last tile ends with the last row.
        unsafe {
            if whole {
                tile::<L, R, V>(isa, reading, row);
            } else {
                tile::<L, 1, V>(isa, reading, row);
            }
        }
        row += if whole { R } else { 1 };
    }
}

/// Computes the `R` rows that start at `row`.
///
/// # Safety
/// - The clauses of [`read`] hold; the `R` rows are rows of `reading`, and the strip of `reading` has `V` vectors.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const V: usize>(isa: L::Isa, reading: &Reading, row: usize) {
    let limit = L::splat(isa, f32::MIN_POSITIVE / reading.scale.abs());
    // SAFETY: the `R` rows from `row` on are rows of the reading (clause).
    unsafe {
        let x = reading.x.offset(row as isize * reading.x_stride);
        let sums = reads::<L, R, V>(isa, reading.dim, x, reading.x_stride, reading.state, V * L::N);
        for r in 0..R {
            let to = reading.y.offset((row + r) as isize * reading.y_stride);
            for v in 0..V {
                let mut y = flushed(isa, sums[r][v], L::splat(isa, reading.scale), limit);
                if reading.add {
                    y = y.plus(L::load(isa, to.add(v * L::N)));
                }
                y.store(to.add(v * L::N));
            }
        }
    }
}
