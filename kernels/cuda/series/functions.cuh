// Exponential, softplus and silu over the whole range of f32, and flushing to zero: the operations of
// kernels/src/series/functions.rs, in their order. The formulas are explained there.
#pragma once

#include "../common/math.cuh"

// Logarithms below this one count as the logarithm of zero.
constexpr float LEAST_LOG = -86.9f;

// x if the magnitude of `by` is at least the smallest normal number or NaN, else zero.
INLINE float kept(float by, float x) { return __builtin_fabsf(by) < 0x1p-126f ? 0.f : x; }

INLINE float exp_of(float x) {
  float within = x > 89.f ? 89.f : x;
  within = within < LEAST_LOG ? LEAST_LOG : within;
  const float n = __builtin_rintf(product(within, LOG2E));
  float s = __builtin_fmaf(n, -0.69314575f, within);
  s = __builtin_fmaf(n, -1.4286068e-6f, s);
  float p = 0.0027852368f;
  p = __builtin_fmaf(p, s, 0.016726358f);
  p = __builtin_fmaf(p, s, 0.08333311f);
  p = __builtin_fmaf(p, s, 0.33333153f);
  p = __builtin_fmaf(p, s, 1.f);
  p = __builtin_fmaf(p, s, 2.f);
  p = __builtin_fmaf(p, s, 2.f);
  const float y = product(p, power_of_two(n - 1.f));
  return x < LEAST_LOG ? 0.f : y;
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
  const float z = v / (v + 2.f), square = product(z, z);
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
  return product(x, x < 0.f ? v : 1.f) / (v + 1.f);
}

// a h + b, flushed to zero as the recurrence requires.
INLINE float step_of(float a, float h, float b) {
  const float next = __builtin_fmaf(a, kept(a, h), b);
  return kept(next, next);
}

// The product of the factors of earlier tokens and this one.
INLINE float factor_of(float a, float all) {
  const float next = product(a, kept(a, all));
  return kept(next, next);
}

INLINE bool is_finite(float x) { return __builtin_fabsf(x) < __builtin_inff(); }
