//! The lane trait: everything that the micro-kernels require of a vector unit.
//!
//! A vector holds `N` independent query rows, one per lane. The trait expresses what an algorithm needs (a maximum, a
//! weight, a weight that is zero for a masked key) and hides how an instruction set computes it.
//!
//! **Token.** A vector can only be made from an [`Lanes::Isa`] token, and a token only if its instruction set is
//! present, so holding a vector is enough to execute its operations. Loads and stores add the obligation that their
//! pointer covers `N` elements.
//!
//! **Inlining.** No operation has a target feature of its own. Each is `inline(always)` and adopts the features of the
//! entry point that it is inlined into. A closure in between would not be inlined and would lose them, so the
//! micro-kernels use none.

use elsa_core::state::Number;

/// Largest number of lanes of any instruction set.
pub const MAX_LANES: usize = 16;

/// A vector of `N` f32 values. [`Number`] supplies product, sum and the operations of the laws of the state.
pub trait Lanes: Number {
    /// Lanes in a vector, at most [`MAX_LANES`].
    const N: usize;
    /// Proof that the instruction set is present.
    type Isa: Copy;
    /// Four adjacent scalars; [`Lanes::mul_add_quad`] broadcasts one of them. A pointer if the multiply broadcasts from
    /// memory, a register if it broadcasts from a lane.
    type Quad: Copy;
    /// One f64 value per lane.
    type Wide: Copy;
    /// `true` if making a quad reads all four scalars, not only the broadcast ones.
    const QUAD_IN_REGISTER: bool;
    /// Groups of four steps per iteration of the product loops: 1, or 4 where counting iterations costs issue slots
    /// that the products need.
    const UNROLL: usize;
    /// `true` for 32 vector registers, `false` for 16.
    const MANY_REGISTERS: bool;
    /// Factor by which results of [`Lanes::exp2`] exceed `2^x`, chosen to minimise the largest relative error. All
    /// weights have it, and therefore `S` and `W`; it cancels in `W / S`.
    const WEIGHT_SCALE: f64;

    /// Power of two with which [`Lanes::raised_weight`] keeps products of small weights normal, on processors that
    /// stall at subnormal numbers; otherwise 1.
    const RAISE: f32;

