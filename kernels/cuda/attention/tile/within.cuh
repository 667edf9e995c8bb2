// Votes inside an error budget: a tile is left out where its weights are small enough in every row of the block.
//
//   D + b <= E (S + D + b), that is D + b <= E / (1 - E) * S       b: the weights of a row in the tile
//
// The naive loop, once the weights of a tile are known:
//
//   for each row i:  b[i] = sum_j p[i][j],  fits[i] = D[i] + b[i] <= odds * S[i]
//   if all fit:      D += b
//   else:            S += b, W += P V
//
// Why the code differs:
//
//  1. A lane's sums are those of its own columns; a row decides by all of them. As many lanes share a row as a lane has
//     rows, or twice as many, so each lane votes for one row: sums of rows are added up across lanes in steps of which
//     each halves what a lane has, and the totals S and D take a register each.
//  2. What the state and the output have is summed as without a budget, so that where every tile stays no bit differs. D has
//     no other sum than that of the votes.
//  3. The vote takes the place of the barrier before the values of a tile, whose first stage is on its way by then. So are
//     the next keys while the values are searched for a NaN or an infinity, with which a tile is never left out.
#pragma once

#include "tile.cuh"
#include "values.cuh"

// Begins the votes of a split.
template <class S> INLINE void Tiles<S>::open_vote(const Share& share) {
  const int t = opaque(tid);
  const bool there = own_row(call, share, t) + own_row_of(t) < share.sequence.queries;
  this->vote.kept = 0.f;
  this->vote.lost = there ? 0.f : -1.f;
  this->vote.met = this->vote.skipped = 0;
}

// The sum, over the lanes that share it, of the row that this lane votes for.
template <class S> INLINE float Tiles<S>::own_sum(const float (&x)[TM]) {
  float y[TM];
  UNROLL for (int i = 0; i < TM; i++) y[i] = x[i];
  const int t = opaque(tid);
  UNROLL for (int bit = 1; bit < TM; bit *= 2) {
    const bool high = (t & 2 * bit) != 0;
    UNROLL for (int i = 0; i < TM / (2 * bit); i++) {
      const float a = y[2 * i], b = y[2 * i + 1];
      y[i] = (high ? b : a) + shuffle_xor(high ? a : b, 2 * bit);
    }
  }
  float sum = y[0];
  UNROLL for (int bit = TM; bit < LANE_COLS; bit *= 2) sum += shuffle_xor(sum, 2 * bit);
  return sum;
}

// Brings the totals to references that moved by `scale`.
template <class S> INLINE void Tiles<S>::move_vote(const float (&scale)[TM]) {
  const int own = own_row_of(opaque(tid));
  float by = scale[0];
  UNROLL for (int i = 1; i < TM; i++) by = own == i ? scale[i] : by;
  this->vote.kept *= by;
  this->vote.lost *= by;
}

// Turns scores into weights, and sums those of a lane's rows up.
template <class S> INLINE void Tiles<S>::weigh(bool absent, float (&r)[TM]) {
  if (RARELY(absent)) {
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) s[i][j] = signed_weight(s[i][j], m[i]);
  } else {
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) s[i][j] = exp2_fast(s[i][j] - m[i]);
  }
  UNROLL for (int i = 0; i < TM; i++) {
    r[i] = s[i][0];
    UNROLL for (int j = 1; j < TN; j++) r[i] += s[i][j];
  }
}

// Whether a value of the tile, whose first stage has been loaded, is not finite. Those that no row attends count, too.
template <class S> template <bool EDGE> INLINE bool Tiles<S>::holds_odd_values() {
  const int keys = live<EDGE>();
  bool odd = false;
  NO_UNROLL for (int stage = 0;;) {
    UNROLL for (int i = 0; i < V_ITEMS; i++) odd = odd || is_odd(to_f32(vr[i], call.dtype));
    if (++stage == STAGES || stage * VK >= keys) break;
    load_v<EDGE>(k0, stage);
  }
  return any_of_block(odd);
}

// Whether the block leaves the tile out, of whose weights a lane has the sums `r`; `absent`: the warp has keys that are not
// attended. Adds the sums where they belong. Of a tile that stays the first stage of values is on its way afterwards, of
// another the next keys are. A tile that no row attends is not counted.
template <class S> template <bool EDGE> INLINE bool Tiles<S>::leaves_out(const float (&r)[TM], bool absent) {
  const float b = own_sum(r), room = this->limit.odds * this->vote.kept;
  // The rule of `fits` in core: a sum of zero fits anywhere, and any other only into room that is a normal number.
  const bool fits = b == 0.f || (room >= 0x1p-126f && this->vote.lost + b <= room);
  const bool voted = (int)bits_of(this->vote.lost) >= 0;
  bool stays = any_of_block(!fits && voted), some = true;
  if (!stays) {
    if constexpr (EDGE) {
      unsigned weights = 0;
      UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++) weights |= bits_of(s[i][j]);
      some = any_of_block(!absent || weights != 0);
    }
    if (ready) load_k<EDGE>(k0 + TILE, 0);
    else drop_k();
    stays = some && holds_odd_values<EDGE>();
    if (RARELY(stays)) load_v<EDGE>(k0, 0);
  }
  this->vote.met += some;
  if (stays) {
    this->vote.kept += b;
    UNROLL for (int i = 0; i < TM; i++) sum[i] += r[i];
    return false;
  }
  this->vote.lost = voted ? this->vote.lost + b : this->vote.lost;
  this->vote.skipped += some;
  return true;
}

// Row i's reference, S and D: `row` is the lane's first row.
template <class S> INLINE void Tiles<S>::write_left_out(const Share& share, int row, int i, float m, float s, float d) {
  const long long all = (long long)call.query_rows * 4;
  const Address at = this->limit.left_out + row_number(call, share.sequence, share.head, row + i) * 4;
  write_f32(at, m);
  write_f32(at + all, s);
  write_f32(at + 2 * all, d);
}

// What a block of `rows` rows has counted.
template <class S> INLINE void Tiles<S>::write_counts(int rows) {
  if (opaque(tid) != 0) return;
  const Address at = this->limit.counts + block_index() * 16ll;
  u2 x;
  x[0] = this->vote.met;
  x[1] = this->vote.skipped;
  write_u2(at, x);
  x[0] = rows;
  x[1] = 0;
  write_u2(at + 8, x);
}
