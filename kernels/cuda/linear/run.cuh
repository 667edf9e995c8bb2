// Runs of tokens with a gate per dim: a thread has a dim of a run, and sums the logarithms of its gates in units (exp.cuh).
#pragma once

#include "exp.cuh"
#include "place.cuh"

// Bound on the sums of the logarithms of a run of tokens, with a gate per dim; e^69 < 2^100.
constexpr float MOST_RUN = 69.f;
constexpr int MOST_UNITS = (int)(69. * 1.4426950408889634 * 16777216.);

// Elements `dim` of the rows of COUNT tokens; zero past the last token and the last dim.
template <int COUNT> INLINE void load_run(float (&to)[COUNT], const Rows& from, int position, int tokens, int dim) {
  const Address at = row_at(from, position) + dim * element_size(from.dtype);
  const int count = dim < from.dim ? tokens : 0;
  UNROLL for (int t = 0; t < COUNT; t++) to[t] = 0.f;
  if (from.dtype == TYPE_F32) {
    UNROLL for (int t = 0; t < COUNT; t++)
      if (t < count) to[t] = load_f32(at + t * from.step);
  } else {
    UNROLL for (int t = 0; t < COUNT; t++)
      if (t < count) to[t] = widen(load_u16(at + t * from.step), from.dtype);
  }
}

// Moves a run on by four tokens. Loops of four tokens have a quarter of the code: a block executes it once, and would wait for it.
template <int COUNT> INLINE void turn(float (&run)[COUNT]) {
  float first[4];
  UNROLL for (int t = 0; t < 4; t++) first[t] = run[t];
  UNROLL for (int t = 4; t < COUNT; t++) run[t - 4] = run[t];
  UNROLL for (int t = 0; t < 4; t++) run[COUNT - 4 + t] = first[t];
}

INLINE int units_in(float x) { return (int)bits_of(x); }
INLINE float of_units(int units) { return float_of_bits((unsigned)units); }

// The sum of the logarithms of consecutive tokens, in units.
struct UnitSum {
  float rest, about;
  unsigned units;
  bool good;  // whether all logarithms and sums are within their bounds

  INLINE UnitSum() : rest(0.f), about(0.f), units(0), good(true) {}
  INLINE int add(float g) {
    about += g;
    const bool small = __builtin_fabsf(g) <= MOST_RUN;
    good = good && small && __builtin_fabsf(about) <= MOST_RUN;
    units += (unsigned)units_of(small ? g : 0.f, rest);
    return (int)units;
  }
};

// Turns the logarithms of COUNT tokens into their sums, units as bits. Returns whether all logarithms and sums are within their
// bounds.
template <int COUNT> INLINE bool sum_run(float (&logs)[COUNT]) {
  UnitSum sum;
  NO_UNROLL for (int t0 = 0; t0 < COUNT; t0 += 4) {
    UNROLL for (int t = 0; t < 4; t++) logs[t] = of_units(sum.add(logs[t]));
    turn(logs);
  }
  return sum.good;
}
