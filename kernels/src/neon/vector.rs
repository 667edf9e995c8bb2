//! The NEON vector.

use crate::exp2::EXP2_MONIC;
use crate::isa::Neon;
use crate::lanes::{Lanes, MAX_LANES};
use core::arch::aarch64::*;
use elsa_core::state::Number;

/// Vector of four f32 values.
#[derive(Clone, Copy, Debug)]
pub struct Four(float32x4_t);

/// Runs an intrinsic. A vector or token in scope proves that the processor supports it.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: vectors and tokens exist only where the instruction set does (`lanes`, Token).
        unsafe { $e }
    };
}

impl Four {
    #[inline(always)]
    fn isa(self) -> Neon {
        // SAFETY: `self` exists, so the instruction set is present (`lanes`, Token).
        unsafe { Neon::assume() }
    }
}

impl Number for Four {
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Four(op!(vmaxq_f32(self.0, other.0)))
    }
    #[inline(always)]
    fn factor(self, to: Self) -> Self {
        let shift = self.minus(to).0;
        Four(op!({
            let kept = vcgeq_f32(shift, vdupq_n_f32(-126.0));
            let biased = vaddq_s32(vcvtq_s32_f32(shift), vdupq_n_s32(127));
            vreinterpretq_f32_u32(vandq_u32(kept, vreinterpretq_u32_s32(vshlq_n_s32::<23>(biased))))
        }))
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Four(op!(vmulq_f32(self.0, other.0)))
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Four(op!(vaddq_f32(self.0, other.0)))
    }
    #[inline(always)]
    fn nearest(self) -> Self {
        Four(op!(vrndnq_f32(self.0)))
    }
    #[inline(always)]
    fn if_greater(self, than: Self, yes: Self, no: Self) -> Self {
        Four(op!(vbslq_f32(vcgtq_f32(self.0, than.0), yes.0, no.0)))
    }
}

impl Lanes for Four {
    const N: usize = 4;
    type Isa = Neon;
    type Quad = float32x4_t;
    type Wide = [float64x2_t; 2];
    const QUAD_IN_REGISTER: bool = true;
    const UNROLL: usize = 4;
    const MANY_REGISTERS: bool = true;
    const WEIGHT_SCALE: f64 = 1.442_695_507;
    const RAISE: f32 = 1.0;

