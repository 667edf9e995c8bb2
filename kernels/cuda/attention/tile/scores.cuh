// Steps of s = Q K': the products of a word of queries and keys.
#pragma once

#include "tile.cuh"

// Adds products to the first COLUMNS columns for F32 and WIDENED, where both operands are f32 values. Products come in runs with
// alternating direction, so that each product shares an operand with the previous one; runs of four where registers are not
// scarce.
template <class S>
template <int COLUMNS>
INLINE void Tiles<S>::multiply_f32(const f4 (&qa)[TM / 4], const f4 (&kb)[TN / 4]) {
  UNROLL for (int n = 0; n < TM * COLUMNS; n++) {
    constexpr int RUN = TM == 8 && (ADDED || BUDGET) ? COLUMNS : 4;
    const int run = n / RUN, at = to_and_fro(run, n % RUN, RUN), back = run / TM;
    const int i = TM == 4 ? at : to_and_fro(back, run % TM, TM), j = TM == 4 ? run : back * RUN + at;
    s[i][j] = __builtin_fmaf(qa[i >> 2][i & 3], kb[j >> 2][j & 3], s[i][j]);
  }
}

// Adds products for PAIRED in edges: those of the even dims, then those of the odd ones, widened.
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

// Adds products for PAIRED in plain tiles: even and odd dims separately, without widening.
template <class S>
INLINE void Tiles<S>::multiply_half2(const f4 (&qa)[TM / 4], const f4 (&kb)[TN / 4], unsigned (&pair)[TM][TN]) {
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++)
      pair[i][j] = half2_fma(bits_of(qa[i >> 2][i & 3]), bits_of(kb[j >> 2][j & 3]), pair[i][j]);
}

// Ends a chain of PAIRED: widens and scales its sums and adds them to the scores.
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

// Adds the products of a chunk of dims to the first COLUMNS columns of the scores. Dims beyond the head size are skipped, in
// groups of eight.
template <class S> template <bool EDGE, int COLUMNS> INLINE void Tiles<S>::multiply_chunk(int chunk) {
  if (RARELY(idles())) {  // only this branch sets the initial zeros of the scores
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) s[i][j] = anything();
    return;
  }
  const int t = opaque(tid), cg = lane_col(t);
  const int qc = (t >> 5) * (WARP_ROWS / 4) + lane_row(t) * (TM / 4);
  const SharedBytes queries = sm + chunk * KS * Q_STRIDE;
  constexpr int DIMS = !EDGE ? 8 : SLOW ? 1 : PAIRS ? 2 : 8;  // words per loop body
  constexpr int GROUPS = (COLUMNS + 3) / 4;
  f4 qa[2][TM / 4], kb[2][TN / 4];
  auto fragments = [&](int b, int it, int kk) LAMBDA {  // word it * DIMS + kk of the chunk
    const int low = DIMS == 8 ? (kk >> 2) & 1 : 0, high = DIMS == 8 ? (it & 3) << 1 : (it * DIMS >> 2) & 7;
    const int base = it * DIMS * Q_STRIDE + kk * Q_STRIDE;
    UNROLL for (int h = 0; h < TM / 4; h++)
      qa[b][h] = load_shared(queries + base + (TM == 8 && DIMS == 8 ? ((qc ^ high) << 4) + ((h ^ low) << 4)
                                                                    : ((qc + h) ^ (high | low)) << 4));
    UNROLL for (int h = 0; h < GROUPS; h++)
      kb[b][h] = load_shared(sm + X + ((cg ^ (high | low)) << 4) + it * (TILE * 4 * DIMS) + kk * (TILE * 4) + h * 128);
  };
  if constexpr (DIMS > 1) fragments(0, 0, 0);
  constexpr bool CHAINED = PAIRS && !EDGE;
  unsigned pair[TM][TN];
  if constexpr (CHAINED) {
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) pair[i][j] = 0;
  }
  const int steps = PAIRS ? KS / DIMS : min_of((call.head_dim - chunk * KD + DIMS - 1) / DIMS, KS / DIMS);
  if constexpr (CHUNKS == 1 && !EDGE) __builtin_assume(steps > 0);  // a plain tile has at least one step
  NO_UNROLL for (int it = 0; it < steps; it++) {
    UNROLL for (int kk = 0; kk < DIMS; kk++) {
      const int b = kk & 1;
      if constexpr (DIMS == 1) fragments(0, it, 0);
      else if (kk + 1 < DIMS) fragments(b ^ 1, it, kk + 1);
      else fragments(b ^ 1, (it + 1) & (KS / DIMS - 1), 0);
      if constexpr (CHAINED) multiply_half2(qa[b], kb[b], pair);
      else if constexpr (PAIRS) multiply_widened(qa[b], kb[b]);
      else multiply_f32<COLUMNS>(qa[b], kb[b]);
    }
    if constexpr (CHAINED) {
      static_assert(CHAIN % DIMS == 0 && KS % CHAIN == 0, "");
      if ((it + 1) % (CHAIN / DIMS) == 0) add_half2(pair);
    }
  }
}
