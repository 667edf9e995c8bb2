// Parts of s = Q K': the products of a word of queries and keys.
#pragma once

#include "tile.cuh"

// F32 and WIDENED: both operands are f32 values.
template <class S> INLINE void Tiles<S>::multiply_f32(const f4 (&qa)[TM / 4], const f4 (&kb)[TN / 4]) {
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) s[i][j] = __builtin_fmaf(qa[i >> 2][i & 3], kb[j >> 2][j & 3], s[i][j]);
}

// PAIRED in edges: even dims, then odd ones, widened.
template <class S> INLINE void Tiles<S>::multiply_widened(const f4 (&qa)[TM / 4], const f4 (&kb)[TN / 4]) {
  NO_UNROLL for (int shift = 0; shift < 32; shift += 16) {
    float k[TN];
    UNROLL for (int j = 0; j < TN; j++) k[j] = f16_to_float(bits_of(kb[j >> 2][j & 3]) >> shift & 0xffff);
    UNROLL for (int i = 0; i < TM; i++) {
      const float x = f16_to_float(bits_of(qa[i >> 2][i & 3]) >> shift & 0xffff) * call.query_factor;
      UNROLL for (int j = 0; j < TN; j++) s[i][j] = __builtin_fmaf(x, k[j], s[i][j]);
    }
  }
}

// PAIRED in plain tiles: even and odd dims apart, without widening.
template <class S>
INLINE void Tiles<S>::multiply_half2(const f4 (&qa)[TM / 4], const f4 (&kb)[TN / 4], unsigned (&pair)[TM][TN]) {
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++)
      pair[i][j] = half2_fma(bits_of(qa[i >> 2][i & 3]), bits_of(kb[j >> 2][j & 3]), pair[i][j]);
}

// The end of a chain of PAIRED: its sums are widened, scaled and added to the scores.
template <class S> INLINE void Tiles<S>::add_half2(unsigned (&pair)[TM][TN]) {
  const float by = call.query_factor;
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) {
      const unsigned x = pair[i][j];
      s[i][j] = __builtin_fmaf(f16_to_float(x & 0xffff) + f16_to_float(x >> 16), by, s[i][j]);
      odd_sums = half2_fma(x, 0, odd_sums);
      pair[i][j] = 0;
    }
}
