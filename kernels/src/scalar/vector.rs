//! The scalar vector.

use crate::exp2::{EXPONENT_MAGIC, ZERO_AT, exp2_horner};
use crate::isa::Scalar;
use crate::lanes::{Lanes, MAX_LANES};
use elsa_core::state::Number;
use half::{bf16, f16};

/// Vector of one f32 value.
#[derive(Clone, Copy, Debug)]
pub struct One(f32);

impl Number for One {
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        One(self.0.larger(other.0))
    }
    #[inline(always)]
    fn factor(self, to: Self) -> Self {
        One(self.0.factor(to.0))
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        One(self.0 * other.0)
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        One(self.0 + other.0)
    }
    #[inline(always)]
    fn nearest(self) -> Self {
        // Ties are rounded to the even neighbour, as in the vector instances. Large values are already integers.
        const MAGIC: f32 = 12_582_912.0;
        if self.abs().0 < 4_194_304.0 { One((self.0 + MAGIC) - MAGIC) } else { self }
    }
    #[inline(always)]
    fn if_greater(self, than: Self, yes: Self, no: Self) -> Self {
        if self.0 > than.0 { yes } else { no }
    }
}

impl Lanes for One {
    const N: usize = 1;
    type Isa = Scalar;
    type Quad = *const f32;
    type Wide = f64;
    const QUAD_IN_REGISTER: bool = false;
    const UNROLL: usize = 1;
    const MANY_REGISTERS: bool = false;
    const WEIGHT_SCALE: f64 = 1.000_000_057;
    const RAISE: f32 = 1.0;

    #[inline(always)]
    fn splat(_: Scalar, x: f32) -> Self {
        One(x)
    }
    #[inline(always)]
    unsafe fn load(_: Scalar, p: *const f32) -> Self {
        // SAFETY: `p` is readable for one value (clause of `load`).
        One(unsafe { p.read() })
    }
    #[inline(always)]
    unsafe fn load_f16(_: Scalar, p: *const u16) -> Self {
        // SAFETY: `p` is readable for one element (clause of `load_f16`).
        One(f16::from_bits(unsafe { p.read() }).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(_: Scalar, p: *const u16) -> Self {
        // SAFETY: `p` is readable for one element (clause of `load_bf16`).
        One(bf16::from_bits(unsafe { p.read() }).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bool(_: Scalar, p: *const u8) -> Self {
        // SAFETY: `p` is readable for one byte (clause of `load_bool`).
        One(if unsafe { p.read() } == 0 { f32::NEG_INFINITY } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn load_bits(_: Scalar, p: *const u8) -> u32 {
        let mut bits = 0;
        for i in 0..32 {
            // SAFETY: `p` is readable for 32 bytes (clause of `load_bits`).
            bits |= u32::from(unsafe { p.add(i).read() } != 0) << i;
        }
        bits
    }
    #[inline(always)]
    fn unless(self, _: Scalar, bit: u32) -> Self {
        One(if self.0.to_bits() & bit == 0 { f32::NEG_INFINITY } else { 0.0 })
    }
    #[inline(always)]
    fn prefetch(_: Scalar, _: *const u8) {}
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: `p` is writable for one value (clause of `store`).
        unsafe { p.write(self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: `p` is writable for `N` elements (clause of `store_f16`).
        unsafe { p.write(f16::from_f32(self.0).to_bits()) }
    }
    #[inline(always)]
    unsafe fn quad(_: Scalar, p: *const f32) -> *const f32 {
        p
    }
    #[inline(always)]
    unsafe fn mul_add_quad<const I: i32>(self, b: Self, q: *const f32) -> Self {
        // SAFETY: scalar `I` is readable at `q` (clauses of `mul_add_quad`).
        One(self.0 + b.0 * unsafe { q.add(I as usize).read() })
    }
    #[inline(always)]
    unsafe fn mul_quad<const I: i32>(self, q: *const f32) -> Self {
        // SAFETY: scalar `I` is readable at `q` (clauses of `mul_quad`).
        One(self.0 * unsafe { q.add(I as usize).read() })
    }
    #[inline(always)]
    unsafe fn transpose4(
        _: Scalar,
        src: *const f32,
        src_stride: usize,
        factor: f32,
        dst: *mut f32,
        dst_stride: usize,
    ) {
        for i in 0..4 {
            for j in 0..4 {
                // SAFETY: both pointers have four rows of four values (clause of `transpose4`).
                unsafe { dst.add(j * dst_stride + i).write(src.add(i * src_stride + j).read() * factor) }
            }
        }
    }
    #[inline(always)]
    fn transpose(_: Scalar, _: &mut [Self; MAX_LANES]) {}
    #[inline(always)]
    fn wide(_: Scalar, x: f64) -> Self::Wide {
        x
    }
    #[inline(always)]
    fn widened(self) -> Self::Wide {
        f64::from(self.0)
    }
    #[inline(always)]
    fn wide_sum(a: Self::Wide, b: Self::Wide) -> Self::Wide {
        a + b
    }
    #[inline(always)]
    fn wide_mul_add(a: Self::Wide, x: f64, c: Self::Wide) -> Self::Wide {
        a * x + c
    }
    #[inline(always)]
    fn narrowed(_: Scalar, x: Self::Wide) -> Self {
        One(x as f32)
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        One(self.0 - other.0)
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        One(self.0 / other.0)
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        One(self.0 * b.0 + c.0)
    }
    #[inline(always)]
    fn at_least(self, floor: Self) -> Self {
        One(if floor.0 > self.0 { floor.0 } else { self.0 })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        One(f32::from_bits(self.0.to_bits() & 0x7fff_ffff))
    }
    #[inline(always)]
    fn exp2(self) -> Self {
        exp2_horner!(self, Scalar::new(), |t: One| One(f32::from_bits(t.0.to_bits() << 23)))
    }
    #[inline(always)]
    fn power(self) -> Self {
        One(f32::from_bits((self.0 + EXPONENT_MAGIC).to_bits() << 23))
    }
    #[inline(always)]
    fn weight(self) -> Self {
        self.at_least(One(ZERO_AT)).exp2()
    }
    #[inline(always)]
    fn if_present(self, yes: Self, no: Self) -> Self {
        if self.0 == f32::NEG_INFINITY { no } else { yes }
    }
    #[inline(always)]
    fn lane_sum(self) -> f32 {
        self.0
    }
    #[inline(always)]
    fn larger_magnitude(self, other: Self) -> Self {
        One(f32::from_bits(self.0.to_bits().max(other.abs().0.to_bits())))
    }
    #[inline(always)]
    fn all_at_most(self, other: Self) -> bool {
        self.0 <= other.0
    }
    #[inline(always)]
    fn any_greater(self, other: Self) -> bool {
        self.0 > other.0
    }
}
