// The merge of the splits of a row block by the last of its blocks.
//
// A team of lanes has a row, with four columns per lane. The time goes into waiting for memory and for instructions that run once.
// A team therefore loads the sums of several rows before it merges any, and then merges row by row. References pass through shared
// memory, because every lane of a team needs them. The merges are those of merge.cuh, in their order, so that the bits are the
// same.
#pragma once

#include "../arrival.cuh"
#include "../merge.cuh"
#include "tile.cuh"

// Merges up to GROUP states of each row. A team has ROWS rows at a time.
template <class A, int GROUP, int ROWS> INLINE void merge_block(SharedBytes sm, const Call& call, const Share& share) {
  constexpr int LANES = A::D / 4, TEAMS = A::NT / LANES, STATES = ROWS * TEAMS * GROUP / A::NT;
  static_assert(ROWS * GROUP % LANES == 0 && A::BM % (ROWS * TEAMS) == 0 && A::BM * GROUP * 8 <= A::SHARED_BYTES, "");
  const Sequence& q = share.sequence;
  const int row0 = A::first_row(share), rows = min_of(q.queries - row0, A::BM);
  const int team = thread_index() / LANES, lane = thread_index() % LANES;
  const bool has_columns = lane * 4 < call.part_dim;
  const long long first = row_number(call, q, share.head, row0);
  const int pitch = call.part_dim * 4, row_pitch = call.splits * pitch;
  const Address part_ms = call.part_ms + first * call.splits * 8, part_w = call.part_w + first * row_pitch + lane * 16;
  NO_UNROLL for (int r0 = 0; r0 < rows; r0 += ROWS * TEAMS) {
    f2 y[STATES];
    f4 w[ROWS][GROUP];
    UNROLL for (int n = 0; n < STATES; n++) {
      const int state = r0 * GROUP + n * A::NT + thread_index(), row = state / GROUP, i = state % GROUP;
      y[n] = f2{NEG_INF, 0.f};
      if ((int)(row < rows) & (int)(i < call.splits)) y[n] = fetch_f2(part_ms + (row * call.splits + i) * 8);
    }
    UNROLL for (int r = 0; r < ROWS; r++)
      UNROLL for (int i = 0; i < GROUP; i++) {
        const int row = r0 + r * TEAMS + team;
        clear(w[r][i]);
        if ((int)(row < rows) & (int)(i < call.splits) & (int)has_columns)
          w[r][i] = fetch_f4(part_w + row * row_pitch + i * pitch);
      }
    UNROLL for (int n = 0; n < STATES; n++) store_shared_f2(sm + (r0 * GROUP + n * A::NT + thread_index()) * 8, y[n]);
    sync_block();
    NO_UNROLL for (int row = r0 + team; row < min_of(r0 + ROWS * TEAMS, rows); row += TEAMS) {
      float m[GROUP], s[GROUP], unused[1];
      UNROLL for (int i = 0; i < GROUP; i++) {
        const f2 state = load_shared_f2(sm + (row * GROUP + i) * 8);
        m[i] = state[0];
        s[i] = state[1];
      }
      merge_subtree(m, s, unused, w[0]);
      const Address out = output_row(call, q.batch, share.head, q.query0 + row0 + row);
      write_quotient4(call, out, lane * 4, w[0][0], s[0], state_is_empty(m[0], s[0]), A::B16 ? call.dtype : TYPE_F32);
      if (call.lse != 0 && lane == 0) write_f32(call.lse + (first + row) * 4, log_sum_exp(m[0], s[0]));
      UNROLL for (int r = 0; r + 1 < ROWS; r++)  // moves the next row to the first place
        UNROLL for (int i = 0; i < GROUP; i++) w[r][i] = w[r + 1][i];
    }
  }
}

// Called by every thread of a block that has written the states of its split.
template <class A> INLINE void merge_splits(SharedBytes sm, const Call& call) {
  const Share share = share_of(call, opaque(block_index()));
  if (!is_last_split(call, share)) return;
  if (call.splits <= MERGED / 2) merge_block<A, MERGED / 2, 4>(sm, call, share);
  else merge_block<A, MERGED, 2>(sm, call, share);
}
