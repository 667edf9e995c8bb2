// Scores: s = Q K'.
#pragma once

#include "tile.cuh"

// Adds the products of the KD dims of a chunk.
template <class S> template <bool EDGE> INLINE void Tiles<S>::score_chunk(int chunk) {
  const int t = opaque(tid), cg = lane_col(t);
  const int qc = (t >> 5) * (WARP_ROWS / 4) + lane_row(t) * (TM / 4);
  const SharedBytes queries = sm + chunk * KS * Q_STRIDE;
  constexpr int DIMS = !EDGE ? 8 : LEAN ? 1 : 2;  // words of a loop body
  f4 qa[2][TM / 4], kb[2][TN / 4];
  auto fragments = [&](int b, int it, int kk) LAMBDA {  // word it * DIMS + kk of the chunk
    const int low = DIMS == 8 ? (kk >> 2) & 1 : 0, high = DIMS == 8 ? (it & 3) << 1 : (it * DIMS >> 2) & 7;
    const int base = it * DIMS * Q_STRIDE + kk * Q_STRIDE;
    UNROLL for (int h = 0; h < TM / 4; h++)
      qa[b][h] = load_shared(queries + base + (TM == 8 && DIMS == 8 ? ((qc ^ high) << 4) + ((h ^ low) << 4)
                                                                    : ((qc + h) ^ (high | low)) << 4));
    UNROLL for (int h = 0; h < TN / 4; h++)
      kb[b][h] = load_shared(sm + X + ((cg ^ (high | low)) << 4) + it * (TILE * 4 * DIMS) + kk * (TILE * 4) +
                             h * 128);
  };
  if constexpr (DIMS > 1) fragments(0, 0, 0);
  constexpr bool IN_HALVES = PAIRS && !EDGE;
  unsigned pair[TM][TN];
  if constexpr (IN_HALVES) {
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) pair[i][j] = 0;
  }
  NO_UNROLL for (int it = 0; it < KS / DIMS; it++) {
    UNROLL for (int kk = 0; kk < DIMS; kk++) {
      const int b = kk & 1;
      if constexpr (DIMS == 1) fragments(0, it, 0);
      else if (kk + 1 < DIMS) fragments(b ^ 1, it, kk + 1);
      else fragments(b ^ 1, (it + 1) & (KS / DIMS - 1), 0);
      if constexpr (IN_HALVES) {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++)
            pair[i][j] = half2_fma(bits_of(qa[b][i >> 2][i & 3]), bits_of(kb[b][j >> 2][j & 3]), pair[i][j]);
      } else if constexpr (PAIRS) {
        NO_UNROLL for (int shift = 0; shift < 32; shift += 16) {
          float k[TN];
          UNROLL for (int j = 0; j < TN; j++) k[j] = f16_to_float(bits_of(kb[b][j >> 2][j & 3]) >> shift & 0xffff);
          UNROLL for (int i = 0; i < TM; i++) {
            const float x = f16_to_float(bits_of(qa[b][i >> 2][i & 3]) >> shift & 0xffff) * call.query_factor;
            UNROLL for (int j = 0; j < TN; j++) s[i][j] = __builtin_fmaf(x, k[j], s[i][j]);
          }
        }
      } else {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++)
            s[i][j] = __builtin_fmaf(qa[b][i >> 2][i & 3], kb[b][j >> 2][j & 3], s[i][j]);
      }
    }
    if constexpr (IN_HALVES) {
      static_assert(CHAIN % DIMS == 0 && KS % CHAIN == 0, "");
      if ((it + 1) % (CHAIN / DIMS) == 0) {
        const float by = call.query_factor;
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++) {
            const unsigned x = pair[i][j];
            s[i][j] = __builtin_fmaf(f16_to_float(x & 0xffff) + f16_to_float(x >> 16), by, s[i][j]);
            odd_sums = half2_fma(x, 0, odd_sums);
            pair[i][j] = 0;
          }
      }
    }
  }
}

