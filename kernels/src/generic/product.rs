//! The one product of both passes: `C[R][V] = Σ_k a(r, k) · B[k][V]` with `C` in registers.
//!
//! `B` is read as `V` vectors a step; `a` is a broadcast scalar. Scores read `a` along its rows (a key's
//! dims), the weighted sum down its columns (a dim's keys), hence the two forms.

use crate::lanes::Lanes;

/// Longest chain of multiply-adds in a score; longer dot products are sums of such chains.
pub const CHAIN: usize = 64;

/// Runs a body for each of the four scalars of a quad, with the index as a constant.
macro_rules! for_quad {
    (|$j:ident| $body:block) => {{
        {
            const $j: i32 = 0;
            $body
        }
        {
            const $j: i32 = 1;
            $body
        }
        {
            const $j: i32 = 2;
            $body
        }
        {
            const $j: i32 = 3;
            $body
        }
    }};
}

/// `Σ_k a[r · stride + k] · B[k]` over `steps` values of `k`, a multiple of four.
///
/// # Safety
/// - `R` rows of `steps` singles, `stride` apart, are readable at `a`.
/// - `steps · V · N` singles are readable at `b`.
#[inline(always)]
pub unsafe fn along_rows<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    steps: usize,
    mut a: *const f32,
    stride: usize,
    mut b: *const f32,
) -> [[L; V]; R] {
    let mut acc = [[L::splat(isa, 0.0); V]; R];
    for _ in 0..steps / 4 {
        // SAFETY: `a` has four more singles in each of its rows, `b` four more steps (both clauses).
        unsafe {
            let mut x = [L::quad(isa, a); R];
            for r in 1..R {
                x[r] = L::quad(isa, a.add(r * stride));
            }
            for_quad!(|J| {
                let mut y = [L::load(isa, b); V];
                for v in 1..V {
                    y[v] = L::load(isa, b.add(v * L::N));
                }
                for r in 0..R {
                    for v in 0..V {
                        acc[r][v] = acc[r][v].mul_add_quad::<J>(y[v], x[r]);
                    }
                }
                b = b.add(V * L::N);
            });
            a = a.add(4);
        }
    }
    acc
}

/// One step of [`down_columns`].
///
/// # Safety
/// - `R` singles are readable at `a`, and `V · N` at `b`.
#[inline(always)]
unsafe fn column_step<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    acc: &mut [[L; V]; R],
    a: *const f32,
    b: *const f32,
) {
    const { assert!(!L::QUAD_IN_REGISTER || R.is_multiple_of(4)) };
    // SAFETY: both pointers cover what is read (clause): only the first R scalars are broadcast, and where a
    // quad reads all four, R is a multiple of four.
    unsafe {
        let mut y = [L::load(isa, b); V];
        for v in 1..V {
            y[v] = L::load(isa, b.add(v * L::N));
        }
        for r4 in 0..R.div_ceil(4) {
            let x = L::quad(isa, a.add(4 * r4));
            for_quad!(|J| {
                let r = 4 * r4 + J as usize;
                if r < R {
                    for v in 0..V {
                        acc[r][v] = acc[r][v].mul_add_quad::<J>(y[v], x);
                    }
                }
            });
        }
    }
}

/// `Σ_k a[k · stride + r] · B[k]` over `steps` values of `k`.
///
/// # Safety
/// - `steps` rows, `stride` apart, of `R` singles are readable at `a`.
/// - `steps · V · N` singles are readable at `b`.
#[inline(always)]
pub unsafe fn down_columns<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    steps: usize,
    mut a: *const f32,
    stride: usize,
    mut b: *const f32,
) -> [[L; V]; R] {
    let mut acc = [[L::splat(isa, 0.0); V]; R];
    let w = V * L::N;
    // SAFETY: step `k` reads row `k` of `a` and of `b`, which both clauses cover.
    unsafe {
        for _ in 0..steps / 4 {
            column_step(isa, &mut acc, a, b);
            column_step(isa, &mut acc, a.add(stride), b.add(w));
            column_step(isa, &mut acc, a.add(2 * stride), b.add(2 * w));
            column_step(isa, &mut acc, a.add(3 * stride), b.add(3 * w));
            // After the last row this may point beyond the last element, where nothing is read.
            a = a.wrapping_add(4 * stride);
            b = b.add(4 * w);
        }
        for _ in 0..steps % 4 {
            column_step(isa, &mut acc, a, b);
            a = a.wrapping_add(stride);
            b = b.add(w);
        }
    }
    acc
}
