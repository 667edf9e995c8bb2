//! The lane trait: everything that the micro-kernels require of a vector unit.
//!
//! A vector holds `N` independent query rows, one per lane. The trait expresses the needs of an algorithm (a maximum, a
//! weight, a weight that is zero for a masked key) and hides how an instruction set meets them.
//!
//! **Token.** To make a vector, the caller needs an [`Lanes::Isa`] token, which exists only if the processor has the
//! instruction set. So a vector is proof that its operations may be executed. Loads and stores additionally require
//! that their pointer covers `N` elements.
//!
//! **Inlining.** No operation has a target feature of its own. Each is `inline(always)` and adopts the features of the
//! entry point that it is inlined into. A closure between the entry point and an operation would not be inlined and
//! would lose these features, so the micro-kernels use no closures.

use elsa_core::state::Number;

/// Largest number of lanes of any instruction set.
pub const MAX_LANES: usize = 16;

/// Vector of `N` f32 values. [`Number`] supplies products, sums, and the operations that merging states requires.
pub trait Lanes: Number {
    /// Number of lanes in a vector, at most [`MAX_LANES`].
    const N: usize;
    /// Token that proves that the processor has the instruction set.
    type Isa: Copy;
    /// Four adjacent scalars; [`Lanes::mul_add_quad`] broadcasts any one of them. The type is a pointer if the
    /// instruction set broadcasts from memory, and a register if it broadcasts from a lane.
    type Quad: Copy;
    /// Vector with one f64 value per lane.
    type Wide: Copy;
    /// `true` if making a quad reads all four scalars, not only the scalars that are broadcast.
    const QUAD_IN_REGISTER: bool;
    /// Number of groups of four steps per iteration of the product loops: 1, or 4 if counting iterations would take
    /// issue slots from the products.
    const UNROLL: usize;
    /// `true` for 32 vector registers, `false` for 16.
    const MANY_REGISTERS: bool;
    /// Factor by which results of [`Lanes::exp2`] exceed `2^x`, chosen to minimise the largest relative error. All
    /// weights, and therefore `S` and `W`, contain this factor; it cancels in `W / S`.
    const WEIGHT_SCALE: f64;

    /// Factor in [`Lanes::raised_weight`]. On processors that stall at subnormal numbers it is a power of two that
    /// keeps products of small weights normal; on other processors it is 1.
    const RAISE: f32;

