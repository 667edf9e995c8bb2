// Rows of tensors in groups of four elements, raw from memory or converted to f32.
#pragma once

#include "device.cuh"

// Four elements in transit from memory to shared memory: f32 values, or raw 16-bit patterns.
template <bool B16> struct Raw;
template <> struct Raw<false> { typedef f4 Type; };
template <> struct Raw<true> { typedef u2 Type; };

INLINE f4 zero4() { return f4{0.f, 0.f, 0.f, 0.f}; }
INLINE void clear(f4& x) { x = zero4(); }
INLINE void clear(u2& x) { x = u2{0, 0}; }
INLINE void load4(f4& x, Address a) { x = load_f4(a); }
INLINE void load4(u2& x, Address a) { x = load_u2(a); }
INLINE f4 to_f32(f4 x, int) { return x; }
INLINE f4 to_f32(u2 x, int dtype) {
  return f4{widen(x[0] & 0xffff, dtype), widen(x[0] >> 16, dtype), widen(x[1] & 0xffff, dtype), widen(x[1] >> 16, dtype)};
}

// Loads elements first .. first + 3 of a row of `dim`, zero past its end. `vec4`: the row may be read four at a
// time.
INLINE void load4_checked(f4& x, Address row, int first, int dim, bool vec4) {
  clear(x);
  if (vec4) {
    if (first < dim) x = load_f4(row + first * 4);
  } else {
    UNROLL for (int e = 0; e < 4; e++)
      if (first + e < dim) x[e] = load_f32(row + (first + e) * 4);
  }
}
INLINE void load4_checked(u2& x, Address row, int first, int dim, bool vec4) {
  clear(x);
  if (vec4) {
    if (first < dim) x = load_u2(row + first * 2);
  } else {
    UNROLL for (int e = 0; e < 4; e++)
      if (first + e < dim) x[e >> 1] |= load_u16(row + (first + e) * 2) << (16 * (e & 1));
  }
}

// Four words as a vector for shared memory.
INLINE f4 words4(unsigned a, unsigned b, unsigned c, unsigned d) {
  return f4{float_of_bits(a), float_of_bits(b), float_of_bits(c), float_of_bits(d)};
}
