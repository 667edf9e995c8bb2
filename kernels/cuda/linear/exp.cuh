// Gates from their logarithms.
#pragma once

#include "../common/math.cuh"

// Marks the gate of a logarithm of -inf, which clears the state by selection.
constexpr float CLEAR = -1.f;

// 2^f for |f| <= 1/2: the series stops below 2^-27 of the result.
INLINE float power_within(float f) {
  float p = 1.5252734e-5f;
  p = __builtin_fmaf(p, f, 1.5403530e-4f);
  p = __builtin_fmaf(p, f, 1.3333558e-3f);
  p = __builtin_fmaf(p, f, 9.6181291e-3f);
  p = __builtin_fmaf(p, f, 5.5504109e-2f);
  p = __builtin_fmaf(p, f, 2.4022651e-1f);
  p = __builtin_fmaf(p, f, 6.9314718e-1f);
  return __builtin_fmaf(p, f, 1.f);
}

// e^x: 2^n 2^f. The argument is reduced in f64, so that the relative error is at most 2^-23 for every finite sum of gates. Below
// 2^-126 the result is zero.
INLINE float exp_of(double x) {
  const double y = x * 1.4426950408889634;
  if (!(y > -126.)) return x != x ? (float)x : 0.f;
  if (y >= 128.) return __builtin_inff();
  const float n = __builtin_rintf((float)y), f = (float)(y - (double)n);
  const float p = power_within(f);
  return n > 127.f ? p * 2.f * power_of_two(127.f) : p * power_of_two(n);
}

// Logarithms to base 2 in units of 2^-24: sums of them are exact, without f64, which is slow on most devices. units_of returns
// those of g, the natural logarithm of a gate. The remainder goes into `rest`, and with it into the units of the next gate, so that
// every sum since the first gate is rounded once, to half a unit.
constexpr float UNITS = 0x1.715476p+24f, UNITS_LOW = 0.32312575f;

INLINE int units_of(float g, float& rest) {
  const float units = g * UNITS, low = __builtin_fmaf(g, UNITS_LOW, __builtin_fmaf(g, UNITS, -units));
  const float whole = __builtin_rintf(units);
  rest += units - whole + low;
  const float more = __builtin_rintf(rest);
  rest -= more;
  return (int)whole + (int)more;
}

// The power of a sum of units; it must be a normal number. The relative error is at most 2^-23.
INLINE float power_of_units(int sum) {
  const int n = (int)((unsigned)sum + (1u << 23)) >> 24;
  const float f = (float)(int)((unsigned)sum - ((unsigned)n << 24)) * 0x1p-24f;
  const float p = power_within(f);
  return float_of_bits(bits_of(p) + ((unsigned)n << 23));
}

// The same for a sum that may be small: below 2^-126 the power is zero.
INLINE float power_of_units(long long sum) {
  const long long most = 126ll << 24;
  return sum < -most ? 0.f : power_of_units((int)(sum < most ? sum : most));
}

// Largest logarithm whose e^x is certainly an f32 number. At twice this logarithm, even the smallest normal number would become
// infinite.
constexpr float MOST_LOG = 88.7f;

// The gate of a logarithm. If the gate is beyond f32, the gate of half the logarithm, as a negative number, is returned and is
// applied to the state twice. The gate of infinity is infinite.
INLINE float gate_of(float g) {
  const bool beyond = g > MOST_LOG && g < __builtin_inff();
  const float half = g < 2.f * MOST_LOG ? 0.5f * g : MOST_LOG, gate = exp_of((double)(beyond ? half : g));
  return g == NEG_INF ? CLEAR : beyond ? -gate : gate;
}

// Like gate_of, for a sum of logarithms that does not clear.
INLINE float gate_of_sum(double sum) {
  const bool beyond = sum > (double)MOST_LOG && sum < __builtin_inf();
  const float gate = exp_of(!beyond ? sum : sum < 2. * MOST_LOG ? 0.5 * sum : (double)MOST_LOG);
  return beyond ? -gate : gate;
}

// x times a gate.
template <class V> INLINE V gated(const V& x, float gate) {
  if (RARELY(gate < 0.f)) return gate == CLEAR ? V{} : x * gate * gate;
  return x * gate;
}

// e^sum x + b for a sum of logarithms; the power is applied to x in steps.
INLINE float grown(double sum, float x, float b) {
  const bool beyond = sum > (double)MOST_LOG && sum < __builtin_inf();
  const double half = sum < 2. * MOST_LOG ? 0.5 * sum : (double)MOST_LOG;
  const float power = exp_of(beyond ? half : sum);
  return __builtin_fmaf(power, beyond ? power * x : x, b);
}

// Adds a gate's logarithm to a sum. A logarithm of -inf clears everything before it, NaN included.
INLINE double sum_of_logs(double sum, double g) {
  return sum == -__builtin_inf() || g == -__builtin_inf() ? -__builtin_inf() : sum + g;
}
