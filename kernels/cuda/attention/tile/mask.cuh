// Parts of the pass over the scores of an edge.
#pragma once

#include "tile.cuh"

// The soft cap over a column of scores.
template <class S> INLINE void Tiles<S>::cap_column(float (&x)[TM]) {
  NO_UNROLL for (int i = 0; i < TM; i++) {
    const float y = soft_cap(call, x[0]);
    UNROLL for (int n = 0; n + 1 < TM; n++) x[n] = x[n + 1];
    x[TM - 1] = y;
  }
}

// Elements of a column of an additive mask, the first at `at`, as bits of f32 values. Rows that are `out` are not read:
// their elements, zero on entry, stay zero.
template <class S> INLINE void Tiles<S>::load_bias(unsigned (&raw)[TM], const bool (&out)[TM], const long long& at) {
  if (call.mask_kind == MASK_F32) {
    UNROLL for (int i = 0; i < TM; i++)
      if (!out[i]) raw[i] = bits_of(load_f32(call.mask + (at + i * call.mask_query) * 4));
  } else {
    UNROLL for (int i = 0; i < TM; i++)
      if (!out[i]) raw[i] = load_u16(call.mask + (at + i * call.mask_query) * 2);
    UNROLL for (int i = 0; i < TM; i++)
      raw[i] = bits_of(call.mask_kind == MASK_F16 ? f16_to_float(raw[i]) : bf16_to_float(raw[i]));
  }
}
