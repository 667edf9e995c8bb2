// The softmax state (m, S, W) on the device: the twin of core/src/state.rs, and the only one.
//
// References are whole numbers in units of log 2, so that the factors of a merge are exact powers of two and a
// merge rounds in its additions alone. In memory the empty state is (-inf, 0, anything). Inside a kernel a row
// without a key has the finite reference NO_KEY, so that -inf - m is -inf, and a masked score weighs nothing.
#pragma once

#include "device.cuh"

constexpr float HEADROOM = 8.f;         // a score this far above the reference moves it
constexpr float WEIGHT_FLOOR = -100.f;  // an attended key weighs at least two to this power
constexpr float LOG2E = 1.44269504088896340736f;
constexpr double LN2 = 0.69314718055994530942;
constexpr float NEG_INF = -__builtin_inff();
constexpr float NO_KEY = -3.40282346638528859812e38f;  // -FLT_MAX, a whole number

// 2^n for a whole n in -126 ..= 127: beside 3 * 2^22 a whole number stands in the low bits.
INLINE float power_of_two(float n) { return float_of_bits(bits_of(n + (12582912.f + 127.f)) << 23); }

// 2^(from - to) for whole numbers from <= to; zero where `from` is -inf, and below 2^-126.
INLINE float factor(float from, float to) {
  const float shift = from - to;
  return shift >= -126.f ? power_of_two(shift) : 0.f;
}

// The merge of an earlier and a later reference, to be applied to every sum that hangs on them (ELSA eq. 4, 5).
struct Merge {
  float m, earlier, later;
};

INLINE Merge merge_of(float a, float b) {
  const float m = a > b ? a : b;
  return Merge{m, factor(a, m), factor(b, m)};
}

INLINE float merge_apply(const Merge& x, float a, float b) { return product(a, x.earlier) + product(b, x.later); }

INLINE bool state_is_empty(float m, float s) { return m == NEG_INF && s == 0.f; }

// ln x. x = 2^k f with f in [sqrt(1/2), sqrt 2), and ln f = 2 atanh t with t = (f - 1) / (f + 1): the series in
// t^2 <= 0.0295 ends below 1e-16 of the result. A line within 1.5 % of 1 / (f + 1) and four steps of Newton's take
// the place of the division, which on a device is a function with registers of its own.
INLINE double natural_log(double x) {
  if (!(x > 0.)) return x == 0. ? -__builtin_inf() : __builtin_nan("");
  if (x == __builtin_inf()) return x;
  const unsigned long long b = bits_of_double(x);  // never subnormal: x comes from a single
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

// Log-sum-exp in natural units of a state with reference m (in units of log 2) and sum s.
INLINE float log_sum_exp(float m, float s) {
  if (m == NEG_INF && s == s) return NEG_INF;
  return (float)((double)m * LN2 + natural_log((double)s));
}

// The reference in natural units, and the factor that S and W take on for it.
struct NaturalReference {
  float m;
  double factor;
};

INLINE NaturalReference natural_reference(float m) {
  const bool finite = m - m == 0.f;
  if (!finite) return NaturalReference{m, 1.};
  const double exact = (double)m * LN2;
  const float rounded = (float)exact;
  return NaturalReference{rounded, natural_exp(exact - (double)rounded)};
}
