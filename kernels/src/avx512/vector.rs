//! The AVX-512 vector.

use crate::exp2::{EXP2_FLOOR, raised};
use crate::isa::Avx512;
use crate::lanes::{HALFWAY, LEAST_LIFTED, Lanes, MAX_LANES, MORE, RAISED, lowering};
use crate::x86::sums_of_four;
use core::arch::x86_64::*;
use elsa_core::state::{Number, WEIGHT_FLOOR};

/// Vector of sixteen f32 values.
#[derive(Clone, Copy, Debug)]
pub struct Sixteen(__m512);

/// Runs an intrinsic. A vector or token in scope proves that the processor supports the intrinsic.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: vectors and tokens exist only where the instruction set does (`lanes`, Token).
        unsafe { $e }
    };
}

impl Sixteen {
    #[inline(always)]
    fn isa(self) -> Avx512 {
        // SAFETY: `self` exists, so the instruction set is present (`lanes`, Token).
        unsafe { Avx512::assume() }
    }

    /// Evaluates a polynomial for `2^x` on [0, 1] at `self` minus the floor of `self`. `c` contains the coefficients.
    #[inline(always)]
    fn mantissa(self, c: [f32; 6]) -> Self {
        let isa = self.isa();
        let r = Sixteen(op!(_mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(self.0)));
        let mut p = Self::splat(isa, c[5]);
        p = p.mul_add(r, Self::splat(isa, c[4]));
        p = p.mul_add(r, Self::splat(isa, c[3]));
        p = p.mul_add(r, Self::splat(isa, c[2]));
        p = p.mul_add(r, Self::splat(isa, c[1]));
        p.mul_add(r, Self::splat(isa, c[0]))
    }

    /// Computes the weight with coefficients `c`, or zero where `self` is below `WEIGHT_FLOOR`.
    #[inline(always)]
    fn weight_of(self, c: [f32; 6]) -> Self {
        // VSCALEFPS alone would compute subnormal numbers, and stall.
        let p = self.mantissa(c);
        Sixteen(op!({
            let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, _mm512_set1_ps(WEIGHT_FLOOR));
            _mm512_maskz_scalef_ps(kept, p.0, self.0)
        }))
    }
}

