// Finished rows: output and log-sum-exp, or reference and sum of a partial state.
#pragma once

#include "tile.cuh"

// Row by row: the sums of the next row become those of the first.
template <class S> INLINE void Tiles<S>::finish() {
  if constexpr (PAIRS) {
    const float odd = f16_to_float(odd_sums & 0xffff) + f16_to_float(odd_sums >> 16);
    UNROLL for (int i = 0; i < TM; i++) sum[i] += odd;
  }
  UNROLL for (int i = 0; i < TM; i++) sum[i] = row_sum(sum[i]);
  const Share share = here();
  const Sequence& q = share.sequence;
  const Home x = home(share);
  const int t = opaque(tid), g = lane_col(t), row = own_row(call, share, t);
  if (call.part_ms != 0) {
    const Address at = call.part_ms + (row_number(call, q, share.head, row) * call.splits + share.split) * 8;
    UNROLL for (int i = 0; i < TM; i++) {
      const bool empty = m[i] == NO_KEY && sum[i] == 0.f;
      const float reference = stored_reference(m[i], empty);
      if ((int)(g == 0) & (int)(i < x.left)) write_f2(at + (long long)i * call.splits * 8, f2{reference, sum[i]});
    }
    return;
  }
  NO_UNROLL for (int i = 0; i < TM; i++) {
    const float total = sum[0];
    const bool empty = m[0] == NO_KEY && total == 0.f;
    if (i < x.left) {
      const Address out = output_row(call, q.batch, share.head, q.query0 + row + i);
      NO_UNROLL for (int h = 0; h < AF; h++) {
        const f4 y = {acc[0][0], acc[0][1], acc[0][2], acc[0][3]};
        UNROLL for (int j = 0; j + 4 < AN; j++) acc[0][j] = acc[0][j + 4];
        write_quotient4(call, out, dim_of(g, h * 4), y, total, empty, B16 ? call.dtype : TYPE_F32);
      }
      if (g == 0 && call.lse != 0) {
        const float reference = stored_reference(m[0], empty);
        write_f32(call.lse + row_number(call, q, share.head, row + i) * 4, log_sum_exp(reference, total));
      }
    }
    UNROLL for (int n = 0; n + 1 < TM; n++) {
      sum[n] = sum[n + 1];
      m[n] = m[n + 1];
      UNROLL for (int j = 0; j < AN; j++) acc[n][j] = acc[n + 1][j];
    }
  }
}
