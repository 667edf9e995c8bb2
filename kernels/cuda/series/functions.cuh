// Exponential, softplus and silu over the whole range of f32, and flushing to zero. kernels/src/series/functions.rs explains the
// formulas of softplus and silu. Powers of two and reciprocals are those of the GPU.
#pragma once

#include "../common/math.cuh"

// Logarithms below this one count as the logarithm of zero.
constexpr float LEAST_LOG = -86.9f;

// x if the magnitude of `by` is at least the smallest normal number or NaN, else zero.
INLINE float kept(float by, float x) { return __builtin_fabsf(by) < 0x1p-126f ? 0.f : x; }

// 2^t. Near zero, a polynomial is exact up to its last rounding. A GPU's own powers are too small by 3e-8 on average (measured on an
// H200), which would add up in the states of gates near one.
INLINE float power_of(float t, float leading) {
  float p = __builtin_fmaf(leading, t, 0.05552206560969353f);
  p = __builtin_fmaf(p, t, 0.24022649228572845f);
  p = __builtin_fmaf(p, t, 0.6931471824645996f);
  p = __builtin_fmaf(p, t, 1.f);
  // A call in the conditional expression would become a branch, and a loop a row of short blocks.
  const float y = exp2_fast(t);
  return __builtin_fabsf(t) < 0.125f ? p : y;
}

INLINE float power_of(float t) { return power_of(t, 0.009621786884963512f); }
// The leading coefficient in a register, for loops that would otherwise load it for each power.
INLINE float power_leading() { return float_of_bits(opaque(0x3c1da4b3)); }

// e^x for x of at most MOST_LOG: 2^t for t = x log2 e, and a correction for the rounding of t.
INLINE float exp_of(float x) {
  const float within = x < LEAST_LOG ? LEAST_LOG : x;
  const float t = product(within, LOG2E);
  const float rest = __builtin_fmaf(within, 1.925963033e-8f, __builtin_fmaf(within, LOG2E, -t));
  const float y = power_of(t);
  return x < LEAST_LOG ? 0.f : __builtin_fmaf(y, product(rest, 0.69314718f), y);
}

// Largest logarithm whose e^x is certainly an f32 number.
constexpr float MOST_LOG = 88.7f;

// Returns the factor e^x of a logarithm x. Above MOST_LOG, where an infinite factor could create NaN, the result is the negative
// square root of the factor, which is then applied twice. A logarithm of infinity gives NaN.
INLINE float gate_of(float x) {
  const bool beyond = x > MOST_LOG;
  const float y = exp_of(!beyond ? x : x < 2.f * MOST_LOG ? 0.5f * x : MOST_LOG);
  return beyond ? (x - x) - y : y;
}
// Returns the factor of a gate without its sign, after applying it to h for the first time if it is applied twice.
INLINE float grown_of(float gate, float& h) {
  if (RARELY(gate < 0.f)) {
    gate = -gate;
    h = product(gate, h);
  }
  return gate;
}

INLINE float softplus_of(float x) {
  const float v = exp_of(-__builtin_fabsf(x));
  const float z = product(v, reciprocal_fast(v + 2.f)), square = product(z, z);
  float p = 0.11612164f;
  p = __builtin_fmaf(p, square, 0.10853288f);
  p = __builtin_fmaf(p, square, 0.14296178f);
  p = __builtin_fmaf(p, square, 0.19999853f);
  p = __builtin_fmaf(p, square, 0.33333334f);
  p = __builtin_fmaf(p, square, 1.f);
  return __builtin_fmaf(z + z, p, x > 0.f ? x : 0.f);
}

// softplus x as a time step. A time step that underflows is still greater than zero, so that its product with an infinite rate
// is infinite.
INLINE float time_step_of(float x) {
  const float y = softplus_of(x);
  return y == 0.f && x > NEG_INF ? 0x1p-149f : y;
}

INLINE float silu_of(float x) {
  const float v = exp_of(-__builtin_fabsf(x));
  return product(product(x, x < 0.f ? v : 1.f), reciprocal_fast(v + 1.f));
}

// a h + b, flushed to zero as the recurrence requires.
INLINE float step_of(float a, float h, float b) { return fma_flushed(a, kept(a, h), b); }

// The product of the factors of earlier tokens and this one.
INLINE float factor_of(float a, float all) { return fma_flushed(a, kept(a, all), 0.f); }

INLINE bool is_finite(float x) { return __builtin_fabsf(x) < __builtin_inff(); }