    /// Returns a vector with `x` in every lane.
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
    /// Loads `N` bytes from `p` as addends: `−∞` for a zero byte, zero for any other byte.
    ///
    /// # Safety
    /// - `p` is readable for `N` bytes.
    unsafe fn load_bool(isa: Self::Isa, p: *const u8) -> Self;
    /// Returns a bit for each of the 32 bytes at `p`, set if the byte is not zero. The first byte has the lowest bit.
    ///
    /// # Safety
    /// - `p` is readable for 32 bytes.
    unsafe fn load_bits(isa: Self::Isa, p: *const u8) -> u32;
    /// Returns zero in lanes that have a set bit in common with `bit`, and `−∞` in the other lanes.
    #[must_use]
    fn unless(self, isa: Self::Isa, bit: u32) -> Self;
    /// Prefetches the cache line at `p` into the second-level cache, or into the first-level cache if the processor
    /// supports only a few outstanding misses. `p` need not point to valid memory.
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
    /// Prepares the four scalars at `p` for broadcasting.
    ///
    /// # Safety
    /// - The scalars that are broadcast are readable at `p`, and stay readable while the result is used. With
    ///   [`Lanes::QUAD_IN_REGISTER`] all four are readable.
    unsafe fn quad(isa: Self::Isa, p: *const f32) -> Self::Quad;
    /// Prepares the eight scalars at `p` for broadcasting, as two quads, and advances `p` by `stride` values. If one
    /// instruction loads both quads, it needs adjacent registers, which are named explicitly. Calls with different
    /// `ODD` use different registers, so that the quads of two calls can be live at once.
    ///
    /// # Safety
    /// - The clauses of [`Lanes::quad`] hold for two calls, at `p` and at `p + 4`.
    #[inline(always)]
    unsafe fn two_quads<const ODD: bool>(
        isa: Self::Isa,
        p: &mut *const f32,
        stride: usize,
    ) -> [Self::Quad; 2] {
        let at = *p;
        *p = at.wrapping_add(stride);
        // SAFETY: the calls need only the clauses of this function.
        unsafe { [Self::quad(isa, at), Self::quad(isa, at.add(4))] }
    }
    /// Returns the pointer unchanged, but hides from the compiler how the pointer was computed. The compiler then
    /// addresses nearby values relative to this pointer and needs no further pointers.
    #[inline(always)]
    fn opaque(p: *const f32) -> *const f32 {
        p
    }
    /// Returns `self + b · q[I]`.
    ///
    /// # Safety
    /// - `q` comes from [`Lanes::quad`], and its scalar `I` is still readable.
    /// - `I` is below four.
    unsafe fn mul_add_quad<const I: i32>(self, b: Self, q: Self::Quad) -> Self;
    /// Returns `self · q[I]`.
    ///
    /// # Safety
    /// - The clauses of [`Lanes::mul_add_quad`] hold.
    unsafe fn mul_quad<const I: i32>(self, q: Self::Quad) -> Self;
    /// Returns `self` with zero in the lanes where the magnitude of `self` is below `limit`. A lane in which `self` or
    /// `limit` is NaN keeps its value.
    #[inline(always)]
    #[must_use]
    fn unless_below(self, isa: Self::Isa, limit: Self) -> Self {
        limit.if_greater(self.abs(), Self::splat(isa, 0.0), self)
    }
    /// Returns `self · (high + low)`, or zero where the magnitude of `self` is below `limit`. `low` is far smaller than
    /// `high`. The product with `low` is rounded only after `bias` is added to it; `bias` is subtracted again at the
    /// end. If `limit` is the smallest magnitude whose product with `high` is normal, no result is subnormal; with a
    /// fused multiply-add, no intermediate result is subnormal either. NaN stays NaN.
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
    /// Does the work of [`Lanes::transpose4`] for two blocks: the one at `src` and the one `apart[0]` values after it,
    /// whose transposes are `apart[1]` values apart. Where it saves instructions, both are read before any is written.
    ///
    /// # Safety
    /// - The clauses of [`Lanes::transpose4`] hold for both blocks. Source and destination do not overlap.
    #[inline(always)]
    unsafe fn transpose4_twice(
        isa: Self::Isa,
        (src, src_stride): (*const f32, usize),
        factor: f32,
        (dst, dst_stride): (*mut f32, usize),
        apart: [usize; 2],
    ) {
        // SAFETY: both blocks are readable and writable (clause).
        unsafe {
            Self::transpose4(isa, src, src_stride, factor, dst, dst_stride);
            Self::transpose4(isa, src.add(apart[0]), src_stride, factor, dst.add(apart[1]), dst_stride);
        }
    }
    /// Transposes the first `N` vectors as a square of `N` by `N` values.
    fn transpose(isa: Self::Isa, square: &mut [Self; MAX_LANES]);
    /// Writes the transpose of the `N` by `N` square at `src` (rows `src_stride` apart), times `factor`, to `dst`.
    /// Returns the largest magnitude in each lane, or NaN where a value is NaN.
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
            // SAFETY: row `i` is one of the `N` rows (clause).
            square[i] = unsafe { Self::load(isa, src.add(i * src_stride)) };
            largest = largest.larger_magnitude(square[i]);
        }
        Self::transpose(isa, &mut square);
        for i in 0..Self::N {
            // SAFETY: row `i` is one of the `N` rows (clause).
            unsafe { square[i].times(Self::splat(isa, factor)).store(dst.add(i * dst_stride)) };
        }
        largest
    }

    /// Returns a vector of f64 values with `x` in every lane.
    fn wide(isa: Self::Isa, x: f64) -> Self::Wide;
    /// Returns the lanes as f64 values.
    fn widened(self) -> Self::Wide;
    /// Returns `a + b`.
    fn wide_sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Returns `a · x + c`. If `a` and `x` are f32 values, the product is exact, so the result is rounded only once,
    /// with or without a fused multiply-add.
    fn wide_mul_add(a: Self::Wide, x: f64, c: Self::Wide) -> Self::Wide;
    /// Returns `x` rounded to the nearest f32 values, ties to even.
    fn narrowed(isa: Self::Isa, x: Self::Wide) -> Self;
    /// Returns `self − other`.
    #[must_use]
    fn minus(self, other: Self) -> Self;
    /// Returns `self / other`.
    #[must_use]
    fn over(self, other: Self) -> Self;
    /// Returns `self · b + c`, fused if the instruction set supports it.
    #[must_use]
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// Returns the larger of `self` and `floor`; NaN in `self` stays NaN.
    #[must_use]
    fn at_least(self, floor: Self) -> Self;
    /// Returns the magnitude of each lane.
    #[must_use]
    fn abs(self) -> Self;
    /// Returns `WEIGHT_SCALE · 2^self` for −126 ≤ self ≤ 126; NaN stays NaN.
    #[must_use]
    fn exp2(self) -> Self;
    /// Returns `2^self` for an integer `self` in −126 ..= 127. For NaN the result is an arbitrary number.
    #[must_use]
    fn power(self) -> Self;
    /// Returns `no` in lanes where `self` is `−∞`, and `yes` in all other lanes, even where `self` is NaN.
    #[must_use]
    fn if_present(self, yes: Self, no: Self) -> Self;
    /// Returns the sum of the lanes, added up as a binary tree.
    fn lane_sum(self) -> f32;
    /// Returns [`Lanes::lane_sum`] of each vector.
    #[inline(always)]
    fn lane_sums(vectors: [Self; 4]) -> [f32; 4] {
        let [a, b, c, d] = vectors;
        [a.lane_sum(), b.lane_sum(), c.lane_sum(), d.lane_sum()]
    }
    /// Returns the larger of `self` and the magnitude of `other`. `self` must not be negative. NaN counts as larger
    /// than any number.
    #[must_use]
    fn larger_magnitude(self, other: Self) -> Self;
    /// Returns `true` if `self <= other` holds in every lane. It does not hold in a lane with a NaN.
    fn all_at_most(self, other: Self) -> bool;
    /// Returns `true` if any lane of `self` exceeds the same lane of `other`.
    fn any_greater(self, other: Self) -> bool;

    /// Returns the weight `WEIGHT_SCALE · 2^self` of a key. No lane of `self` may exceed 126. At `−∞`, where the key is
    /// masked, the weight is zero. Below [`WEIGHT_FLOOR`](elsa_core::state::WEIGHT_FLOOR) the weight is zero, or a
    /// number that does not exceed the exact weight. NaN stays NaN.
    #[must_use]
    fn weight(self) -> Self;
    /// Returns [`Lanes::weight`] times [`Lanes::RAISE`]. No lane of `self` may exceed 32.
    #[must_use]
    fn raised_weight(self) -> Self {
        self.weight()
    }
    /// Returns `self · factor` for factors that are zero or a power of two in `2^-126 ..= 1`. If [`Lanes::RAISE`] is
    /// not 1, the operation does not stall at subnormal results.
    #[must_use]
    fn shrunk(self, factor: Self) -> Self {
        self.times(factor)
    }
    /// Returns `self` divided by `RAISE` and by `MORE^TIMES` ([`MORE`]), where `TIMES` is one or two. The result is
    /// rounded to the nearest, ties to even. The operation does not stall at subnormal results. It is called only if
    /// `RAISE` is not 1.
    #[must_use]
    fn lowered<const TIMES: u32>(self) -> Self {
        self
    }
    /// Returns `self` times [`MORE`]. `self` must be finite. The operation does not stall if `self` is subnormal. It is
    /// called only if `RAISE` is not 1.
    #[must_use]
    fn lifted(self) -> Self {
        self
    }
}

