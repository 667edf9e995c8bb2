// Gates from their logarithms.
#pragma once

#include "../common/math.cuh"

// What stands for the gate of a logarithm of -inf, which clears the state by selection. No gate is negative.
constexpr float CLEAR = -1.f;

// e^x: 2^n 2^f with |f| <= 1/2, whose series in f32 ends below 2^-27 of the result. The argument is reduced in f64, so that
// the relative error is at most 2^-23 for every finite sum of gates. Below 2^-126 the result is zero.
INLINE float exp_of(double x) {
  const double y = x * 1.4426950408889634;
  if (!(y > -126.)) return x != x ? (float)x : 0.f;
  if (y >= 128.) return __builtin_inff();
  const float n = __builtin_rintf((float)y), f = (float)(y - (double)n);
  float p = 1.5252734e-5f;
  p = __builtin_fmaf(p, f, 1.5403530e-4f);
  p = __builtin_fmaf(p, f, 1.3333558e-3f);
  p = __builtin_fmaf(p, f, 9.6181291e-3f);
  p = __builtin_fmaf(p, f, 5.5504109e-2f);
  p = __builtin_fmaf(p, f, 2.4022651e-1f);
  p = __builtin_fmaf(p, f, 6.9314718e-1f);
  p = __builtin_fmaf(p, f, 1.f);
  return n > 127.f ? p * 2.f * power_of_two(127.f) : p * power_of_two(n);
}

// The gate of a logarithm.
INLINE float gate_of(float g) { return g == NEG_INF ? CLEAR : exp_of((double)g); }