    /// Returns the same value in every lane.
    fn splat(isa: Self::Isa, x: f32) -> Self;
    /// Loads `N` values from `p`.
    ///
    /// # Safety
    /// - `p` is readable for `N` values.
    unsafe fn load(isa: Self::Isa, p: *const f32) -> Self;
    /// Loads `N` f16 elements from `p` and converts them.
    ///
    /// # Safety
    /// - `p` is readable for `N` 16-bit elements.
    unsafe fn load_f16(isa: Self::Isa, p: *const u16) -> Self;
    /// Loads `N` bf16 elements from `p` and converts them.
    ///
    /// # Safety
    /// - `p` is readable for `N` 16-bit elements.
    unsafe fn load_bf16(isa: Self::Isa, p: *const u16) -> Self;
    /// Loads `N` bytes from `p`: `−∞` for zero, and zero for anything else.
    ///
    /// # Safety
    /// - `p` is readable for `N` bytes.
    unsafe fn load_bool(isa: Self::Isa, p: *const u8) -> Self;
    /// Returns one bit for each of 32 bytes from `p`, set if the byte is not zero. The first byte is the lowest bit.
    ///
    /// # Safety
    /// - `p` is readable for 32 bytes.
    unsafe fn load_bits(isa: Self::Isa, p: *const u8) -> u32;
    /// Returns zero in lanes whose 32 bits share one with `bit`, `−∞` in the others.
    #[must_use]
    fn unless(self, isa: Self::Isa, bit: u32) -> Self;
    /// Prefetches the line at `p`, which need not be valid memory, into the second-level cache, or into the first on a
    /// core with few misses in flight.
    fn prefetch(isa: Self::Isa, p: *const u8);
    /// Writes the lanes to `p`.
    ///
    /// # Safety
    /// - `p` is writable for `N` values.
    unsafe fn store(self, p: *mut f32);
    /// Writes the lanes to `p` as f16 elements, rounded to the nearest, ties to even.
    ///
    /// # Safety
    /// - `p` is writable for `N` 16-bit elements.
    unsafe fn store_f16(self, p: *mut u16);
    /// Prepares four scalars for broadcasting.
    ///
    /// # Safety
    /// - The scalars that are broadcast are readable at `p`, and stay so while the result is used; with
    ///   [`Lanes::QUAD_IN_REGISTER`] all four are.
    unsafe fn quad(isa: Self::Isa, p: *const f32) -> Self::Quad;
    /// Prepares the eight scalars at `p` for broadcasting, as two quads, and advances `p` by `stride` values. An
    /// instruction that loads two registers needs adjacent ones, which are named: calls that alternate in `ODD` use
    /// different ones, so that the quads of two calls can be live at once.
    ///
    /// # Safety
    /// - As for two calls of [`Lanes::quad`], at `p` and four values on.
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
    /// Returns the pointer unchanged while hiding from the compiler how it was computed. The compiler then addresses
    /// nearby reads relative to this pointer and keeps no other.
    #[inline(always)]
    fn opaque(p: *const f32) -> *const f32 {
        p
    }
    /// Returns `self + b · q[I]`.
    ///
    /// # Safety
    /// - `q` comes from [`Lanes::quad`], and scalar `I` of it is still readable.
    /// - `I` is below four.
    unsafe fn mul_add_quad<const I: i32>(self, b: Self, q: Self::Quad) -> Self;
    /// Returns `self · q[I]`.
    ///
    /// # Safety
    /// - As for [`Lanes::mul_add_quad`].
    unsafe fn mul_quad<const I: i32>(self, q: Self::Quad) -> Self;
    /// Returns `self`, or zero where its magnitude is below `limit`. NaN in either keeps `self`.
    #[inline(always)]
    #[must_use]
    fn unless_below(self, isa: Self::Isa, limit: Self) -> Self {
        limit.if_greater(self.abs(), Self::splat(isa, 0.0), self)
    }
    /// Returns `self · (high + low)`, zero where the magnitude of `self` is below `limit`. The product with `low`,
    /// which is far smaller, is added to `bias` with a joint rounding; `bias` is subtracted afterwards. No result is
    /// subnormal if `limit` is the smallest magnitude whose product with `high` is normal, and with a fused
    /// multiply-add no intermediate is either. NaN stays.
    #[inline(always)]
    #[must_use]
    fn times_sum(self, isa: Self::Isa, limit: Self, [high, low]: [Self; 2], bias: Self) -> Self {
        let x = self.unless_below(isa, limit);
        x.mul_add(high, x.mul_add(low, bias)).minus(bias)
    }
    /// Writes the transpose of the 4×4 block at `src` (rows `src_stride` apart), times `factor`, to `dst`.
    ///
    /// # Safety
    /// - Four rows of four values are readable at `src` and writable at `dst`.
    unsafe fn transpose4(
        isa: Self::Isa,
        src: *const f32,
        src_stride: usize,
        factor: f32,
        dst: *mut f32,
        dst_stride: usize,
    );
    /// Transposes the square of the first `N` vectors.
    fn transpose(isa: Self::Isa, square: &mut [Self; MAX_LANES]);
    /// Writes the transpose of the `N` by `N` square at `src` (rows `src_stride` apart), times `factor`, to `dst`, and
    /// returns the largest magnitudes, including NaN.
    ///
    /// # Safety
    /// - `N` rows of `N` values are readable at `src` and writable at `dst`.
    #[inline(always)]
    unsafe fn transpose_square(
        isa: Self::Isa,
        src: *const f32,
        src_stride: usize,
        factor: f32,
        dst: *mut f32,
        dst_stride: usize,
    ) -> Self {
        let mut square = [Self::splat(isa, 0.0); MAX_LANES];
        let mut largest = square[0];
        for i in 0..Self::N {
            // SAFETY: row `i` of `N` (clause).
            square[i] = unsafe { Self::load(isa, src.add(i * src_stride)) };
            largest = largest.larger_magnitude(square[i]);
        }
        Self::transpose(isa, &mut square);
        for i in 0..Self::N {
            // SAFETY: row `i` of `N` (clause).
            unsafe { square[i].times(Self::splat(isa, factor)).store(dst.add(i * dst_stride)) };
        }
        largest
    }

