// The argument of the kernels of selective scans: the device twin of kernels/src/cuda/series/args.rs.
#pragma once

#include "call.cuh"
#include "functions.cuh"

struct Selective {
  Divisor by_tiles, by_tiles_of_group, by_b, by_c;  // precomputed divisions by the fields of these names
  int tiles, tiles_of_group;  // tiles of a block's channels; tiles of a group of channels that share all coefficients
  int group, b_group;         // channels of a group; channels that share a b
  int c_group, lanes;         // channels that share a c; lanes of a channel, as a power of two
  int channels, states;
  int tokens, batch;
  int flags, unused;
  Parts parts;
  Series u, delta, z, out;
  Series b, c;                  // with B_OF_CHANNEL and C_OF_CHANNEL: data and type
  Address a, skip, bias;        // f32 [channel][state], [channel], [channel]; the last two are zero if absent
  Address past, present;        // f32 [batch][channel][state]; zero if absent
  Address maps;                 // f32 [2][batch][part][channel][NUMBERS << lanes], as in a recurrence
};

static_assert(__builtin_offsetof(Selective, parts) == 80 && __builtin_offsetof(Selective, u) == 104, "");
static_assert(__builtin_offsetof(Selective, a) == 440 && sizeof(Selective) == 488, "");

// The exponents of LEAST_LOG and MOST_LOG.
constexpr float LEAST_EXPONENT = -125.37f, MOST_EXPONENT = 127.96f;

// Applies a token to an element of a state, and its gate to the product of all gates. `delta` is the time step, `a`
// the rate and `by` the addend. A gate of zero clears by selection. A gate that overflows is applied as two factors.
INLINE void careful_step(float delta, float a, float by, float& x, float& all) {
  float exponent = product(product(delta, a), LOG2E);
  if (exponent > MOST_EXPONENT) {
    // The square root of the gate, applied here and below. An infinite exponent gives NaN.
    const float half = exponent < 2.f * MOST_EXPONENT ? 0.5f * exponent : MOST_EXPONENT;
    all = product(exp2_fast(half), all);
    x = product(exp2_fast(half), x);
    exponent = half + (exponent - exponent);
  }
  const float gate = power_of(exponent);
  all = fma_flushed(gate, all, 0.f);
  x = fma_flushed(gate, exponent < LEAST_EXPONENT ? 0.f : x, by);
}
