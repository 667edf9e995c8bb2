//! Computes the product behind all operators: `C[R][V] = Σ_k a(r, k) · B[k][V]`, with `C` in registers.
//!
//! `B[k]` is `V` vectors of `N` lanes, and `a(r, k)` is a scalar that multiplies all of them. Without `COLUMNS`, row
//! `r` of `a` runs along `k`: in a score, the row is a key and `k` is a dim. With `COLUMNS`, the `R` scalars of a step
//! are adjacent: they are a column of a panel of keys, or in the weighted sum the dims of a value.
//!
//! ```text
//! naive:  for k in 0..steps:
//!             for r in 0..R:
//!                 a = COLUMNS ? A[k · stride + r] : A[r · stride + k]
//!                 for v in 0..V:  C[r][v] += a · B[k][v]
//! ```
//!
//! **Why the code differs.** A core issues one or two multiply-adds per cycle, each with a latency of four cycles or
//! more. The loop reaches that rate only if no other instructions need the issue slots.
//!
//! 1. *`R · V` sums stay in registers.* They are independent, so they hide the latency of the multiply-add, and a step
//!    loads only `R` scalars and `V` vectors for `R · V` products. `R` and `V` are chosen per instruction set so that
//!    sums, vectors and scalars fit its registers: 8 · 3 sums fit the 32 registers of NEON or AVX-512, and 6 · 2 sums
//!    fit the 16 registers of AVX2.
//! 2. *Broadcast operands.* AVX2 and AVX-512 broadcast a scalar from memory; NEON multiplies by a lane of a register. A
//!    [`Lanes::Quad`] is a pointer on AVX2 and AVX-512, and four scalars in a register on NEON. Steps along rows are
//!    therefore done four at a time, one quad per row. A lane index must be a constant, so the loops over a quad are
//!    written out.
//! 3. *The first step only multiplies* (`FIRST`). The other steps multiply and add. So no sum needs to be zeroed.
//! 4. *Zeros are read from memory.* A product shorter than an iteration has no such first step and starts from zeros.
//!    The compiler would set constant zeros before the branch, and so also on the path that overwrites them. Zeros in
//!    memory are read only on the path that needs them.
//! 5. *Unrolling.* On NEON an iteration is [`Lanes::UNROLL`] groups of four steps, because counting and moving pointers
//!    takes issue slots from the products. The remaining steps are done in groups of four, then one by one. The
//!    groups of an iteration are written out too, because a loop over them would not always be unrolled.
//! 6. *Two quads in one instruction.* A step down eight columns needs two adjacent quads. With [`Lanes::two_quads`],
//!    NEON loads both into two adjacent named registers and advances the pointer, all in one instruction. Steps
//!    alternate between two pairs of registers, so that the quads of one step are loaded while the quads of another
//!    step are in use.
//! 7. *Steps down columns in pairs.* The first vector of the second step is loaded together with the last vector of the
//!    first step, in one instruction if the instruction set can load pairs.
//! 8. *Opaque pointers.* After [`Lanes::opaque`] the compiler no longer knows how the pointer to `B` was computed. It
//!    then addresses all data of an iteration with constant offsets from this pointer and does not advance several
//!    pointers.

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

pub(crate) use for_quad;

/// Runs a body for each group of four steps of an iteration except the first group. The body gets the group's number as
/// a constant.
macro_rules! for_later_groups {
    ($lanes:ident, |$j:ident| $body:expr) => {{
        const { assert!(matches!($lanes::UNROLL, 1 | 4)) };
        if $lanes::UNROLL == 4 {
            {
                const $j: usize = 1;
                $body;
            }
            {
                const $j: usize = 2;
                $body;
            }
            {
                const $j: usize = 3;
                $body;
            }
        }
    }};
}

/// Loads the vectors of a step.
///
/// # Safety
/// - `V · N` values are readable at `b`.
#[inline(always)]
unsafe fn vectors<L: Lanes, const V: usize>(isa: L::Isa, b: *const f32) -> [L; V] {
    // SAFETY: vector `v` is one of the `V` vectors (clause).
    unsafe {
        let mut y = [L::load(isa, b); V];
        for v in 1..V {
            y[v] = L::load(isa, b.add(v * L::N));
        }
        y
    }
}