    #[inline(always)]
    fn splat(_: Neon, x: f32) -> Self {
        Four(op!(vdupq_n_f32(x)))
    }
    #[inline(always)]
    unsafe fn load(_: Neon, p: *const f32) -> Self {
        // SAFETY: `p` is readable for `N` values (clause of `load`); the token proves the instruction set.
        Four(unsafe { vld1q_f32(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(_: Neon, p: *const u16) -> Self {
        // SAFETY: `p` is readable for `N` elements (clause of `load_f16`); the token proves the instruction set.
        Four(unsafe { widen_f16(p) })
    }
    #[inline(always)]
    unsafe fn load_bf16(_: Neon, p: *const u16) -> Self {
        // SAFETY: `p` is readable for `N` elements (clause of `load_bf16`); the token proves the instruction set.
        Four(unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) })
    }
    #[inline(always)]
    unsafe fn load_bool(_: Neon, p: *const u8) -> Self {
        // SAFETY: `p` is readable for `N` bytes (clause of `load_bool`); the token proves the instruction set.
        Four(unsafe {
            let bytes = vcreate_u8(u64::from(p.cast::<u32>().read_unaligned()));
            let words = vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
            let masked = vandq_u32(vceqzq_u32(words), vdupq_n_u32(f32::NEG_INFINITY.to_bits()));
            vreinterpretq_f32_u32(masked)
        })
    }
    #[inline(always)]
    unsafe fn load_bits(_: Neon, p: *const u8) -> u32 {
        const PLACES: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: `p` is readable for 32 bytes (clause of `load_bits`); the token proves the instruction set.
        unsafe {
            let places = vld1q_u8(PLACES.as_ptr());
            let (low, high) = (vld1q_u8(p), vld1q_u8(p.add(16)));
            let low = vandq_u8(vtstq_u8(low, low), places);
            let high = vandq_u8(vtstq_u8(high, high), places);
            // Adjacent bytes are added until each byte contains the bits of eight bytes.
            let two = vpaddq_u8(low, high);
            let four = vpaddq_u8(two, two);
            let eight = vpaddq_u8(four, four);
            vgetq_lane_u32::<0>(vreinterpretq_u32_u8(eight))
        }
    }
    #[inline(always)]
    fn unless(self, _: Neon, bit: u32) -> Self {
        Four(op!({
            let common = vtstq_u32(vreinterpretq_u32_f32(self.0), vdupq_n_u32(bit));
            vreinterpretq_f32_u32(vbicq_u32(vdupq_n_u32(f32::NEG_INFINITY.to_bits()), common))
        }))
    }
    #[inline(always)]
    fn prefetch(_: Neon, p: *const u8) {
        // SAFETY: a prefetch reads nothing that a program sees.
        unsafe {
            core::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: `p` is writable for `N` values (clause of `store`).
        unsafe { vst1q_f32(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: `p` is writable for `N` elements (clause of `store_f16`).
        unsafe { vst1_u16(p, narrow_f16(self.0)) }
    }
    #[inline(always)]
    unsafe fn quad(_: Neon, p: *const f32) -> float32x4_t {
        // SAFETY: `p` is readable for four values (clause of `quad`); the token proves the instruction set.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn two_quads<const ODD: bool>(_: Neon, p: &mut *const f32, stride: usize) -> [float32x4_t; 2] {
        let (low, high);
        // No intrinsic loads two registers and advances the pointer. The registers must be adjacent, so they are
        // named.
        macro_rules! load {
            ($low:tt, $high:tt) => {
                // SAFETY: `p` is readable for eight values (clause of `two_quads`); the token proves the instruction set.
                unsafe {
                    core::arch::asm!(
                        concat!("ld1 {{ ", $low, ".4s, ", $high, ".4s }}, [{p}], {stride}"),
                        p = inout(reg) *p,
                        stride = in(reg) stride * 4,
                        out($low) low,
                        out($high) high,
                        options(pure, readonly, nostack, preserves_flags),
                    )
                }
            };
        }
        if ODD {
            load!("v28", "v29");
        } else {
            load!("v30", "v31");
        }
        [low, high]
    }
    #[inline(always)]
    fn opaque(mut p: *const f32) -> *const f32 {
        // SAFETY: the assembly contains no instruction.
        unsafe {
            core::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags))
        };
        p
    }
    #[inline(always)]
    unsafe fn mul_add_quad<const I: i32>(self, b: Self, q: float32x4_t) -> Self {
        Four(op!(vfmaq_laneq_f32::<I>(self.0, b.0, q)))
    }
    #[inline(always)]
    unsafe fn mul_quad<const I: i32>(self, q: float32x4_t) -> Self {
        Four(op!(vmulq_laneq_f32::<I>(self.0, q)))
    }
    #[inline(always)]
    unsafe fn transpose4(
        _: Neon,
        src: *const f32,
        src_stride: usize,
        factor: f32,
        dst: *mut f32,
        dst_stride: usize,
    ) {
        // SAFETY: both pointers have four rows of four values (clause of `transpose4`).
        unsafe { store_square(transposed(load_square(src, src_stride)), factor, dst, dst_stride) }
    }
    #[inline(always)]
    unsafe fn transpose4_twice(
        _: Neon,
        (src, src_stride): (*const f32, usize),
        factor: f32,
        (dst, dst_stride): (*mut f32, usize),
        apart: [usize; 2],
    ) {
        // Adjacent vectors of the two blocks are loaded or stored by one instruction.
        // SAFETY: each pointer has four rows of four values (clause of `transpose4_twice`).
        unsafe {
            let squares = [load_square(src, src_stride), load_square(src.add(apart[0]), src_stride)];
            let [first, second] = squares.map(|square| transposed(square));
            for r in 0..4 {
                let at = dst.add(r * dst_stride);
                vst1q_f32(at, vmulq_n_f32(first[r], factor));
                vst1q_f32(at.add(apart[1]), vmulq_n_f32(second[r], factor));
            }
        }
    }
    #[inline(always)]
    fn transpose(_: Neon, square: &mut [Self; MAX_LANES]) {
        let rows = transposed([square[0].0, square[1].0, square[2].0, square[3].0]);
        for r in 0..4 {
            square[r].0 = rows[r];
        }
    }
    #[inline(always)]
    fn wide(_: Neon, x: f64) -> Self::Wide {
        op!([vdupq_n_f64(x); 2])
    }
    #[inline(always)]
    fn widened(self) -> Self::Wide {
        op!([vcvt_f64_f32(vget_low_f32(self.0)), vcvt_high_f64_f32(self.0)])
    }
    #[inline(always)]
    fn wide_sum(a: Self::Wide, b: Self::Wide) -> Self::Wide {
        op!([vaddq_f64(a[0], b[0]), vaddq_f64(a[1], b[1])])
    }
    #[inline(always)]
    fn wide_mul_add(a: Self::Wide, x: f64, c: Self::Wide) -> Self::Wide {
        op!([vfmaq_n_f64(c[0], a[0], x), vfmaq_n_f64(c[1], a[1], x)])
    }
    #[inline(always)]
    fn narrowed(_: Neon, x: Self::Wide) -> Self {
        Four(op!(vcvt_high_f32_f64(vcvt_f32_f64(x[0]), x[1])))
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        Four(op!(vsubq_f32(self.0, other.0)))
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        Four(op!(vdivq_f32(self.0, other.0)))
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Four(op!(vfmaq_f32(c.0, self.0, b.0)))
    }
    #[inline(always)]
    fn at_least(self, floor: Self) -> Self {
        // FMAX returns NaN if either operand is NaN.
        Four(op!(vmaxq_f32(floor.0, self.0)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Four(op!(vabsq_f32(self.0)))
    }
    #[inline(always)]
    fn exp2(self) -> Self {
        // FMLA overwrites its addend, so each step of Horner's form would copy a coefficient first. The monic form,
        // evaluated in pairs, needs two copies.
        let isa = self.isa();
        let c = EXP2_MONIC;
        let whole = self.nearest();
        let r = self.minus(whole);
        let r2 = r.times(r);
        let low = r.plus(Self::splat(isa, c[0]));
        let middle = r.mul_add(Self::splat(isa, c[3]), Self::splat(isa, c[2]));
        let high = r.mul_add(Self::splat(isa, c[5]), Self::splat(isa, c[4]));
        let p = r2.mul_add(r2.mul_add(high, middle), low);
        // FCVTZS shifts the integer to the position of the exponent, so that adding the bits multiplies by the power of
        // two. For NaN it returns zero, which leaves the NaN of the polynomial unchanged. A sum below zero saturates at
        // zero, which is the bit pattern of 0.0. Below −256 FCVTZS returns its lowest integer, and the sum is below zero.
        // So it is at −∞, where the polynomial is the default NaN of `−∞ − (−∞)`, whose sign bit is clear.
        let power = op!(vcvtq_n_s32_f32::<23>(whole.0));
        Four(op!(vreinterpretq_f32_u32(vsqaddq_u32(vreinterpretq_u32_f32(p.0), power))))
    }
    #[inline(always)]
    fn power(self) -> Self {
        // FCVTZS shifts the integer to the position of the exponent, and turns NaN into zero.
        Four(op!({
            let power = vcvtq_n_s32_f32::<23>(self.0);
            vreinterpretq_f32_s32(vaddq_s32(power, vdupq_n_s32(127 << 23)))
        }))
    }
    #[inline(always)]
    fn weight(self) -> Self {
        self.exp2()
    }
    #[inline(always)]
    fn if_present(self, yes: Self, no: Self) -> Self {
        Four(op!(vbslq_f32(vceqq_f32(self.0, vdupq_n_f32(f32::NEG_INFINITY)), no.0, yes.0)))
    }
    #[inline(always)]
    fn lane_sum(self) -> f32 {
        op!(vaddvq_f32(self.0))
    }
    #[inline(always)]
    fn lane_sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // Each instruction adds neighbouring lanes, as those of one sum across lanes do.
        let mut sums = [0.0; 4];
        // SAFETY: `sums` has room for a vector, and vectors prove the instruction set.
        unsafe { vst1q_f32(sums.as_mut_ptr(), vpaddq_f32(vpaddq_f32(a.0, b.0), vpaddq_f32(c.0, d.0))) };
        sums
    }
    #[inline(always)]
    fn larger_magnitude(self, other: Self) -> Self {
        Four(op!(vreinterpretq_f32_u32(vmaxq_u32(
            vreinterpretq_u32_f32(self.0),
            vreinterpretq_u32_f32(vabsq_f32(other.0)),
        ))))
    }
    #[inline(always)]
    fn all_at_most(self, other: Self) -> bool {
        op!(vminvq_u32(vcleq_f32(self.0, other.0))) != 0
    }
    #[inline(always)]
    fn any_greater(self, other: Self) -> bool {
        op!(vmaxvq_u32(vcgtq_f32(self.0, other.0))) != 0
    }
}

/// Loads four rows of four values.
///
/// # Safety
/// - Four rows of four values, `stride` apart, are readable at `p`.
#[inline(always)]
unsafe fn load_square(p: *const f32, stride: usize) -> [float32x4_t; 4] {
    // SAFETY: `p` has the four rows (clause).
    unsafe {
        [vld1q_f32(p), vld1q_f32(p.add(stride)), vld1q_f32(p.add(2 * stride)), vld1q_f32(p.add(3 * stride))]
    }
}

/// Writes four rows of four values, multiplied by `factor`.
///
/// # Safety
/// - Four rows of four values, `stride` apart, are writable at `p`.
#[inline(always)]
unsafe fn store_square(rows: [float32x4_t; 4], factor: f32, p: *mut f32, stride: usize) {
    for r in 0..4 {
        // SAFETY: `p` has the four rows (clause).
        unsafe { vst1q_f32(p.add(r * stride), vmulq_n_f32(rows[r], factor)) };
    }
}

/// Returns the low halves of two vectors. The compiler would choose an instruction that overwrites `a`, and copy `a`
/// first.
#[inline(always)]
fn low_halves(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    let halves: float32x4_t;
    // SAFETY: the instruction reads and writes registers only, and vectors prove the instruction set.
    unsafe {
        core::arch::asm!("zip1 {0:v}.2d, {1:v}.2d, {2:v}.2d", out(vreg) halves, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    halves
}

/// Returns the transpose of a square. First every other lane of two rows is taken, then halves: the compiler would
/// store interleaved lanes by instructions that accept no offset.
#[inline(always)]
fn transposed([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    op!({
        let high =
            |x, y| vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
        let (even_ab, odd_ab) = (vtrn1q_f32(a, b), vtrn2q_f32(a, b));
        let (even_cd, odd_cd) = (vtrn1q_f32(c, d), vtrn2q_f32(c, d));
        [
            low_halves(even_ab, even_cd),
            low_halves(odd_ab, odd_cd),
            high(even_ab, even_cd),
            high(odd_ab, odd_cd),
        ]
    })
}

/// Converts four f16 elements to f32. FCVTL is part of ARMv8.0, but its intrinsic requires f16 arithmetic.
///
/// # Safety
/// - `p` is readable for four elements.
#[inline(always)]
unsafe fn widen_f16(p: *const u16) -> float32x4_t {
    // SAFETY: `p` is readable for four elements; the instruction reads and writes registers only.
    unsafe {
        let narrow: uint16x4_t = vld1_u16(p);
        let wide: float32x4_t;
        core::arch::asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) narrow,
            options(pure, nomem, nostack, preserves_flags));
        wide
    }
}

/// Converts four f32 values to f16. FCVTN is part of ARMv8.0. It uses the current rounding mode, which by default
/// rounds to nearest.
///
/// # Safety
/// - The processor has the instruction set.
#[inline(always)]
unsafe fn narrow_f16(wide: float32x4_t) -> uint16x4_t {
    let narrow: uint16x4_t;
    // SAFETY: the instruction reads and writes registers only.
    unsafe {
        core::arch::asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) narrow, in(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
    }
    narrow
}
