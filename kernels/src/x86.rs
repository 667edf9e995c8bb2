//! Code shared by AVX2 and AVX-512.

use core::arch::x86_64::*;

/// Writes the transpose of the 4×4 block at `src`, times `factor`, to `dst`. Uses only instructions that every x86-64
/// processor has.
///
/// # Safety
/// - Four rows of four values are readable at `src` and writable at `dst`.
#[inline(always)]
pub(crate) unsafe fn transpose4(
    src: *const f32,
    src_stride: usize,
    factor: f32,
    dst: *mut f32,
    dst_stride: usize,
) {
    // SAFETY: the rows are readable and writable by this function's clause; SSE is part of x86-64.
    unsafe {
        let a = _mm_loadu_ps(src);
        let b = _mm_loadu_ps(src.add(src_stride));
        let c = _mm_loadu_ps(src.add(2 * src_stride));
        let d = _mm_loadu_ps(src.add(3 * src_stride));
        let (ab_low, ab_high) = (_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        let by = _mm_set1_ps(factor);
        _mm_storeu_ps(dst, _mm_mul_ps(_mm_movelh_ps(ab_low, cd_low), by));
        _mm_storeu_ps(dst.add(dst_stride), _mm_mul_ps(_mm_movehl_ps(cd_low, ab_low), by));
        _mm_storeu_ps(dst.add(2 * dst_stride), _mm_mul_ps(_mm_movelh_ps(ab_high, cd_high), by));
        _mm_storeu_ps(dst.add(3 * dst_stride), _mm_mul_ps(_mm_movehl_ps(cd_high, ab_high), by));
    }
}

/// Returns the sum of the lanes of each vector: `(x_0 + x_2) + (x_1 + x_3)`. Uses only instructions that every x86-64
/// processor has.
#[inline(always)]
pub(crate) fn sums_of_four([a, b, c, d]: [__m128; 4]) -> [f32; 4] {
    let mut sums = [0.0; 4];
    // SAFETY: SSE is part of x86-64, and `sums` has room for a vector.
    unsafe {
        let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
        let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
        let (even, odd) = (_mm_shuffle_ps::<0b10_00_10_00>(ab, cd), _mm_shuffle_ps::<0b11_01_11_01>(ab, cd));
        _mm_storeu_ps(sums.as_mut_ptr(), _mm_add_ps(even, odd));
    }
    sums
}

/// Returns one bit for each of the 32 bytes at `p`. A bit is set if its byte is not zero.
///
/// # Safety
/// - `p` is readable for 32 bytes.
/// - The processor has AVX2.
#[inline(always)]
pub(crate) unsafe fn bits(p: *const u8) -> u32 {
    // SAFETY: 32 bytes are readable, and the processor has AVX2 (both clauses).
    unsafe {
        let zero = _mm256_cmpeq_epi8(_mm256_loadu_si256(p.cast()), _mm256_setzero_si256());
        !(_mm256_movemask_epi8(zero) as u32)
    }
}
