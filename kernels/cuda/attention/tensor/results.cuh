// Results of the rows of a warp, from its sums after the last tile.
//
// The sums of a row are in the registers of four lanes. The naive way divides and writes them from there, in unrolled code that runs
// once, so that most of its time would go into fetching instructions. Here they pass through shared memory to a short loop, whose
// lanes write 16 bytes each.
#pragma once

#include "../finish.cuh"
#include "exact.cuh"

// Adds the state of the second part of the tiles to that of the first, whose lanes return true.
template <class S>
INLINE bool join_parts(SharedBytes sm, int own_part, float (&o)[S::ROWS][S::DT][4], float (&reference)[S::ROWS][2],
                       float (&sum)[S::ROWS][2], int& v_shift) {
  constexpr int ROWS = S::ROWS, DT = S::DT;
  const int at = opaque(thread_index());
  const SharedBytes of_lane = sm + ((at >> 5) % S::ABREAST * S::RESULTS + (at & 31) * 16);
  const float down = exact_power(-v_shift);
  v_shift = 0;
  if (own_part == 1) {
    UNROLL for (int i = 0; i < ROWS; i++) {
      const SharedBytes to = of_lane + i * (DT + 1) * 512;
      store_shared(to, f4{reference[i][0], sum[i][0], reference[i][1], sum[i][1]});
      UNROLL for (int n = 0; n < DT; n++)
        store_shared(to + (n + 1) * 512, f4{o[i][n][0] * down, o[i][n][1] * down, o[i][n][2] * down, o[i][n][3] * down});
    }
  }
  sync_block();
  if (own_part == 1) return false;
  UNROLL for (int i = 0; i < ROWS; i++) {
    const SharedBytes from = of_lane + i * (DT + 1) * 512;
    const f4 other = load_shared(from);
    float own_change[2], other_change[2];
    UNROLL for (int r = 0; r < 2; r++) {
      const float m = max2(reference[i][r], other[2 * r]);
      own_change[r] = exp2_fast(reference[i][r] - m);
      other_change[r] = exp2_fast(other[2 * r] - m);
      reference[i][r] = m;
      sum[i][r] = __builtin_fmaf(sum[i][r], own_change[r], other[2 * r + 1] * other_change[r]);
      own_change[r] *= down;
    }
    UNROLL for (int n = 0; n < DT; n++) {
      const f4 w = load_shared(from + (n + 1) * 512);
      UNROLL for (int e = 0; e < 4; e++) o[i][n][e] = __builtin_fmaf(o[i][n][e], own_change[e >> 1], w[e] * other_change[e >> 1]);
    }
  }
  sync_warp();  // every lane has read
  return true;
}

// Writes the results of the rows of a warp, or their partial states. W is scaled by 2^15 and `down`, sums and weights are scaled by
// 2^15. A reference that may be large stays as it is.
template <class S>
INLINE void write_results(SharedBytes sm, const Call& call, const float (&o)[S::ROWS][S::DT][4],
                          const float (&reference)[S::ROWS][2], float (&sum)[S::ROWS][2], float down) {
  constexpr int ROWS = S::ROWS, DT = S::DT, D = S::D, CHUNKS = D / 4;
  constexpr float UNIT = S::CHANGED ? 0x1p-15f : 1.f, BELOW = S::CHANGED ? 0.f : 15.f;
  const Share share = share_of(call, opaque(block_index()));
  const Sequence& seq = share.sequence;
  const int thread = opaque(thread_index()), lane = thread & 31, g = lane >> 2, t = lane & 3, warp = thread >> 5;
  const int row0 = share.row_block * S::BM + warp * ROWS * 16;
  const SharedBytes of_warp = sm + warp * S::RESULTS;
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
    UNROLL for (int mask = 1; mask <= 2; mask <<= 1) sum[i][r] += shuffle_xor(sum[i][r], mask);
    const int row = i * 16 + g + 8 * r;
    // The chunks of a row are permuted by its number, so that lanes write to different banks.
    UNROLL for (int n = 0; n < DT; n++)
      store_shared_f2(of_warp + ((row * CHUNKS + ((n * 2 + (t >> 1)) ^ g)) * 16 + (t & 1) * 8), f2{o[i][n][2 * r] * down, o[i][n][2 * r + 1] * down});
    if (t != 0 || row0 + row >= seq.queries) continue;
    const long long number = row_number(call, seq, share.head, row0 + row);
    const float m = sum[i][r] == 0.f ? NEG_INF : reference[i][r] - BELOW, total = sum[i][r] * UNIT;
    if (call.part_ms != 0) write_f2(call.part_ms + (number * call.splits + share.split) * 8, f2{m, total});
    else if (call.lse != 0) write_f32(call.lse + number * 4, log_sum_exp(m, total));
  }
  sync_warp();
  NO_UNROLL for (int at = lane; at < ROWS * 16 * CHUNKS; at += 32) {
    const int row = at / CHUNKS, chunk = at % CHUNKS;
    // The sum is in the lanes of the row's quad.
    float total = 0.f;
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
      const float x = float_of_bits(shuffle_from(bits_of(sum[i][r]), (row & 7) * 4));
      if (row >> 3 == 2 * i + r) total = x;
    }
    if (row0 + row >= seq.queries || chunk * 4 >= call.part_dim) continue;
    f4 w = load_shared(of_warp + (row * CHUNKS + (chunk ^ (row & 7))) * 16);
    if (call.part_ms != 0) {
      const long long number = row_number(call, seq, share.head, row0 + row);
      UNROLL for (int e = 0; e < 4; e++) w[e] *= UNIT;
      write_f4(call.part_w + ((number * call.splits + share.split) * call.part_dim + chunk * 4) * 4, w);
    } else {
      const Address out = output_row(call, seq.batch, share.head, seq.query0 + row0 + row);
      write_quotient4(call, out, chunk * 4, w, total, total == 0.f, S::B16 ? call.dtype : TYPE_F32);
    }
  }
}
