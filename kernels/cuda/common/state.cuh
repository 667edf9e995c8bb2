// The softmax state (m, S, W) on the device: the only twin of core/src/state.rs.
//
// References are integers in base-2 units, so that the factors of a merge are exact powers of two and a merge rounds
// only in its additions. In memory the empty state is (-inf, 0, anything). Inside a kernel a row without a key has the
// finite reference NO_KEY, so that -inf - m is -inf and a masked score weighs nothing.
#pragma once

#include "math.cuh"

constexpr float HEADROOM = 8.f;  // a score this far above the reference moves it
constexpr double MOST_ROUNDING = 32.;  // the factor that corrects the natural reference is at most e to this power
constexpr float NO_KEY = -3.40282346638528859812e38f;  // -FLT_MAX, an integer

// The reference of a row that does not exist: no score exceeds it.
constexpr float NO_ROW = __builtin_nanf("");

// 2^(from - to) for integers from <= to; zero if `from` is -inf, and for results below 2^-126.
INLINE float factor(float from, float to) {
  const float shift = from - to;
  return shift >= -126.f ? power_of_two(shift) : 0.f;
}

// The merge of an earlier and a later reference, applied to every sum relative to them (ELSA eq. 4, 5).
struct Merge {
  float m, earlier, later;
};

INLINE Merge merge_of(float a, float b) {
  const float m = a > b ? a : b;
  return Merge{m, factor(a, m), factor(b, m)};
}

INLINE float merge_apply(const Merge& x, float a, float b) { return product(a, x.earlier) + product(b, x.later); }

INLINE void merge_into(const Merge& x, f4& a, const f4& b) {
  UNROLL for (int e = 0; e < 4; e++) a[e] = merge_apply(x, a[e], b[e]);
}

INLINE bool state_is_empty(float m, float s) { return m == NEG_INF && s == 0.f; }

// The score above which reference m moves.
INLINE float limit_of(float m) { return m + HEADROOM; }

// Raises reference m to the integer nearest to the largest score `top` of its row, if that exceeds the limit. Returns
// the factor that S and W are multiplied by. A row's references depend only on its own scores.
INLINE float raise(float& m, float top) {
  const float to = top > limit_of(m) ? __builtin_rintf(top) : m, scale = factor(m, to);
  m = to;
  return scale;
}

// The weight of a score relative to reference m: zero below 2^-126. For an attended key that zero is negative, so that a
// positive zero marks a masked key.
INLINE float signed_weight(float x, float m) {
  const float y = exp2_fast(x - m);
  return y == 0.f && x != NEG_INF ? -0.f : y;
}

// Whether a weight marks a masked key.
INLINE bool is_absent(float weight) { return bits_of(weight) == 0; }

// The reference in memory of a state with reference m inside a kernel; `empty`: the state has no keys.
INLINE float stored_reference(float m, bool empty) { return m != NO_KEY ? m : empty ? NEG_INF : 0.f; }

// Log-sum-exp in natural units of a state with reference m (in base-2 units) and sum s.
INLINE float log_sum_exp(float m, float s) {
  if (m == NEG_INF && s == s) return NEG_INF;
  return (float)((double)m * LN2 + natural_log((double)s));
}

// Log-sum-exp in natural units, for the sum s + d.
INLINE float log_sum_exp(float m, float s, float d) {
  if (m == NEG_INF && s == s) return NEG_INF;
  return (float)((double)m * LN2 + natural_log((double)s + (double)d));
}

// The reference in natural units, and the corresponding factor of S and W. The factor corrects the rounding of the
// reference, exactly below 2^30, where f32 values are at most 64 apart.
struct NaturalReference {
  float m;
  double factor;
};

INLINE NaturalReference natural_reference(float m) {
  const bool finite = m - m == 0.f;
  if (!finite) return NaturalReference{m, 1.};
  const float rounded = (float)((double)m * LN2);
  const double rest = __builtin_fma((double)m, LN2, -(double)rounded);
  const double within = rest > MOST_ROUNDING ? MOST_ROUNDING : rest < -MOST_ROUNDING ? -MOST_ROUNDING : rest;
  return NaturalReference{rounded, natural_exp(within)};
}
