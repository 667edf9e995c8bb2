// Masks, ranges and the soft cap over the scores of an edge. A key that is not attended gets the score -inf.
#pragma once

#include "tile.cuh"

template <class S> INLINE void Tiles<S>::mask(const Share& share) {
  const int t = opaque(tid);
  const Sequence& q = share.sequence;
  const int row = own_row(call, share, t);
  const long long diagonal = (long long)q.offset + row;
  const long long mask_at = mask_row(call, q, share.head, row);
  NO_UNROLL for (int j = 0; j < TN; j++) {
    const int key = k0 + j * LANE_COLS + lane_col(t);
    // Row i attends the key by length, causality and window when after < i <= before.
    const int before = q.left < 0 ? TM : clamped(key - diagonal + q.left, -1, TM);
    const int after = key >= q.reach ? TM : q.right < 0 ? -1 : clamped(key - diagonal - q.right - 1, -1, TM);
    float x[TM];
    bool out[TM];
    UNROLL for (int i = 0; i < TM; i++) {
      x[i] = s[i][0];
      UNROLL for (int n = 0; n + 1 < TN; n++) s[i][n] = s[i][n + 1];
      out[i] = before < i || after >= i || row + i >= q.queries;
    }
    if (!LEAN && call.cap != 0.f) {
      NO_UNROLL for (int i = 0; i < TM; i++) {
        const float y = call.cap * tanh_of(x[0]);
        UNROLL for (int n = 0; n + 1 < TM; n++) x[n] = x[n + 1];
        x[TM - 1] = y;
      }
    }
    if (!LEAN && call.mask_kind != MASK_NONE) {
      // Elements are loaded before the first is looked at.
      unsigned raw[TM];
      const long long at = mask_at + key * call.mask_key;
      UNROLL for (int i = 0; i < TM; i++) raw[i] = 0;
      if (call.mask_kind == MASK_BOOL) {
        UNROLL for (int i = 0; i < TM; i++)
          if (!out[i]) raw[i] = load_u8(call.mask + (at + i * call.mask_query));
        UNROLL for (int i = 0; i < TM; i++) out[i] = raw[i] == 0;
      } else {
        if (call.mask_kind == MASK_F32) {
          UNROLL for (int i = 0; i < TM; i++)
            if (!out[i]) raw[i] = bits_of(load_f32(call.mask + (at + i * call.mask_query) * 4));
        } else {
          UNROLL for (int i = 0; i < TM; i++)
            if (!out[i]) raw[i] = load_u16(call.mask + (at + i * call.mask_query) * 2);
          UNROLL for (int i = 0; i < TM; i++)
            raw[i] = bits_of(call.mask_kind == MASK_F16 ? f16_to_float(raw[i]) : bf16_to_float(raw[i]));
        }
        UNROLL for (int i = 0; i < TM; i++) {
          const float bias = float_of_bits(raw[i]);
          out[i] = out[i] || bias == NEG_INF;
          x[i] = __builtin_fmaf(bias, LOG2E, x[i]);
        }
      }
    }
    UNROLL for (int i = 0; i < TM; i++) s[i][TN - 1] = out[i] ? NEG_INF : x[i];
  }
}