/// Factor that raises weights on processors whose arithmetic stalls at subnormal numbers: `2^64`.
pub const RAISED: f32 = 18_446_744_073_709_551_616.0;

/// Additional factor for the weights of small values, and for the tiny values themselves: `2^48`.
pub const MORE: f32 = 281_474_976_710_656.0;

/// The numbers `2^74` and `2^75`. A multiplication by both numbers turns multiples of the smallest positive subnormal
/// number into integers.
pub const HALFWAY: [f32; 2] = [18_889_465_931_478_580_854_784.0, 37_778_931_862_957_161_709_568.0];

/// Smallest positive subnormal number times [`MORE`]: `2^-101`.
pub const LEAST_LIFTED: f32 = f32::MIN_POSITIVE * 33_554_432.0;

/// Returns the constants of [`Lanes::lowered`]: the smallest operand whose result is normal; the factor that turns
/// multiples of the smallest positive result into integers; and two factors that together perform the division.
#[inline(always)]
#[must_use]
pub const fn lowering(times: u32) -> [f32; 4] {
    let all = f32::MIN_POSITIVE * RAISED * MORE;
    match times {
        1 => [all, 137_438_953_472.0, 1.0 / (RAISED * MORE), 1.0],
        _ => [all * MORE, 1.0 / 2048.0, 1.0 / (RAISED * MORE), 1.0 / MORE],
    }
}
