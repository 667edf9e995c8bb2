// Finished rows: output and log-sum-exp, or reference and sum of a partial state.
#pragma once

#include "serial.cuh"
#include "tile.cuh"
#include "within.cuh"

// Finishes one row at a time; the sums of the next row then move to the place of the first.
template <class S> INLINE void Tiles<S>::finish() {
  if constexpr (PAIRS) {
    const float odd = f16_to_float(odd_sums & 0xffff) + f16_to_float(odd_sums >> 16);
    UNROLL for (int i = 0; i < TM; i++) sum[i] += odd;
  }
  UNROLL for (int i = 0; i < TM; i++) sum[i] = row_sum(sum[i]);
  Share share = in_hand();
  if constexpr (SERIAL) {
    if (joins()) {
      const int split = share.split;
      NO_UNROLL for (int bit = 1; bit <= split && ((split & bit) != 0 || is_last()); bit <<= 1) {
        if ((split & bit) == 0) continue;
        share.split = split & ~(2 * bit - 1);
        take_in(share.split);
      }
      sync_warp();  // every lane of a row has read the references
      if (!is_last()) exchange(home(share), false, true);
    }
  }
  const Sequence& q = share.sequence;
  const Home x = home(share);
  const int t = opaque(tid), g = lane_col(t), row = own_row(share, t);
  bool parts = call.part_ms != 0;
  if constexpr (SERIAL) parts = parts && !is_last();
  if (parts) {
    const Address at = call.part_ms + (row_number(call, q, share.head, row) * call.splits + share.split) * 8;
    UNROLL for (int i = 0; i < TM; i++) {
      const bool empty = m[i] == NO_KEY && sum[i] == 0.f;
      const float reference = stored_reference(m[i], empty);
      if ((int)(g == 0) & (int)(i < x.left)) write_f2(at + (long long)i * call.splits * 8, f2{reference, sum[i]});
    }
    if constexpr (BUDGET) {
      const long long own = row_number(call, q, share.head, row) + g;
      if (g < TM && g < x.left) write_f32(this->limit.part_d + (own * call.splits + share.split) * 4, this->vote.lost);
    }
    return;
  }
  NO_UNROLL for (int i = 0; i < TM; i++) {
    const float total = sum[0];
    bool empty = m[0] == NO_KEY && total == 0.f;
    if constexpr (SERIAL) empty = empty || state_is_empty(m[0], total);
    [[maybe_unused]] float d;
    if constexpr (BUDGET) d = float_of_bits(shuffle_from(bits_of(this->vote.lost), lane_of_row(t, i)));
    if (i < x.left) {
      const Address out = output_row(call, q.batch, share.head, q.query0 + row + i);
      NO_UNROLL for (int h = 0; h < AF; h++) {
        const f4 y = {acc[0][0], acc[0][1], acc[0][2], acc[0][3]};
        UNROLL for (int j = 0; j + 4 < AN; j++) acc[0][j] = acc[0][j + 4];
        write_quotient4(call, out, dim_of(g, h * 4), y, total, empty, B16 ? call.dtype : TYPE_F32);
      }
      if constexpr (BUDGET) {
        if (g == 0) write_left_out(share, row, i, stored_reference(m[0], empty), total, d);
      }
      if (g == 0 && call.lse != 0) {
        const float reference = stored_reference(m[0], empty);
        auto log = [&] LAMBDA {
          if constexpr (BUDGET) return log_sum_exp(reference, total, d);
          else return log_sum_exp(reference, total);
        };
        write_f32(call.lse + row_number(call, q, share.head, row + i) * 4, log());
      }
    }
    UNROLL for (int n = 0; n + 1 < TM; n++) {
      sum[n] = sum[n + 1];
      m[n] = m[n + 1];
      UNROLL for (int j = 0; j < AN; j++) acc[n][j] = acc[n + 1][j];
    }
  }
}