impl Number for Sixteen {
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Sixteen(op!(_mm512_max_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn factor(self, to: Self) -> Self {
        let shift = self.minus(to).0;
        Sixteen(op!({
            let kept = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(shift, _mm512_set1_ps(-126.0));
            _mm512_maskz_scalef_ps(kept, _mm512_set1_ps(1.0), shift)
        }))
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Sixteen(op!(_mm512_mul_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Sixteen(op!(_mm512_add_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn nearest(self) -> Self {
        Sixteen(op!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }
    #[inline(always)]
    fn if_greater(self, than: Self, yes: Self, no: Self) -> Self {
        let greater = op!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, than.0));
        Sixteen(op!(_mm512_mask_blend_ps(greater, no.0, yes.0)))
    }
}

impl Lanes for Sixteen {
    const N: usize = 16;
    type Isa = Avx512;
    type Quad = *const f32;
    type Wide = [__m512d; 2];
    const QUAD_IN_REGISTER: bool = false;
    const UNROLL: usize = 1;
    const MANY_REGISTERS: bool = true;
    const WEIGHT_SCALE: f64 = 1.000_000_015;
    const RAISE: f32 = RAISED;

    #[inline(always)]
    fn splat(_: Avx512, x: f32) -> Self {
        Sixteen(op!(_mm512_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(_: Avx512, p: *const f32) -> Self {
        // SAFETY: `p` is readable for `N` values (clause of `load`); the token proves the instruction set.
        Sixteen(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(_: Avx512, p: *const u16) -> Self {
        // SAFETY: `p` is readable for `N` elements (clause of `load_f16`); the token proves the instruction set.
        Sixteen(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16(_: Avx512, p: *const u16) -> Self {
        // SAFETY: `p` is readable for `N` elements (clause of `load_bf16`); the token proves the instruction set.
        Sixteen(unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
        })
    }
    #[inline(always)]
    unsafe fn load_bool(_: Avx512, p: *const u8) -> Self {
        // SAFETY: `p` is readable for `N` bytes (clause of `load_bool`); the token proves the instruction set.
        Sixteen(unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let masked = _mm512_testn_epi32_mask(bytes, bytes);
            _mm512_maskz_mov_ps(masked, _mm512_set1_ps(f32::NEG_INFINITY))
        })
    }
    #[inline(always)]
    unsafe fn load_bits(_: Avx512, p: *const u8) -> u32 {
        // SAFETY: `p` is readable for 32 bytes (clause of `load_bits`); the token proves the instruction set.
        unsafe { crate::x86::bits(p) }
    }
    #[inline(always)]
    fn unless(self, _: Avx512, bit: u32) -> Self {
        Sixteen(op!({
            let out = _mm512_testn_epi32_mask(_mm512_castps_si512(self.0), _mm512_set1_epi32(bit as i32));
            _mm512_maskz_mov_ps(out, _mm512_set1_ps(f32::NEG_INFINITY))
        }))
    }
    #[inline(always)]
    fn prefetch(_: Avx512, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: `p` is writable for `N` values (clause of `store`).
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: `p` is writable for `N` elements (clause of `store_f16`).
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn quad(_: Avx512, p: *const f32) -> *const f32 {
        p
    }
    #[inline(always)]
    unsafe fn mul_add_quad<const I: i32>(self, b: Self, q: *const f32) -> Self {
        // SAFETY: scalar `I` is readable at `q` (clauses of `mul_add_quad`).
        Sixteen(unsafe { _mm512_fmadd_ps(_mm512_set1_ps(q.add(I as usize).read()), b.0, self.0) })
    }
    #[inline(always)]
    unsafe fn mul_quad<const I: i32>(self, q: *const f32) -> Self {
        // SAFETY: scalar `I` is readable at `q` (clauses of `mul_quad`).
        Sixteen(unsafe { _mm512_mul_ps(_mm512_set1_ps(q.add(I as usize).read()), self.0) })
    }
    #[inline(always)]
    fn unless_below(self, _: Avx512, limit: Self) -> Self {
        Sixteen(op!({
            let kept = _mm512_cmp_ps_mask::<_CMP_NGT_UQ>(limit.0, self.abs().0);
            _mm512_maskz_mov_ps(kept, self.0)
        }))
    }
    #[inline(always)]
    fn times_sum(self, _: Avx512, limit: Self, [high, low]: [Self; 2], bias: Self) -> Self {
        let sum = self.mul_add(high, self.mul_add(low, bias));
        // Lanes that are masked off cause no stalls.
        Sixteen(op!({
            let kept = _mm512_cmp_ps_mask::<_CMP_NGT_UQ>(limit.0, self.abs().0);
            _mm512_maskz_sub_ps(kept, sum.0, bias.0)
        }))
    }
    #[inline(always)]
    unsafe fn transpose4(
        _: Avx512,
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
    fn transpose(_: Avx512, square: &mut [Self; MAX_LANES]) {
        // Takes four vectors at a time and transposes the four-by-four square in each quarter of these vectors. Then
        // exchanges quarters between vectors.
        op!({
            let mut a = [_mm512_setzero_ps(); 16];
            for i in 0..4 {
                let (w, x) = (square[4 * i].0, square[4 * i + 1].0);
                let (y, z) = (square[4 * i + 2].0, square[4 * i + 3].0);
                let (wx_low, wx_high) = (_mm512_unpacklo_ps(w, x), _mm512_unpackhi_ps(w, x));
                let (yz_low, yz_high) = (_mm512_unpacklo_ps(y, z), _mm512_unpackhi_ps(y, z));
                a[4 * i] = _mm512_shuffle_ps::<0x44>(wx_low, yz_low);
                a[4 * i + 1] = _mm512_shuffle_ps::<0xee>(wx_low, yz_low);
                a[4 * i + 2] = _mm512_shuffle_ps::<0x44>(wx_high, yz_high);
                a[4 * i + 3] = _mm512_shuffle_ps::<0xee>(wx_high, yz_high);
            }
            for i in 0..4 {
                let even_low = _mm512_shuffle_f32x4::<0x88>(a[i], a[4 + i]);
                let odd_low = _mm512_shuffle_f32x4::<0xdd>(a[i], a[4 + i]);
                let even_high = _mm512_shuffle_f32x4::<0x88>(a[8 + i], a[12 + i]);
                let odd_high = _mm512_shuffle_f32x4::<0xdd>(a[8 + i], a[12 + i]);
                square[i].0 = _mm512_shuffle_f32x4::<0x88>(even_low, even_high);
                square[4 + i].0 = _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high);
                square[8 + i].0 = _mm512_shuffle_f32x4::<0xdd>(even_low, even_high);
                square[12 + i].0 = _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high);
            }
        });
    }
    #[inline(always)]
    unsafe fn transpose_square(
        isa: Avx512,
        src: *const f32,
        src_stride: usize,
        factor: f32,
        dst: *mut f32,
        dst_stride: usize,
    ) -> Self {
        // Reads four columns at a time. Each vector combines parts of four rows, one per quarter. The rows are chosen
        // so that a transposition within the quarters leaves every value in its quarter.
        let mut largest = Self::splat(isa, 0.0);
        for column in (0..16).step_by(4) {
            // SAFETY: sixteen rows of sixteen values at both pointers (clause of `transpose_square`).
            unsafe {
                let quarters = |row: usize| {
                    let at =
                        |quarter: usize| _mm_loadu_ps(src.add((row + 4 * quarter) * src_stride + column));
                    let x = _mm512_insertf32x4::<1>(_mm512_castps128_ps512(at(0)), at(1));
                    _mm512_insertf32x4::<3>(_mm512_insertf32x4::<2>(x, at(2)), at(3))
                };
                let (w, x, y, z) = (quarters(0), quarters(1), quarters(2), quarters(3));
                for row in [w, x, y, z] {
                    largest = largest.larger_magnitude(Sixteen(row));
                }
                let (wx_low, wx_high) = (_mm512_unpacklo_ps(w, x), _mm512_unpackhi_ps(w, x));
                let (yz_low, yz_high) = (_mm512_unpacklo_ps(y, z), _mm512_unpackhi_ps(y, z));
                let columns = [
                    _mm512_shuffle_ps::<0x44>(wx_low, yz_low),
                    _mm512_shuffle_ps::<0xee>(wx_low, yz_low),
                    _mm512_shuffle_ps::<0x44>(wx_high, yz_high),
                    _mm512_shuffle_ps::<0xee>(wx_high, yz_high),
                ];
                for (i, x) in columns.into_iter().enumerate() {
                    let y = _mm512_mul_ps(x, _mm512_set1_ps(factor));
                    _mm512_storeu_ps(dst.add((column + i) * dst_stride), y);
                }
            }
        }
        largest
    }
    #[inline(always)]
    fn wide(_: Avx512, x: f64) -> Self::Wide {
        op!([_mm512_set1_pd(x); 2])
    }
    #[inline(always)]
    fn widened(self) -> Self::Wide {
        op!([
            _mm512_cvtps_pd(_mm512_castps512_ps256(self.0)),
            _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(self.0))
        ])
    }
    #[inline(always)]
    fn wide_sum(a: Self::Wide, b: Self::Wide) -> Self::Wide {
        op!([_mm512_add_pd(a[0], b[0]), _mm512_add_pd(a[1], b[1])])
    }
    #[inline(always)]
    fn wide_mul_add(a: Self::Wide, x: f64, c: Self::Wide) -> Self::Wide {
        op!({
            let x = _mm512_set1_pd(x);
            [_mm512_fmadd_pd(a[0], x, c[0]), _mm512_fmadd_pd(a[1], x, c[1])]
        })
    }
    #[inline(always)]
    fn narrowed(_: Avx512, x: Self::Wide) -> Self {
        Sixteen(op!(_mm512_insertf32x8::<1>(
            _mm512_castps256_ps512(_mm512_cvtpd_ps(x[0])),
            _mm512_cvtpd_ps(x[1])
        )))
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        Sixteen(op!(_mm512_sub_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        Sixteen(op!(_mm512_div_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Sixteen(op!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn at_least(self, floor: Self) -> Self {
        // VMAXPS returns its second operand when either is NaN.
        Sixteen(op!(_mm512_max_ps(floor.0, self.0)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Sixteen(op!(_mm512_abs_ps(self.0)))
    }
    #[inline(always)]
    fn exp2(self) -> Self {
        // VREDUCEPS computes the fraction above the floor, and VSCALEFPS multiplies by two to the power of the floor.
        Sixteen(op!(_mm512_scalef_ps(self.mantissa(EXP2_FLOOR).0, self.0)))
    }
    #[inline(always)]
    fn power(self) -> Self {
        Sixteen(op!(_mm512_scalef_ps(_mm512_set1_ps(1.0), self.0)))
    }
    #[inline(always)]
    fn weight(self) -> Self {
        self.weight_of(EXP2_FLOOR)
    }
    #[inline(always)]
    fn raised_weight(self) -> Self {
        const RAISED: [f32; 6] = raised(EXP2_FLOOR);
        self.weight_of(RAISED)
    }
    #[inline(always)]
    fn shrunk(self, factor: Self) -> Self {
        // A result that would be subnormal is an integer multiple of the least positive number, and its bits are that
        // integer. No multiplication involves a subnormal number, not even in unused lanes.
        Sixteen(op!({
            let [half, rest] = HALFWAY;
            let least = _mm512_set1_ps(f32::MIN_POSITIVE);
            let size = _mm512_abs_ps(self.0);
            let limit = _mm512_div_ps(least, factor.0);
            let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(size, limit);
            if normal == u16::MAX {
                return self.times(factor);
            }
            let product = _mm512_maskz_mul_ps(normal, _mm512_max_ps(limit, size), factor.0);
            let subnormal = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, least);
            let bits = _mm512_cvtepi32_ps(_mm512_castps_si512(size));
            let low = _mm512_mul_ps(bits, _mm512_set1_ps(1.0 / rest));
            let high = _mm512_mul_ps(_mm512_max_ps(least, size), _mm512_set1_ps(half));
            let halfway = _mm512_mask_blend_ps(subnormal, high, low);
            let whole = _mm512_mul_ps(halfway, _mm512_mul_ps(factor.0, _mm512_set1_ps(rest)));
            let tiny = _mm512_maskz_cvtps_epi32(!normal, whole);
            let sign = _mm512_and_si512(_mm512_castps_si512(self.0), _mm512_set1_epi32(i32::MIN));
            let result = _mm512_or_si512(_mm512_or_si512(tiny, sign), _mm512_castps_si512(product));
            _mm512_castsi512_ps(result)
        }))
    }
    #[inline(always)]
    fn lowered<const TIMES: u32>(self) -> Self {
        // A result that would be subnormal is an integer multiple of the least positive number, and its bits are that
        // integer. No multiplication involves a subnormal number, not even in unused lanes.
        Sixteen(op!({
            let [limit, units, rest, last] = lowering(TIMES);
            let (size, limit) = (_mm512_abs_ps(self.0), _mm512_set1_ps(limit));
            let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(size, limit);
            let whole = _mm512_mul_ps(size, _mm512_set1_ps(units));
            let tiny = _mm512_maskz_cvtps_epi32(!normal, whole);
            let large = _mm512_mul_ps(_mm512_max_ps(limit, size), _mm512_set1_ps(rest));
            let large = _mm512_maskz_mul_ps(normal, large, _mm512_set1_ps(last));
            let sign = _mm512_and_si512(_mm512_castps_si512(self.0), _mm512_set1_epi32(i32::MIN));
            let bits = _mm512_or_si512(_mm512_or_si512(tiny, sign), _mm512_castps_si512(large));
            _mm512_castsi512_ps(bits)
        }))
    }
    #[inline(always)]
    fn lifted(self) -> Self {
        Sixteen(op!({
            let least = _mm512_set1_ps(f32::MIN_POSITIVE);
            let size = _mm512_abs_ps(self.0);
            let subnormal = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, least);
            let bits = _mm512_cvtepi32_ps(_mm512_castps_si512(size));
            let low = _mm512_mul_ps(bits, _mm512_set1_ps(LEAST_LIFTED));
            let high = _mm512_mul_ps(_mm512_max_ps(least, size), _mm512_set1_ps(MORE));
            let sign = _mm512_and_si512(_mm512_castps_si512(self.0), _mm512_set1_epi32(i32::MIN));
            let size = _mm512_castps_si512(_mm512_mask_blend_ps(subnormal, high, low));
            _mm512_castsi512_ps(_mm512_or_si512(size, sign))
        }))
    }
    #[inline(always)]
    fn if_present(self, yes: Self, no: Self) -> Self {
        let absent = op!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, _mm512_set1_ps(f32::NEG_INFINITY)));
        Sixteen(op!(_mm512_mask_blend_ps(absent, yes.0, no.0)))
    }
    #[inline(always)]
    fn lane_sum(self) -> f32 {
        op!(_mm512_reduce_add_ps(self.0))
    }
    #[inline(always)]
    fn lane_sums(vectors: [Self; 4]) -> [f32; 4] {
        let mut four = [op!(_mm_setzero_ps()); 4];
        for i in 0..4 {
            let x = vectors[i].0;
            four[i] = op!({
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x)));
                let eight = _mm256_add_ps(_mm512_castps512_ps256(x), high);
                _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
            });
        }
        sums_of_four(four)
    }
    #[inline(always)]
    fn larger_magnitude(self, other: Self) -> Self {
        Sixteen(op!(_mm512_castsi512_ps(_mm512_max_epu32(
            _mm512_castps_si512(self.0),
            _mm512_castps_si512(_mm512_abs_ps(other.0)),
        ))))
    }
    #[inline(always)]
    fn all_at_most(self, other: Self) -> bool {
        op!(_mm512_cmp_ps_mask::<_CMP_NLE_UQ>(self.0, other.0)) == 0
    }
    #[inline(always)]
    fn any_greater(self, other: Self) -> bool {
        op!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0)) != 0
    }
}
