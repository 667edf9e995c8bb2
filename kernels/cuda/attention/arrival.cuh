// The last of the blocks that compute the splits of a row block.
#pragma once

#include "merge.cuh"
#include "place.cuh"

// Whether the last block to finish merges the states of the splits.
INLINE bool last_merges(const Call& call) { return (call.flags & LAST_MERGES) != 0; }

// Called by every thread of a block that has written the states of its split. Returns whether all other splits of the row
// block are written, too; `fetch_f2` and `fetch_f4` then read them.
INLINE bool is_last_split(const Call& call, const Share& share) {
  fence_device();
  sync_block();
  bool last = false;
  if (thread_index() == 0) {
    const int counter = (share.index * call.heads + share.head) * call.row_blocks + share.row_block;
    const unsigned others = call.splits - 1;
    last = count_round(call.part_ms - (ARRIVALS - counter) * 4, others) == others;
  }
  last = any_of_block(last);
  if (last) fence_device();
  return last;
}

// Most splits of a row that `merge_block` merges.
constexpr int BLOCK_MERGES = 4;

// Merges the states of up to BLOCK_MERGES splits for ROWS rows from `row` on, in the order of merge.cuh, with THREADS threads.
// A team of lanes merges half of its rows at once, because waiting for memory dominates the time.
template <int ROWS> INLINE void merge_block(const Call& call, const Share& share, int row) {
  constexpr int LANES = 16, TEAMS = THREADS / LANES, BLOCK_ROWS = ROWS / TEAMS / 2;  // a lane has four of up to 64 columns
  const int t = opaque(thread_index()), lane = t % LANES, x = min_of(lane * 4, call.part_dim - 4), splits = call.splits;
  const long long from = row_number(call, share.sequence, share.head, row);
  const int end = min_of(ROWS, share.sequence.queries - row);
  NO_UNROLL for (int r0 = t / LANES; r0 < end; r0 += TEAMS * BLOCK_ROWS) {
    float m[BLOCK_ROWS][BLOCK_MERGES], s[BLOCK_ROWS][BLOCK_MERGES];
    f4 w[BLOCK_ROWS][BLOCK_MERGES];
    UNROLL for (int j = 0; j < BLOCK_ROWS; j++)
      UNROLL for (int i = 0; i < BLOCK_MERGES; i++) {
        const int r = min_of(r0 + j * TEAMS, end - 1), split = min_of(i, splits - 1);
        const long long leaf = (from + r) * splits + split;
        const f2 y = fetch_f2(call.part_ms + leaf * 8);
        w[j][i] = fetch_f4(call.part_w + (leaf * call.part_dim + x) * 4);
        m[j][i] = i < splits ? y[0] : NEG_INF;
        s[j][i] = i < splits ? y[1] : 0.f;
      }
    UNROLL for (int j = 0; j < BLOCK_ROWS; j++) {
      UNROLL for (int i = 0; i < BLOCK_MERGES; i++)
        if (state_is_empty(m[j][i], s[j][i])) w[j][i] = f4{0.f, 0.f, 0.f, 0.f};
      UNROLL for (int step = 1; step < BLOCK_MERGES; step *= 2)
        UNROLL for (int i = 0; i + step < BLOCK_MERGES; i += 2 * step) {
          const Merge merge = merge_of(m[j][i], m[j][i + step]);
          m[j][i] = merge.m;
          s[j][i] = merge_apply(merge, s[j][i], s[j][i + step]);
          merge_into(merge, w[j][i], w[j][i + step]);
        }
      const int r = r0 + j * TEAMS;
      if (r < end) {
        const Address out = output_row(call, share.sequence.batch, share.head, share.sequence.query0 + row + r);
        if (lane * 4 < call.part_dim)
          write_quotient4(call, out, x, w[j][0], s[j][0], state_is_empty(m[j][0], s[j][0]), TYPE_F32);
        if (lane == 0 && call.lse != 0) write_f32(call.lse + (from + r) * 4, log_sum_exp(m[j][0], s[j][0]));
      }
    }
  }
}
