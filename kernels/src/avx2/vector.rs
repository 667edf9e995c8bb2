//! The AVX2 vector.

use crate::exp2::{EXP2_NEAREST, EXPONENT_MAGIC, ZERO_AT, exp2_horner, raised};
use crate::isa::Avx2;
use crate::lanes::{HALFWAY, LEAST_LIFTED, Lanes, MAX_LANES, MORE, RAISED, lowering};
use crate::x86::sums_of_four;
use core::arch::x86_64::*;
use elsa_core::state::Number;

/// Vector of eight f32 values.
#[derive(Clone, Copy, Debug)]
pub struct Eight(__m256);

/// Runs an intrinsic. A vector or token in scope proves that the processor supports the intrinsic.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: vectors and tokens exist only where the instruction set does (`lanes`, Token).
        unsafe { $e }
    };
}

impl Eight {
    #[inline(always)]
    fn isa(self) -> Avx2 {
        // SAFETY: `self` exists, so the instruction set is present (`lanes`, Token).
        unsafe { Avx2::assume() }
    }
}

impl Number for Eight {
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Eight(op!(_mm256_max_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn factor(self, to: Self) -> Self {
        let shift = self.minus(to).0;
        Eight(op!({
            let kept = _mm256_cmp_ps::<_CMP_GE_OQ>(shift, _mm256_set1_ps(-126.0));
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(shift), _mm256_set1_epi32(127));
            _mm256_and_ps(kept, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
        }))
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Eight(op!(_mm256_mul_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Eight(op!(_mm256_add_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn nearest(self) -> Self {
        Eight(op!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }
    #[inline(always)]
    fn if_greater(self, than: Self, yes: Self, no: Self) -> Self {
        Eight(op!(_mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, than.0))))
    }
}

impl Lanes for Eight {
    const N: usize = 8;
    type Isa = Avx2;
    type Quad = *const f32;
    type Wide = [__m256d; 2];
    const QUAD_IN_REGISTER: bool = false;
    const UNROLL: usize = 1;
    const MANY_REGISTERS: bool = false;
    const WEIGHT_SCALE: f64 = 1.000_000_057;
    const RAISE: f32 = RAISED;

    #[inline(always)]
    fn splat(_: Avx2, x: f32) -> Self {
        Eight(op!(_mm256_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(_: Avx2, p: *const f32) -> Self {
        // SAFETY: `p` is readable for `N` values (clause of `load`); the token proves the instruction set.
        Eight(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(_: Avx2, p: *const u16) -> Self {
        // SAFETY: `p` is readable for `N` elements (clause of `load_f16`); the token proves the instruction set.
        Eight(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16(_: Avx2, p: *const u16) -> Self {
        // SAFETY: `p` is readable for `N` elements (clause of `load_bf16`); the token proves the instruction set.
        Eight(unsafe {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))))
        })
    }
    #[inline(always)]
    unsafe fn load_bool(_: Avx2, p: *const u8) -> Self {
        // SAFETY: `p` is readable for `N` bytes (clause of `load_bool`); the token proves the instruction set.
        Eight(unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let masked = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bytes, _mm256_setzero_si256()));
            _mm256_and_ps(masked, _mm256_set1_ps(f32::NEG_INFINITY))
        })
    }
    #[inline(always)]
    unsafe fn load_bits(_: Avx2, p: *const u8) -> u32 {
        // SAFETY: `p` is readable for 32 bytes (clause of `load_bits`); the token proves the instruction set.
        unsafe { crate::x86::bits(p) }
    }
    #[inline(always)]
    fn unless(self, _: Avx2, bit: u32) -> Self {
        Eight(op!({
            let common = _mm256_and_si256(_mm256_castps_si256(self.0), _mm256_set1_epi32(bit as i32));
            let out = _mm256_castsi256_ps(_mm256_cmpeq_epi32(common, _mm256_setzero_si256()));
            _mm256_and_ps(out, _mm256_set1_ps(f32::NEG_INFINITY))
        }))
    }
    #[inline(always)]
    fn prefetch(_: Avx2, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: `p` is writable for `N` values (clause of `store`).
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: `p` is writable for `N` elements (clause of `store_f16`).
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn quad(_: Avx2, p: *const f32) -> *const f32 {
        p
    }
    #[inline(always)]
    unsafe fn mul_add_quad<const I: i32>(self, b: Self, q: *const f32) -> Self {
        // SAFETY: scalar `I` is readable at `q` (clauses of `mul_add_quad`).
        Eight(unsafe { _mm256_fmadd_ps(_mm256_set1_ps(q.add(I as usize).read()), b.0, self.0) })
    }
    #[inline(always)]
    unsafe fn mul_quad<const I: i32>(self, q: *const f32) -> Self {
        // SAFETY: scalar `I` is readable at `q` (clauses of `mul_quad`).
        Eight(unsafe { _mm256_mul_ps(_mm256_set1_ps(q.add(I as usize).read()), self.0) })
    }
    #[inline(always)]
    unsafe fn transpose4(
        _: Avx2,
        src: *const f32,
        src_stride: usize,
        factor: f32,
        dst: *mut f32,
        dst_stride: usize,
    ) {
        // SAFETY: four rows of four values at both pointers (clause of `transpose4`).
        unsafe { crate::x86::transpose4(src, src_stride, factor, dst, dst_stride) }
    }
    #[inline(always)]
    fn transpose(_: Avx2, square: &mut [Self; MAX_LANES]) {
        // Transposes squares of four by four within each half of four vectors, then exchanges halves between vectors.
        op!({
            let mut a = [_mm256_setzero_ps(); 8];
            for i in 0..2 {
                let (w, x) = (square[4 * i].0, square[4 * i + 1].0);
                let (y, z) = (square[4 * i + 2].0, square[4 * i + 3].0);
                let (wx_low, wx_high) = (_mm256_unpacklo_ps(w, x), _mm256_unpackhi_ps(w, x));
                let (yz_low, yz_high) = (_mm256_unpacklo_ps(y, z), _mm256_unpackhi_ps(y, z));
                a[4 * i] = _mm256_shuffle_ps::<0x44>(wx_low, yz_low);
                a[4 * i + 1] = _mm256_shuffle_ps::<0xee>(wx_low, yz_low);
                a[4 * i + 2] = _mm256_shuffle_ps::<0x44>(wx_high, yz_high);
                a[4 * i + 3] = _mm256_shuffle_ps::<0xee>(wx_high, yz_high);
            }
            for i in 0..4 {
                square[i].0 = _mm256_permute2f128_ps::<0x20>(a[i], a[4 + i]);
                square[4 + i].0 = _mm256_permute2f128_ps::<0x31>(a[i], a[4 + i]);
            }
        });
    }
    #[inline(always)]
    fn wide(_: Avx2, x: f64) -> Self::Wide {
        op!([_mm256_set1_pd(x); 2])
    }
    #[inline(always)]
    fn widened(self) -> Self::Wide {
        op!([
            _mm256_cvtps_pd(_mm256_castps256_ps128(self.0)),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(self.0))
        ])
    }
    #[inline(always)]
    fn wide_sum(a: Self::Wide, b: Self::Wide) -> Self::Wide {
        op!([_mm256_add_pd(a[0], b[0]), _mm256_add_pd(a[1], b[1])])
    }
    #[inline(always)]
    fn wide_mul_add(a: Self::Wide, x: f64, c: Self::Wide) -> Self::Wide {
        op!({
            let x = _mm256_set1_pd(x);
            [_mm256_fmadd_pd(a[0], x, c[0]), _mm256_fmadd_pd(a[1], x, c[1])]
        })
    }
    #[inline(always)]
    fn narrowed(_: Avx2, x: Self::Wide) -> Self {
        Eight(op!(_mm256_set_m128(_mm256_cvtpd_ps(x[1]), _mm256_cvtpd_ps(x[0]))))
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        Eight(op!(_mm256_sub_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        Eight(op!(_mm256_div_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Eight(op!(_mm256_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn at_least(self, floor: Self) -> Self {
        // VMAXPS returns its second operand when either is NaN.
        Eight(op!(_mm256_max_ps(floor.0, self.0)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Eight(op!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0)))
    }
    #[inline(always)]
    fn exp2(self) -> Self {
        exp2_horner!(self, self.isa(), power_from_low_bits)
    }
    #[inline(always)]
    fn power(self) -> Self {
        power_from_low_bits(self.plus(Self::splat(self.isa(), EXPONENT_MAGIC)))
    }
    #[inline(always)]
    fn weight(self) -> Self {
        self.at_least(Self::splat(self.isa(), ZERO_AT)).exp2()
    }
    #[inline(always)]
    fn raised_weight(self) -> Self {
        const RAISED: [f32; 6] = raised(EXP2_NEAREST);
        let x = self.at_least(Self::splat(self.isa(), ZERO_AT));
        exp2_horner!(x, self.isa(), power_from_low_bits, RAISED)
    }
    #[inline(always)]
    fn shrunk(self, factor: Self) -> Self {
        // A result that would be subnormal is an integer multiple of the least positive number, and its bits are that
        // integer. No multiplication involves a subnormal number, not even in unused lanes.
        Eight(op!({
            let [half, rest] = HALFWAY;
            let least = _mm256_set1_ps(f32::MIN_POSITIVE);
            let size = self.abs().0;
            let limit = _mm256_div_ps(least, factor.0);
            let normal = _mm256_cmp_ps::<_CMP_NLT_UQ>(size, limit);
            if _mm256_movemask_ps(normal) == 0xff {
                return self.times(factor);
            }
            let product = _mm256_and_ps(normal, _mm256_mul_ps(_mm256_max_ps(limit, size), factor.0));
            let subnormal = _mm256_cmp_ps::<_CMP_LT_OQ>(size, least);
            let bits = _mm256_cvtepi32_ps(_mm256_castps_si256(size));
            let low = _mm256_mul_ps(bits, _mm256_set1_ps(1.0 / rest));
            let high = _mm256_mul_ps(_mm256_max_ps(least, size), _mm256_set1_ps(half));
            let halfway = _mm256_blendv_ps(high, low, subnormal);
            let whole = _mm256_mul_ps(halfway, _mm256_mul_ps(factor.0, _mm256_set1_ps(rest)));
            let tiny = _mm256_andnot_ps(normal, _mm256_castsi256_ps(_mm256_cvtps_epi32(whole)));
            let sign = _mm256_and_ps(self.0, _mm256_set1_ps(-0.0));
            _mm256_or_ps(_mm256_or_ps(tiny, sign), product)
        }))
    }
    #[inline(always)]
    fn lowered<const TIMES: u32>(self) -> Self {
        // A result that would be subnormal is an integer multiple of the least positive number, and its bits are that
        // integer. No multiplication involves a subnormal number, not even in unused lanes.
        Eight(op!({
            let [limit, units, rest, last] = lowering(TIMES);
            let (size, limit) = (self.abs().0, _mm256_set1_ps(limit));
            let normal = _mm256_cmp_ps::<_CMP_NLT_UQ>(size, limit);
            let whole = _mm256_mul_ps(size, _mm256_set1_ps(units));
            let tiny = _mm256_andnot_ps(normal, _mm256_castsi256_ps(_mm256_cvtps_epi32(whole)));
            let large = _mm256_mul_ps(_mm256_max_ps(limit, size), _mm256_set1_ps(rest));
            let large = _mm256_and_ps(normal, _mm256_mul_ps(large, _mm256_set1_ps(last)));
            let sign = _mm256_and_ps(self.0, _mm256_set1_ps(-0.0));
            _mm256_or_ps(_mm256_or_ps(tiny, sign), large)
        }))
    }
    #[inline(always)]
    fn lifted(self) -> Self {
        Eight(op!({
            let least = _mm256_set1_ps(f32::MIN_POSITIVE);
            let size = self.abs().0;
            let subnormal = _mm256_cmp_ps::<_CMP_LT_OQ>(size, least);
            let bits = _mm256_cvtepi32_ps(_mm256_castps_si256(size));
            let low = _mm256_mul_ps(bits, _mm256_set1_ps(LEAST_LIFTED));
            let high = _mm256_mul_ps(_mm256_max_ps(least, size), _mm256_set1_ps(MORE));
            let sign = _mm256_and_ps(self.0, _mm256_set1_ps(-0.0));
            _mm256_or_ps(_mm256_blendv_ps(high, low, subnormal), sign)
        }))
    }
    #[inline(always)]
    fn if_present(self, yes: Self, no: Self) -> Self {
        let absent = op!(_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, _mm256_set1_ps(f32::NEG_INFINITY)));
        Eight(op!(_mm256_blendv_ps(yes.0, no.0, absent)))
    }
    #[inline(always)]
    fn lane_sum(self) -> f32 {
        op!({
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
    #[inline(always)]
    fn lane_sums(vectors: [Self; 4]) -> [f32; 4] {
        let mut four = [op!(_mm_setzero_ps()); 4];
        for i in 0..4 {
            let x = vectors[i].0;
            four[i] = op!(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)));
        }
        sums_of_four(four)
    }
    #[inline(always)]
    fn larger_magnitude(self, other: Self) -> Self {
        let magnitude = other.abs();
        Eight(op!(_mm256_castsi256_ps(_mm256_max_epu32(
            _mm256_castps_si256(self.0),
            _mm256_castps_si256(magnitude.0),
        ))))
    }
    #[inline(always)]
    fn all_at_most(self, other: Self) -> bool {
        op!(_mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(self.0, other.0))) == 0
    }
    #[inline(always)]
    fn any_greater(self, other: Self) -> bool {
        op!(_mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0))) != 0
    }
}

#[inline(always)]
fn power_from_low_bits(t: Eight) -> Eight {
    Eight(op!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(t.0)))))
}
