// Queries as operands of products, and their guard (planes.cuh).
//
// The naive way keeps the loops unrolled, because operands are in registers in the end. A block runs this code once, so most of the
// time would go into fetching instructions. The loops here are rolled and write the operands to shared memory.
#pragma once

#include "../../common/elements.cuh"
#include "exact.cuh"

// Two adjacent elements of a query row at address `row`, as they are in memory.
template <bool B16> INLINE f2 load_query2(const Call& call, Address row, int c) {
  f2 x = {0.f, 0.f};
  if (c < call.head_dim) {
    if constexpr (B16) x[0] = read_f32(row + c * 2);
    else x = read_f2(row + c * 4);
  }
  return x;
}
// Such elements as numbers; scaled, if they have 32 bits.
template <bool B16> INLINE f2 numbers2(const Call& call, f2 x) {
  if constexpr (!B16) return x * call.query_factor;
  const unsigned y = bits_of(x[0]);
  return f2{widen(y & 0xffff, call.dtype), widen(y >> 16, call.dtype)};
}

// Splits the queries of a warp of the block and writes them as fragments, hi then lo, to `to`, an address of the lane. Returns whether
// they and the keys pass the guard as far as this lane knows.
template <class S>
INLINE bool split_queries(SharedBytes to, const Call& call, const Planes& planes, int warp, float (&row_scale)[S::ROWS][2]) {
  constexpr int ROWS = S::ROWS, D = S::D, KD = S::KD, B16 = S::B16;
  const int lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
  const Share share = share_of(call, opaque(block_index()));
  const Sequence& seq = share.sequence;
  const int row0 = share.row_block * S::BM + warp * ROWS * 16;
  const int of_kv = share.index * planes.kv_heads + quotient_of(share.head, call.by_group);
  bool passes = load_i32(planes.refused + of_kv * 4ll) == 0;
  const Address channels = planes.channels + (long long)of_kv * 3 * D * 4;
  Address rows[ROWS][2];
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++)
    rows[i][r] = query_row(call, seq, share.head, min_of(row0 + i * 16 + g + 8 * r, seq.queries - 1), B16 ? 2 : 4);
  // Elements of some fragments, whose loads are under way together.
  constexpr int SEEN = KD % 4 == 0 ? 4 : 2, STEPS = 2;
  unsigned most_of[ROWS][2] = {};
  NO_UNROLL for (int first = 0; first < KD; first += SEEN) {
    f2 x[SEEN][2][ROWS][2];
    UNROLL for (int k = 0; k < SEEN; k++) UNROLL for (int half = 0; half < 2; half++)
      UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++)
        x[k][half][i][r] = load_query2<B16>(call, rows[i][r], (first + k) * 16 + half * 8 + 2 * t);
    UNROLL for (int k = 0; k < SEEN; k++) UNROLL for (int half = 0; half < 2; half++)
      UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
        const f2 y = numbers2<B16>(call, x[k][half][i][r]);
        most_of[i][r] = larger(most_of[i][r], larger(magnitude(y[0]), magnitude(y[1])));
      }
  }
  float up[ROWS][2], missed[ROWS][2] = {}, size[ROWS][2] = {};
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
    const unsigned most = largest_of_lanes(most_of[i][r], 1, 2);
    passes = passes && is_ordinary(most);
    const int shift = shift_for(most);
    // A negative factor would turn the largest sum into the smallest score, so its sign goes to the queries.
    up[i][r] = B16 && call.query_factor < 0.f ? -exact_power(shift) : exact_power(shift);
    row_scale[i][r] = B16 ? exact_power(-shift) * __builtin_fabsf(call.query_factor) : exact_power(-shift);
  }
  NO_UNROLL for (int first = 0; first < KD; first += STEPS) {
    f2 x[STEPS][2][ROWS][2], channel[STEPS][2][3];
    UNROLL for (int k = 0; k < STEPS; k++) UNROLL for (int half = 0; half < 2; half++) {
      const int c = (first + k) * 16 + half * 8 + 2 * t;
      UNROLL for (int n = 0; n < 3; n++) channel[k][half][n] = read_f2(channels + (n * D + c) * 4);
      UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++)
        x[k][half][i][r] = load_query2<B16>(call, rows[i][r], c);
    }
    UNROLL for (int k = 0; k < STEPS; k++) UNROLL for (int i = 0; i < ROWS; i++) {
      unsigned h[4], l[4];
      UNROLL for (int half = 0; half < 2; half++) UNROLL for (int r = 0; r < 2; r++) {
        const f2 y = numbers2<B16>(call, x[k][half][i][r]) * up[i][r];
        const f2(&of)[3] = channel[k][half];
        const Split z = split_of<S::ONE>(y[0], y[1]);
        const Missed m = missed_by<S::F16>(y[0], y[1], z);
        UNROLL for (int e = 0; e < 2; e++) {
          const float a = __builtin_fabsf(y[e]);
          size[i][r] += a * of[0][e];
          missed[i][r] += a * of[1][e] + m.residual[e] * of[0][e] + m.low[e] * of[2][e];
        }
        h[r + 2 * half] = z.hi;
        l[r + 2 * half] = z.lo;
      }
      const SharedBytes fragment = to + (i * KD + first + k) * S::FRAGMENT;
      store_shared(fragment, words4(h[0], h[1], h[2], h[3]));
      if (!S::ONE) store_shared(fragment + 512, words4(l[0], l[1], l[2], l[3]));
    }
  }
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
    UNROLL for (int mask = 1; mask <= 2; mask <<= 1) {
      missed[i][r] += shuffle_xor(missed[i][r], mask);
      size[i][r] += shuffle_xor(size[i][r], mask);
    }
    passes = passes && missed[i][r] <= size[i][r] * MOST_SCORE && !(size[i][r] * row_scale[i][r] > MOST_REFERENCE);
  }
  return passes;
}