    /// Returns the same f64 value in every lane.
    fn wide(isa: Self::Isa, x: f64) -> Self::Wide;
    /// Returns the lanes as f64 values.
    fn widened(self) -> Self::Wide;
    /// Returns `a + b`.
    fn wide_sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Returns `a · x + c`. If `a` and `x` are f32 values the product is exact, so the result is rounded once, fused or
    /// not.
    fn wide_mul_add(a: Self::Wide, x: f64, c: Self::Wide) -> Self::Wide;
    /// Returns `x` rounded to the nearest f32 values, ties to even.
    fn narrowed(isa: Self::Isa, x: Self::Wide) -> Self;
    /// Returns the difference.
    #[must_use]
    fn minus(self, other: Self) -> Self;
    /// Returns the quotient.
    #[must_use]
    fn over(self, other: Self) -> Self;
    /// Returns `self · b + c`, fused if the instruction set supports it.
    #[must_use]
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// Returns the larger of `self` and `floor`; a NaN in `self` stays.
    #[must_use]
    fn at_least(self, floor: Self) -> Self;
    /// Returns the magnitude.
    #[must_use]
    fn abs(self) -> Self;
    /// Returns `WEIGHT_SCALE · 2^self` for −126 ≤ self ≤ 126; NaN stays NaN.
    #[must_use]
    fn exp2(self) -> Self;
    /// Returns `2^self` for an integer `self` in −126 ..= 127, and an arbitrary number for NaN.
    #[must_use]
    fn power(self) -> Self;
    /// Returns `no` in lanes where `self` is `−∞` and `yes` in the others (also for NaN).
    #[must_use]
    fn if_present(self, yes: Self, no: Self) -> Self;
    /// Returns the sum of the lanes, in a binary tree.
    fn lane_sum(self) -> f32;
    /// Returns the larger magnitude of `self`, which is not negative, and `other`; NaN is larger than any number.
    #[must_use]
    fn larger_magnitude(self, other: Self) -> Self;
    /// Returns `true` if every lane of `self` is at most that of `other`, and not NaN.
    fn all_at_most(self, other: Self) -> bool;
    /// Returns `true` if a lane of `self` exceeds that of `other`.
    fn any_greater(self, other: Self) -> bool;

    /// Returns the weight `WEIGHT_SCALE · 2^self` of a key. At `−∞`, where the key is masked, and wherever its exponent
    /// is not that of a normal number, the weight is zero, or at least not too large: see
    /// [`WEIGHT_FLOOR`](elsa_core::state::WEIGHT_FLOOR). NaN stays NaN. `self` is at most 126.
    #[must_use]
    fn weight(self) -> Self;
    /// Returns [`Lanes::weight`] times [`Lanes::RAISE`], for `self` of at most 32.
    #[must_use]
    fn raised_weight(self) -> Self {
        self.weight()
    }
    /// Returns `self · factor` for factors that are zero or a power of two in `2^-126 ..= 1`. Unless [`Lanes::RAISE`]
    /// is 1, does not stall at subnormal results.
    #[must_use]
    fn shrunk(self, factor: Self) -> Self {
        self.times(factor)
    }
    /// Returns `self` divided by `RAISE` and `TIMES` times, one or two, by [`MORE`], rounded to the nearest, ties to
    /// even. Does not stall at subnormal results. Called only if `RAISE` is not 1.
    #[must_use]
    fn lowered<const TIMES: u32>(self) -> Self {
        self
    }
    /// Returns `self`, a finite number, times [`MORE`]. Does not stall if `self` is subnormal. Called only if `RAISE`
    /// is not 1.
    #[must_use]
    fn lifted(self) -> Self {
        self
    }
}

/// Factor that raises weights where arithmetic stalls at subnormal numbers.
pub const RAISED: f32 = 18_446_744_073_709_551_616.0;

/// Additional factor for the weights of small values, and for tiny values.
pub const MORE: f32 = 281_474_976_710_656.0;

/// `2^74` and `2^75`, whose product turns multiples of the least positive subnormal number into integers.
pub const HALFWAY: [f32; 2] = [18_889_465_931_478_580_854_784.0, 37_778_931_862_957_161_709_568.0];

/// The least positive number times [`MORE`]: `2^-101`.
pub const LEAST_LIFTED: f32 = f32::MIN_POSITIVE * 33_554_432.0;

/// Returns the constants of [`Lanes::lowered`]: the least number whose result is normal, the factor that turns
/// multiples of the least positive result into integers, and two factors that divide.
#[inline(always)]
#[must_use]
pub const fn lowering(times: u32) -> [f32; 4] {
    let all = f32::MIN_POSITIVE * RAISED * MORE;
    match times {
        1 => [all, 137_438_953_472.0, 1.0 / (RAISED * MORE), 1.0],
        _ => [all * MORE, 1.0 / 2048.0, 1.0 / (RAISED * MORE), 1.0 / MORE],
    }
}