/// Computes four steps of a [`product`] along rows. With `FIRST` the first step writes the sums; the other steps add to
/// them.
///
/// # Safety
/// - `R` rows of four values, `stride` apart, are readable at `a`, and `4 · V · N` values at `b`.
#[inline(always)]
unsafe fn row_steps<L: Lanes, const R: usize, const V: usize, const FIRST: bool>(
    isa: L::Isa,
    acc: &mut [[L; V]; R],
    a: *const f32,
    stride: usize,
    b: *const f32,
) {
    // SAFETY: `a` has row `r`, and `b` has vector `v` of step `J` (both clauses).
    unsafe {
        let mut x = [L::quad(isa, a); R];
        for r in 1..R {
            x[r] = L::quad(isa, a.add(r * stride));
        }
        for_quad!(|J| {
            let y = vectors::<L, V>(isa, b.add(J as usize * V * L::N));
            for r in 0..R {
                for v in 0..V {
                    acc[r][v] = if FIRST && J == 0 {
                        y[v].mul_quad::<J>(x[r])
                    } else {
                        acc[r][v].mul_add_quad::<J>(y[v], x[r])
                    };
                }
            }
        });
    }
}

/// Computes one step of a [`product`] down columns, with the vectors `y` of `b`, and advances `a`. With `FIRST` it
/// writes the sums; without `FIRST` it adds to them. `ODD` alternates between consecutive steps.
///
/// # Safety
/// - `R` values are readable at `a`.
#[inline(always)]
unsafe fn column_step<L: Lanes, const R: usize, const V: usize, const FIRST: bool, const ODD: bool>(
    isa: L::Isa,
    acc: &mut [[L; V]; R],
    a: &mut *const f32,
    stride: usize,
    y: [L; V],
) {
    const { assert!(!L::QUAD_IN_REGISTER || R.is_multiple_of(4)) };
    // SAFETY: `a` covers every read (clause). Only the first R scalars are broadcast, and R is a multiple of four if a
    // quad reads all four scalars.
    unsafe {
        let row = *a;
        let quads = if R == 8 { L::two_quads::<ODD>(isa, a, stride) } else { [L::quad(isa, row); 2] };
        if R != 8 {
            *a = row.wrapping_add(stride);
        }
        for r4 in 0..R.div_ceil(4) {
            let x = if r4 < 2 && (R == 8 || r4 == 0) { quads[r4] } else { L::quad(isa, row.add(4 * r4)) };
            for_quad!(|J| {
                let r = 4 * r4 + J as usize;
                if r < R {
                    for v in 0..V {
                        acc[r][v] =
                            if FIRST { y[v].mul_quad::<J>(x) } else { acc[r][v].mul_add_quad::<J>(y[v], x) };
                    }
                }
            });
        }
    }
}

/// Computes two steps of a [`product`] down columns and advances `a`. With `FIRST` the first step writes the sums.
///
/// # Safety
/// - Two rows of `R` values, `stride` apart, are readable at `a`, and `2 · V · N` values are readable at `b`.
#[inline(always)]
unsafe fn column_pair<L: Lanes, const R: usize, const V: usize, const FIRST: bool>(
    isa: L::Isa,
    acc: &mut [[L; V]; R],
    a: &mut *const f32,
    stride: usize,
    b: *const f32,
) {
    let width = V * L::N;
    // SAFETY: both steps read their row of `a` and of `b` (clauses).
    unsafe {
        let y = vectors::<L, V>(isa, b);
        let mut z = [L::load(isa, b.add(width)); V];
        column_step::<L, R, V, FIRST, false>(isa, acc, a, stride, y);
        for v in 1..V {
            z[v] = L::load(isa, b.add(width + v * L::N));
        }
        column_step::<L, R, V, false, true>(isa, acc, a, stride, z);
    }
}

