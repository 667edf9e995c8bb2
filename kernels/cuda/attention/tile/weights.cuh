// Weights: raises references, turns scores into weights, sums them.
#pragma once

#include "tile.cuh"

// The weights of an edge of LEAN, row by row: the next row becomes the first.
template <class S> INLINE void Tiles<S>::weigh_by_row(bool partial) {
  NO_UNROLL for (int i = 0; i < TM; i++) {
    float x = s[0][0];
    UNROLL for (int j = 1; j < TN; j++) x = max2(x, s[0][j]);
    if (any_of_warp(x > m[0] + HEADROOM)) {
      UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) x = max2(x, shuffle_xor(x, w));
      x = max2(__builtin_rintf(x), m[0]);
      const float scale = factor(m[0], x);
      m[0] = x;
      sum[0] *= scale;
      UNROLL for (int j = 0; j < AN; j++) acc[0][j] *= scale;
      if (flushed) {  // what lies in memory has the old reference
        const Home x = home(here());
        const int g = lane_col(opaque(tid));
        if (i < x.left) {
          NO_UNROLL for (int j = 0; j < AN; j++) {
            const Address a = x.at + i * x.step + dim_of(g, j) * 4;
            if (dim_of(g, j) < x.width) write_f32(a, read_f32(a) * scale);
          }
        }
      }
    }
    const float reference = m[0], low = partial ? reference + WEIGHT_FLOOR : NEG_INF;
    float y[TN], r = 0.f;
    UNROLL for (int j = 0; j < TN; j++) {
      const float x = s[0][j];
      y[j] = exp2_fast((x < low && x != NEG_INF ? low : x) - reference);
      r = j ? r + y[j] : y[j];
    }
    const float z = sum[0] + r;
    float first[AN];
    UNROLL for (int j = 0; j < AN; j++) first[j] = acc[0][j];
    UNROLL for (int n = 0; n + 1 < TM; n++) {
      UNROLL for (int j = 0; j < TN; j++) s[n][j] = s[n + 1][j];
      UNROLL for (int j = 0; j < AN; j++) acc[n][j] = acc[n + 1][j];
      m[n] = m[n + 1];
      sum[n] = sum[n + 1];
    }
    UNROLL for (int j = 0; j < TN; j++) s[TM - 1][j] = y[j];
    UNROLL for (int j = 0; j < AN; j++) acc[TM - 1][j] = first[j];
    m[TM - 1] = reference;
    sum[TM - 1] = z;
  }
}

template <class S> template <bool EDGE> INLINE void Tiles<S>::weigh(bool partial) {
  if constexpr (EDGE && LEAN) return weigh_by_row(partial);
  float mx[TM];
  bool need = false;
  UNROLL for (int i = 0; i < TM; i++) {
    mx[i] = s[i][0];
    UNROLL for (int j = 1; j < TN; j++) mx[i] = max2(mx[i], s[i][j]);
    need = need || mx[i] > m[i] + HEADROOM;
  }
  if (any_of_warp(need)) {
    float scale[TM];
    UNROLL for (int i = 0; i < TM; i++) {
      float x = mx[i];
      UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) x = max2(x, shuffle_xor(x, w));
      x = max2(__builtin_rintf(x), m[i]);
      scale[i] = factor(m[i], x);
      m[i] = x;
      sum[i] *= scale[i];
      UNROLL for (int j = 0; j < AN; j++) acc[i][j] *= scale[i];
    }
    if (flushed) {  // what lies in memory has the old reference
      const Home x = home(here());
      const int g = lane_col(opaque(tid));
      NO_UNROLL for (int i = 0; i < TM; i++) {
        if (i < x.left) {
          NO_UNROLL for (int j = 0; j < AN; j++) {
            const Address a = x.at + i * x.step + dim_of(g, j) * 4;
            if (dim_of(g, j) < x.width) write_f32(a, read_f32(a) * scale[0]);
          }
        }
        UNROLL for (int n = 0; n + 1 < TM; n++) scale[n] = scale[n + 1];
      }
    }
  }
  if (partial) {
    NO_UNROLL for (int j = 0; j < TN; j++)
      UNROLL for (int i = 0; i < TM; i++) {
        const float low = m[i] + WEIGHT_FLOOR, x = s[i][0];
        UNROLL for (int n = 0; n + 1 < TN; n++) s[i][n] = s[i][n + 1];
        s[i][TN - 1] = x < low && x != NEG_INF ? low : x;
      }
  }
  UNROLL for (int i = 0; i < TM; i++) {
    UNROLL for (int j = 0; j < TN; j++) s[i][j] = exp2_fast(s[i][j] - m[i]);
    float r = s[i][0];
    UNROLL for (int j = 1; j < TN; j++) r += s[i][j];
    sum[i] += r;
  }
}
