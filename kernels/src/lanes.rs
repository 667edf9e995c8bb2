//! The lane trait: everything that the micro-kernels ask of a vector unit.
//!
//! A vector holds `N` independent query rows, one a lane. The trait speaks of what attention wants to know
//! (a maximum, a weight, a weight that is zero where no key is) and hides how an instruction set says it.
//!
//! **Token.** A vector can only be made from an [`Lanes::Isa`] token, and a token only where its instruction
//! set is present; so whoever holds a vector may execute its operations. Loads and stores add the obligation
//! that their pointer covers `N` elements.
//!
//! **Inlining.** No operation carries a target feature of its own. Each is `inline(always)` and takes on the
//! features of the entry point that it is inlined into; a closure in between would not be inlined and would
//! lose them, so the micro-kernels use none.

use elsa_core::state::{Number, WEIGHT_FLOOR};

/// A vector of `N` singles. [`Number`] supplies product, sum and what the merge law needs.
pub trait Lanes: Number {
    /// Lanes in a vector.
    const N: usize;
    /// Proof that the instruction set is present.
    type Isa: Copy;
    /// Four neighbouring scalars of which [`Lanes::mul_add_quad`] broadcasts one: a pointer where the multiply
    /// takes a broadcast operand from memory, a register where it takes one from a lane.
    type Quad: Copy;
    /// Whether making a quad reads all four scalars, and not only those that are broadcast.
    const QUAD_IN_REGISTER: bool;
    /// Fours of steps in a turn of the product loops: 1, or 4 where counting turns costs issue slots that the
    /// products need.
    const UNROLL: usize;
    /// The factor by which results of [`Lanes::exp2`] exceed `2^x`, chosen so that the largest relative error is
    /// least. It cancels in `W / S`.
    const WEIGHT_SCALE: f64;

    /// The same value in every lane.
    fn splat(isa: Self::Isa, x: f32) -> Self;
    /// `N` singles from `p`.
    ///
    /// # Safety
    /// - `p` is readable for `N` singles.
    unsafe fn load(isa: Self::Isa, p: *const f32) -> Self;
    /// `N` halves from `p`, converted.
    ///
    /// # Safety
    /// - `p` is readable for `N` 16-bit elements.
    unsafe fn load_f16(isa: Self::Isa, p: *const u16) -> Self;
    /// `N` brain floats from `p`, converted.
    ///
    /// # Safety
    /// - `p` is readable for `N` 16-bit elements.
    unsafe fn load_bf16(isa: Self::Isa, p: *const u16) -> Self;
    /// Writes the lanes to `p`.
    ///
    /// # Safety
    /// - `p` is writable for `N` singles.
    unsafe fn store(self, p: *mut f32);
    /// Writes the lanes to `p` as halves, rounded to the nearest, ties to even.
    ///
    /// # Safety
    /// - `p` is writable for `N` 16-bit elements.
    unsafe fn store_f16(self, p: *mut u16);
    /// Prepares four scalars for broadcasting.
    ///
    /// # Safety
    /// - The scalars that are broadcast are readable at `p`, and stay so while the result is used; all four
    ///   are where [`Lanes::QUAD_IN_REGISTER`].
    unsafe fn quad(isa: Self::Isa, p: *const f32) -> Self::Quad;
    /// Prepares the eight scalars at `p` for broadcasting, as two quads, and moves `p` on by `stride` singles. Calls of
    /// which every other is `ODD` may be under way at once.
    ///
    /// # Safety
    /// - As for two calls of [`Lanes::quad`], at `p` and four singles on.
    #[inline(always)]
    unsafe fn two_quads<const ODD: bool>(
        isa: Self::Isa,
        p: &mut *const f32,
        stride: usize,
    ) -> [Self::Quad; 2] {
        let at = *p;
        *p = at.wrapping_add(stride);
        // SAFETY: the same clauses.
        unsafe { [Self::quad(isa, at), Self::quad(isa, at.add(4))] }
    }
    /// The pointer itself, of which the compiler forgets how it was computed: what is read beside it is addressed from it.
    #[inline(always)]
    fn opaque(p: *const f32) -> *const f32 {
        p
    }
    /// `self + b · q[I]`.
    ///
    /// # Safety
    /// - `q` comes from [`Lanes::quad`], and scalar `I` of it is still readable.
    /// - `I` is below four.
    unsafe fn mul_add_quad<const I: i32>(self, b: Self, q: Self::Quad) -> Self;
    /// `self · q[I]`.
    ///
    /// # Safety
    /// - As for [`Lanes::mul_add_quad`].
    unsafe fn mul_quad<const I: i32>(self, q: Self::Quad) -> Self;
    /// Writes the transpose of the 4×4 block at `src` (rows `src_stride` apart), times `factor`, to `dst`.
    ///
    /// # Safety
    /// - Four rows of four singles are readable at `src` and writable at `dst`.
    unsafe fn transpose4(
        isa: Self::Isa,
        src: *const f32,
        src_stride: usize,
        factor: f32,
        dst: *mut f32,
        dst_stride: usize,
    );

