// Elementary functions that a device without NVIDIA's headers lacks.
#pragma once

#include "device.cuh"

constexpr float LOG2E = 1.44269504088896340736f;
constexpr double LN2 = 0.69314718055994530942;
constexpr float NEG_INF = -__builtin_inff();

// 2^n for an integer n in -126 ..= 127. Adding 3 * 2^22 moves the integer to the low bits.
INLINE float power_of_two(float n) { return float_of_bits(bits_of(n + (12582912.f + 127.f)) << 23); }

// tanh x. Below 0.6 a polynomial (minimax for (tanh x - x) / x^3 in x^2) keeps the relative error of small
// arguments; beyond, 1 - 2 / (1 + e^(2x)) loses no precision.
INLINE float tanh_of(float x) {
  const float a = __builtin_fabsf(x);
  if (a < 0.6f) {
    const float u = x * x;
    float p = -0.005894395522773266f;
    p = __builtin_fmaf(p, u, 0.020795369520783424f);
    p = __builtin_fmaf(p, u, -0.05378366634249687f);
    p = __builtin_fmaf(p, u, 0.13331922888755798f);
    p = __builtin_fmaf(p, u, -0.33333298563957214f);
    return __builtin_fmaf(p * u, x, x);
  }
  const float y = 1.f - 2.f / (1.f + exp2_fast(2.f * LOG2E * a));
  return x != x ? x : x < 0.f ? -y : y;
}

// ln x. x = 2^k f with f in [sqrt(1/2), sqrt 2), and ln f = 2 atanh t with t = (f - 1) / (f + 1); the series in
// t^2 <= 0.0295 stops below 1e-16 of the result. A line within 1.5 % of 1 / (f + 1) and four Newton steps
// replace the division, which on a device is a function call with its own registers.
INLINE double natural_log(double x) {
  if (!(x > 0.)) return x == 0. ? -__builtin_inf() : __builtin_nan("");
  if (x == __builtin_inf()) return x;
  const unsigned long long b = bits_of_double(x);  // never subnormal: x comes from an f32 value
  int k = (int)(b >> 52) - 1023;
  double f = double_of_bits((b & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (f > 1.4142135623730951) {
    f *= 0.5;
    k++;
  }
  double r = 0.98505 - 0.23901 * (f + 1.);
  NO_UNROLL for (int i = 0; i < 4; i++) r += r * (1. - r * (f + 1.));
  const double t = (f - 1.) * r, u = t * t;
  double series = 0.;
  UNROLL for (int i = 21; i >= 1; i -= 2) series = series * u + 1. / i;
  return k * LN2 + 2. * t * series;
}

// e^x for |x| <= 700: e^x = 2^k e^r with |r| <= ln(2) / 2, and the series of e^r.
INLINE double natural_exp(double x) {
  if (x != x) return x;
  if (x > 700.) return __builtin_inf();
  if (x < -700.) return 0.;
  const double y = x * 1.44269504088896340736;
  const int k = (int)(y + (y < 0. ? -0.5 : 0.5));
  const double r = x - k * LN2;
  double series = 1.;
  UNROLL for (int i = 14; i >= 1; i--) series = 1. + r * series * (1. / i);
  return series * double_of_bits((unsigned long long)(k + 1023) << 52);
}