// Scores of tile k0. Meanwhile a plain tile loads what the exchange area takes next.
template <class S> template <bool EDGE> INLINE void Tiles<S>::score(const Share& share) {
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) s[i][j] = 0.f;
  NO_UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
    if constexpr (EDGE) {
      gather_k(share, k0, chunk);
      sync_block();
      store_k();
      sync_block();
    } else {
      if (chunk + 1 < CHUNKS) load_k(k0, chunk + 1);
      else load_v(k0, 0);
    }
    {
  const int t = opaque(tid), cg = lane_col(t);
  const int qc = (t >> 5) * (WARP_ROWS / 4) + lane_row(t) * (TM / 4);
  const SharedBytes queries = sm + chunk * KS * Q_STRIDE;
  constexpr int DIMS = !EDGE ? 8 : LEAN ? 1 : 2;  // words of a loop body
  f4 qa[2][TM / 4], kb[2][TN / 4];
  auto fragments = [&](int b, int it, int kk) LAMBDA {  // word it * DIMS + kk of the chunk
    const int low = DIMS == 8 ? (kk >> 2) & 1 : 0, high = DIMS == 8 ? (it & 3) << 1 : (it * DIMS >> 2) & 7;
    const int base = it * DIMS * Q_STRIDE + kk * Q_STRIDE;
    UNROLL for (int h = 0; h < TM / 4; h++)
      qa[b][h] = load_shared(queries + base + (TM == 8 && DIMS == 8 ? ((qc ^ high) << 4) + ((h ^ low) << 4)
                                                                    : ((qc + h) ^ (high | low)) << 4));
    UNROLL for (int h = 0; h < TN / 4; h++)
      kb[b][h] = load_shared(sm + X + ((cg ^ (high | low)) << 4) + it * (TILE * 4 * DIMS) + kk * (TILE * 4) +
                             h * 128);
  };
  if constexpr (DIMS > 1) fragments(0, 0, 0);
  constexpr bool IN_HALVES = PAIRS && !EDGE;
  unsigned pair[TM][TN];
  if constexpr (IN_HALVES) {
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) pair[i][j] = 0;
  }
  NO_UNROLL for (int it = 0; it < KS / DIMS; it++) {
    UNROLL for (int kk = 0; kk < DIMS; kk++) {
      const int b = kk & 1;
      if constexpr (DIMS == 1) fragments(0, it, 0);
      else if (kk + 1 < DIMS) fragments(b ^ 1, it, kk + 1);
      else fragments(b ^ 1, (it + 1) & (KS / DIMS - 1), 0);
      if constexpr (IN_HALVES) {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++)
            pair[i][j] = half2_fma(bits_of(qa[b][i >> 2][i & 3]), bits_of(kb[b][j >> 2][j & 3]), pair[i][j]);
      } else if constexpr (PAIRS) {
        NO_UNROLL for (int shift = 0; shift < 32; shift += 16) {
          float k[TN];
          UNROLL for (int j = 0; j < TN; j++) k[j] = f16_to_float(bits_of(kb[b][j >> 2][j & 3]) >> shift & 0xffff);
          UNROLL for (int i = 0; i < TM; i++) {
            const float x = f16_to_float(bits_of(qa[b][i >> 2][i & 3]) >> shift & 0xffff) * call.query_factor;
            UNROLL for (int j = 0; j < TN; j++) s[i][j] = __builtin_fmaf(x, k[j], s[i][j]);
          }
        }
      } else {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++)
            s[i][j] = __builtin_fmaf(qa[b][i >> 2][i & 3], kb[b][j >> 2][j & 3], s[i][j]);
      }
    }
    if constexpr (IN_HALVES) {
      static_assert(CHAIN % DIMS == 0 && KS % CHAIN == 0, "");
      if ((it + 1) % (CHAIN / DIMS) == 0) {
        const float by = call.query_factor;
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++) {
            const unsigned x = pair[i][j];
            s[i][j] = __builtin_fmaf(f16_to_float(x & 0xffff) + f16_to_float(x >> 16), by, s[i][j]);
            odd_sums = half2_fma(x, 0, odd_sums);
            pair[i][j] = 0;
          }
      }
    }
  }
    }
    if constexpr (EDGE) {
      if (chunk + 1 < CHUNKS) sync_block();
    } else if (chunk + 1 < CHUNKS) {
      sync_block();
      store_k();
      sync_block();
    }
  }
}
