// Steps from scores to weights.
#pragma once

#include "tile.cuh"

// Raises references to the largest scores `mx` of the lanes, and multiplies S and W by `scale`.
template <class S> INLINE void Tiles<S>::raise_references(const float (&mx)[TM], float (&scale)[TM]) {
  UNROLL for (int i = 0; i < TM; i++) {
    scale[i] = raise(m[i], row_max(mx[i]));
    sum[i] *= scale[i];
    UNROLL for (int j = 0; j < AN; j++) acc[i][j] *= scale[i];
  }
}

// Multiplies W in memory, which has the old references, by `scale`.
template <class S> INLINE void Tiles<S>::rescale_rows(float (&scale)[TM]) {
  const Home x = home(in_hand());
  const int g = lane_col(opaque(tid));
  NO_UNROLL for (int i = 0; i < TM; i++) {
    if (i < x.left) rescale(x, i, g, scale[0]);
    UNROLL for (int n = 0; n + 1 < TM; n++) scale[n] = scale[n + 1];
  }
}

// Turns scores into weights and adds them to the sums.
template <class S> INLINE void Tiles<S>::take_weights() {
  UNROLL for (int i = 0; i < TM; i++) {
    UNROLL for (int j = 0; j < TN; j++) s[i][j] = exp2_fast(s[i][j] - m[i]);
    float r = s[i][0];
    UNROLL for (int j = 1; j < TN; j++) r += s[i][j];
    sum[i] += r;
  }
}

// Like take_weights, with zeros whose sign marks masked keys.
template <class S> INLINE void Tiles<S>::take_signed_weights() {
  if constexpr (ADDED) {
    NO_UNROLL for (int i = 0; i < TM; i++) {  // each step moves the next row to the first place
      const float reference = m[0];
      float y[TN], r = 0.f;
      UNROLL for (int j = 0; j < TN; j++) {
        y[j] = signed_weight(s[0][j], reference);
        r = j ? r + y[j] : y[j];
      }
      const float z = sum[0] + r;
      UNROLL for (int n = 0; n + 1 < TM; n++) {
        UNROLL for (int j = 0; j < TN; j++) s[n][j] = s[n + 1][j];
        m[n] = m[n + 1];
        sum[n] = sum[n + 1];
      }
      UNROLL for (int j = 0; j < TN; j++) s[TM - 1][j] = y[j];
      m[TM - 1] = reference;
      sum[TM - 1] = z;
    }
    return;
  }
  UNROLL for (int i = 0; i < TM; i++) {
    UNROLL for (int j = 0; j < TN; j++) s[i][j] = signed_weight(s[i][j], m[i]);
    float r = s[i][0];
    UNROLL for (int j = 1; j < TN; j++) r += s[i][j];
    sum[i] += r;
  }
}

// Rotates the rows: the second becomes the first, and the first becomes the last, with weights y,
// reference `reference` and sum z.
template <class S> INLINE void Tiles<S>::rotate_rows(const float (&y)[TN], const float& reference, const float& z) {
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