    /// Difference.
    #[must_use]
    fn minus(self, other: Self) -> Self;
    /// Quotient.
    #[must_use]
    fn over(self, other: Self) -> Self;
    /// `self · b + c`, fused where the instruction set fuses.
    #[must_use]
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// The larger of `self` and `floor`; a NaN in `self` stays.
    #[must_use]
    fn at_least(self, floor: Self) -> Self;
    /// Magnitude.
    #[must_use]
    fn abs(self) -> Self;
    /// `WEIGHT_SCALE · 2^self` for −126 ≤ self ≤ 126; NaN stays NaN.
    #[must_use]
    fn exp2(self) -> Self;
    /// Lane by lane, `no` where `self` is `−∞` and `yes` elsewhere (also for NaN).
    #[must_use]
    fn if_present(self, yes: Self, no: Self) -> Self;
    /// Sum of the lanes, halves by halves.
    fn lane_sum(self) -> f32;
    /// Whether a lane of `self` exceeds that of `other`.
    fn any_greater(self, other: Self) -> bool;

    /// The weight `WEIGHT_SCALE · 2^self` of an attended key, `self` being held at [`WEIGHT_FLOOR`] from below.
    #[inline(always)]
    #[must_use]
    fn weight(self, isa: Self::Isa) -> Self {
        self.at_least(Self::splat(isa, WEIGHT_FLOOR)).exp2()
    }
}

// The exponential, and how far it can be off.
//
// `2^x = 2^n · 2^r` with a whole `n` and a small `r`. With `n` the nearest whole number `r = x − n` is exact: it is a
// multiple of the last place of `x` and not larger than `x`. With `n` the floor `r` lies in [0, 1], and for negative
// `x` above −1/2 it may be rounded, by at most 2^-25, which moves `2^r` by at most `ln 2 · 2^-25` of itself. The
// multiplication by `2^n` rounds nothing within the range of [`Lanes::exp2`].
//
// What remains is a polynomial `p` for `WEIGHT_SCALE · 2^r`. Its coefficients are those of the minimax polynomial, rounded to
// singles, so the distance of `p`, evaluated exactly, from `WEIGHT_SCALE · 2^r` is a function of `r` that can be looked at. To
// that comes the rounding of its evaluation. An operation whose operands are off by `δa`, `δb`, `δc` gives
//
//   fma(a, b, c):  |a| δb + |b| δa + δa δb + δc  +  half a unit in the last place of the result
//
// and so along the steps of each form. `kernels/tests/exponential.rs` follows both over a fine grid of `r`, finds the
// sum below what each kernel declares, and finds what the kernels really give below that.

/// Minimax polynomial of `2^x` on [−1/2, 1/2] for the relative error, degree 5, lowest power first.
pub const EXP2_NEAREST: [f32; 6] =
    [1.000_000_1, 0.693_146_94, 0.240_221_2, 0.055_507_13, 0.009_675_541, 0.001_327_647_2];
/// The same on [0, 1].
pub const EXP2_FLOOR: [f32; 6] =
    [0.999_999_94, 0.693_153_1, 0.240_153_61, 0.055_826_318, 0.008_989_34, 0.001_877_576_7];
/// [`EXP2_NEAREST`] divided by its linear coefficient, which saves two register copies where a fused
/// multiply-add overwrites its addend.
pub const EXP2_MONIC: [f32; 6] =
    [1.442_695_6, 1.0, 0.346_566_05, 0.080_079_89, 0.013_958_86, 0.001_915_390_6];
/// Added to a single of magnitude below 2^22 it leaves the nearest whole number, plus 127, in the low bits.
/// Those bits shifted up by 23 are the power of two as a single.
pub const EXPONENT_MAGIC: f32 = 12_582_912.0 + 127.0;

/// `2^x` by range reduction to the nearest whole number and [`EXP2_NEAREST`], in Horner's form, for
/// instruction sets whose multiply-add has a separate destination. The power of two is multiplied on, so
/// that a NaN stays one whatever its payload.
macro_rules! exp2_horner {
    ($x:expr, $isa:expr, $shift:expr) => {{
        let magic = Self::splat($isa, $crate::lanes::EXPONENT_MAGIC);
        let t = $x.plus(magic);
        let r = $x.minus(t.minus(magic));
        let c = $crate::lanes::EXP2_NEAREST;
        let mut p = Self::splat($isa, c[5]);
        p = p.mul_add(r, Self::splat($isa, c[4]));
        p = p.mul_add(r, Self::splat($isa, c[3]));
        p = p.mul_add(r, Self::splat($isa, c[2]));
        p = p.mul_add(r, Self::splat($isa, c[1]));
        p = p.mul_add(r, Self::splat($isa, c[0]));
        p.times($shift(t))
    }};
}
pub(crate) use exp2_horner;