/// Computes four steps of a product and advances `a`. With `FIRST` the first step writes the sums.
///
/// # Safety
/// - The caller keeps the clauses of [`product`] for four steps.
#[inline(always)]
unsafe fn group<L: Lanes, const R: usize, const V: usize, const FIRST: bool, const COLUMNS: bool>(
    isa: L::Isa,
    acc: &mut [[L; V]; R],
    a: &mut *const f32,
    stride: usize,
    b: *const f32,
) {
    // SAFETY: the calls need only the clauses of this function; the second pair consists of steps two and three.
    unsafe {
        if COLUMNS {
            column_pair::<L, R, V, FIRST>(isa, acc, a, stride, b);
            column_pair::<L, R, V, false>(isa, acc, a, stride, b.add(2 * V * L::N));
        } else {
            row_steps::<L, R, V, FIRST>(isa, acc, *a, stride, b);
            *a = a.wrapping_add(4);
        }
    }
}

/// Runs an iteration of the product loop: [`Lanes::UNROLL`] times [`group`].
///
/// # Safety
/// - The caller keeps the clauses of [`product`] for `4 · UNROLL` steps.
#[inline(always)]
unsafe fn unroll<L: Lanes, const R: usize, const V: usize, const FIRST: bool, const COLUMNS: bool>(
    isa: L::Isa,
    acc: &mut [[L; V]; R],
    a: &mut *const f32,
    stride: usize,
    b: *const f32,
) {
    let group_size = 4 * V * L::N;
    // SAFETY: the later groups are among the steps (clause).
    unsafe {
        group::<L, R, V, FIRST, COLUMNS>(isa, acc, a, stride, b);
        for_later_groups!(L, |J| group::<L, R, V, false, COLUMNS>(
            isa,
            acc,
            a,
            stride,
            b.add(J * group_size)
        ));
    }
}

/// Computes the product over `steps` values of `k`: `Σ_k a[k · stride + r] · B[k]` with `COLUMNS`, and
/// `Σ_k a[r · stride + k] · B[k]` without it. Without `COLUMNS`, `steps` must be a multiple of four.
///
/// # Safety
/// - With `COLUMNS`, `steps` rows of `R` values, `stride` apart, are readable at `a`. Without it, `R` rows of `steps`
///   values, `stride` apart, are readable at `a`.
/// - `steps · V · N` values are readable at `b`.
#[inline(always)]
pub unsafe fn product<L: Lanes, const R: usize, const V: usize, const COLUMNS: bool>(
    isa: L::Isa,
    steps: usize,
    mut a: *const f32,
    stride: usize,
    mut b: *const f32,
) -> [[L; V]; R] {
    let width = V * L::N;
    let (iterations, rest) = (steps / (4 * L::UNROLL), steps % (4 * L::UNROLL));
    b = L::opaque(b);
    let mut acc;
    // SAFETY: the loops execute `steps` steps, and the operands of these steps are readable in `a` and in `b` (both
    // clauses). After the last row `a` may point beyond the last element, but nothing is read there.
    unsafe {
        if iterations > 0 {
            acc = [[L::splat(isa, 0.0); V]; R];
            unroll::<L, R, V, true, COLUMNS>(isa, &mut acc, &mut a, stride, b);
            b = b.add(4 * L::UNROLL * width);
        } else {
            // The zero is read from memory, so that the compiler writes no zeros on the other path.
            acc = [[L::splat(isa, L::opaque(&0.0).read()); V]; R];
        }
        for _ in 1..iterations {
            unroll::<L, R, V, false, COLUMNS>(isa, &mut acc, &mut a, stride, b);
            b = b.add(4 * L::UNROLL * width);
        }
        if rest > 0 {
            for _ in 0..rest / 4 {
                group::<L, R, V, false, COLUMNS>(isa, &mut acc, &mut a, stride, b);
                b = b.add(4 * width);
            }
            if COLUMNS {
                for _ in 0..rest % 4 {
                    let y = vectors::<L, V>(isa, b);
                    column_step::<L, R, V, false, false>(isa, &mut acc, &mut a, stride, y);
                    b = b.add(width);
                }
            }
        }
    }
    acc
}
