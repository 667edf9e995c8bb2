// The last state of the quadratic form; quadratic.cuh has the formula.
#pragma once

#include "quadratic.cuh"

namespace quadratic {

// The last state: a block has ROWS of its rows, which are a part of the call. The call's heads are states.
struct Last : Pairs<false> {
  typedef Pairs<false> P;

  INLINE Last(SharedBytes sm, const Linear& call) : P(sm, call) {}

  INLINE void run() {
    const int of_columns = quotient_of(block_index(), call.by_columns), of_parts = quotient_of(of_columns, call.by_parts);
    column0 = (block_index() - of_columns * call.columns) * COLUMNS;
    take(of_parts);
    const int first = (of_columns - of_parts * call.parts) * ROWS, x = first + lane, gate = has(DIM_GATES) ? x : 0;
    const Rows from = values();
    clear_answers();
    double run = 0.;  // sum of the logarithms of the tokens after the keys
    NO_UNROLL for (int key0 = (sequence.tokens - 1) / KEYS * KEYS; key0 >= 0 && sequence.tokens > 0; key0 -= KEYS) {
      sync_block();  // the data of the previous tile is no longer needed
      measure(keys, key0, ROWS);
      sync_block();
      unsigned seen = 0;
      NO_UNROLL for (int j = KEYS - 1; j >= 0; j--) {
        if (j / OWN == warp) {
          seen |= run == CLEARED ? 0 : 1u << j;
          const float y = element_of(keys, key0 + j, x) * number_at(NORMS_AT, ROWS + j) * exp_of(run);
          store_shared_f(sm + SCORES_AT + lane * SCORE_BYTES + j * 4, run == CLEARED ? 0.f : y);
        }
        run = and_before(run, logarithm(key0 + j, gate));
      }
      set_seen(seen);
      const bool finite = bring_values([&](int j, int column) LAMBDA {
        if (key0 + j >= sequence.tokens) return zero4();
        return unpacked(from, load_row4(from, row_at(from, key0 + j), column));
      });
      const bool all_finite = !any_of_block(!finite);
      add(all_finite);
      if (!any_of_block(run != CLEARED && x < call.key_dim)) break;
    }
    sync_block();
    if (warp == 0) set_sum(lane, run);
    sync_block();
    const States& s = call.last;
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = thread_index() / 16 + 8 * i, column = column0 + thread_index() % 16 * 4;
      if (first + r >= call.key_dim) continue;
      const double kept = sum_of(r);
      const f4 before = past_row(first + r, column);
      if (kept != CLEARED)
        UNROLL for (int c = 0; c < 4; c++) answer[i][c] = grown(kept, before[c], answer[i][c]);
      const Address at = s.data + (number * s.sequence + state_head * s.head + (first + r) * s.row + column) * 4;
      UNROLL for (int c = 0; c < 4; c++)
        if (column + c < call.value_dim) write_f32(at + c * 4, answer[i][c]);
    }
  }
};

}  // namespace quadratic
