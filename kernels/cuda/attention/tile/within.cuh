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
//  1. Most tiles stay, and one comparison in a lane shows that of most: where every lane of a row has more weights in the tile
//     than fit beside what it has of S, so has the row. A warp whose lanes all have, in the first row of each, keeps the tile.
//  2. Else all rows are summed. As many lanes share a row as a lane has rows, or twice as many, so each lane votes for one
//     row: sums are added up across lanes in steps of which each halves what a lane has. Between votes a lane has D of its row
//     and no more; S is that of the state.
//  3. What the state and the output have is summed as without a budget, so that where every tile stays no bit differs. D has
//     no other sum than that of the votes.
//  4. The vote takes the place of the barrier before the values of a tile, whose first stage is on its way by then. So are
//     the next keys while the values are searched for a NaN or an infinity, with which a tile is never left out.
//  5. Counts lie in memory, not in registers: at the outset all tiles of the block, from which those are taken back that no row
//     attends. One thread adds to them, and waits for nothing.
#pragma once

#include "tile.cuh"
#include "values.cuh"

// Where a block counts: in the order of blocks. The blocks of packed sequences are not known before the run; a sequence counts
// behind as many places as BM rows before it fill, and one for each sequence before it.
template <class S> INLINE int Tiles<S>::place_of_counts(const Limit& limit, const Share& share) {
  if (limit.places == 0) return block_index();
  return share.head * limit.places + share.sequence.query0 / BM + share.index + first_row(share) / BM;
}

// Begins the counts of a block of `rows` rows, none of an empty sequence, with `tiles` tiles.
template <class S> INLINE void Tiles<S>::open_counts(const Limit& limit, const Share& share, int rows, int tiles) {
  if (thread_index() != 0) return;
  const Address at = limit.counts + place_of_counts(limit, share) * 16ll;
  u2 x, y;
  x[0] = tiles;
  y[0] = rows;
  x[1] = y[1] = 0;
  write_u2(at, x);
  write_u2(at + 8, y);
  const Sequence& s = share.sequence;
  if (limit.places == 0 || first_row(share) + BM < s.queries) return;
  // The last block of a packed sequence: if there is a place more before those of the next one, nothing is counted there.
  const int next = (s.query0 + s.queries) / BM + 1, own = s.query0 / BM + first_row(share) / BM + 1;
  if (own < next) {
    x[0] = y[0] = 0;
    write_u2(at + 16, x);
    write_u2(at + 24, y);
  }
}

// Adds to a count: tiles that some row attends, then those of them that are left out.
template <class S> INLINE void Tiles<S>::count(int which, int more) {
  if (opaque(tid) == 0) add_u32(this->limit.counts + this->vote.place * 16ll + which * 4, more);
}

// Begins the votes of a split.
template <class S> INLINE void Tiles<S>::open_vote(const Share& share) {
  const int t = opaque(tid);
  const bool there = own_row(share, t) + own_row_of(t) < share.sequence.queries;
  this->vote.lost = there ? 0.f : -1.f;
  this->vote.place = place_of_counts(this->limit, share);
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

// Brings what was left out to the reference of row i that moved by `scale`.
template <class S> INLINE void Tiles<S>::move_vote(int i, float scale) {
  if (own_row_of(opaque(tid)) == i) this->vote.lost *= scale;
}

// The same for all rows.
template <class S> INLINE void Tiles<S>::move_vote(const float (&scale)[TM]) {
  const int own = own_row_of(opaque(tid));
  float by = scale[0];
  UNROLL for (int i = 1; i < TM; i++) by = own == i ? scale[i] : by;
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

// Whether one of four elements on their way is not finite.
INLINE bool is_odd(f4 x, int) { return is_odd(x); }
INLINE bool is_odd(u2 x, int dtype) {
  const unsigned low = dtype == TYPE_F16 ? 0x7c00 : 0x7f80, high = low << 16;
  return (x[0] & low) == low || (x[0] & high) == high || (x[1] & low) == low || (x[1] & high) == high;
}

// Whether a value of the tile, whose first stage has been loaded, is not finite. Those that no row attends count, too.
template <class S> template <bool EDGE> INLINE bool Tiles<S>::holds_odd_values() {
  const int keys = live<EDGE>();
  bool odd = false;
  NO_UNROLL for (int stage = 0;;) {
    if constexpr (EDGE && SLOW) {
      gather_v(k0, stage);
      UNROLL for (int i = 0; i < V_ITEMS; i++) odd = odd || is_odd(vr[i], call.dtype);
    } else {
      const auto& from = travelling();
      UNROLL for (int i = 0; i < V_ITEMS; i++) odd = odd || is_odd(from[i], call.dtype);
    }
    if (++stage == STAGES || stage * VK >= keys) break;
    if constexpr (!(EDGE && SLOW)) load_v<EDGE>(k0, stage);
  }
  return any_of_block(odd);
}

// Whether the block leaves the tile out, of whose weights a lane has the sums `r`; `absent`: the warp has keys that are not
// attended. Adds the sums where they belong. Of a tile that stays the first stage of values is on its way afterwards, of
// another the next keys are; neither in slow edges. A tile that no row attends is not counted.
template <class S> template <bool EDGE> INLINE bool Tiles<S>::leaves_out(const float (&r)[TM], bool absent) {
  const float odds = this->limit.odds;
  const bool voted = (int)bits_of(this->vote.lost) >= 0;
  bool stays = any_of_block(!any_of_warp(!voted || !(r[0] > odds * sum[0])));
  if (RARELY(!stays)) {
    const float b = own_sum(r), room = odds * own_sum(sum);
    // The rule of `fits` in core: a sum of zero fits anywhere, and any other only into room that is a normal number.
    const bool fits = b == 0.f || (room >= 0x1p-126f && this->vote.lost + b <= room);
    stays = any_of_block(!fits && voted);
    if (!stays) {
      bool some = true;
      if constexpr (EDGE) {
        unsigned weights = 0;
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++) weights |= bits_of(s[i][j]);
        some = any_of_block(!absent || weights != 0);
      }
      constexpr bool EARLY_KEYS = STRAIGHT != 2 && !(EDGE && SLOW), LATE_KEYS = STRAIGHT == 2 && !(EDGE && SLOW);
      if constexpr (EARLY_KEYS) {
        if (ready) load_k<EDGE>(k0 + TILE, 0);
        else drop_k();
      }
      stays = some && holds_odd_values<EDGE>();
      if (!stays) {
        if constexpr (LATE_KEYS) {
          if (ready) load_k<EDGE>(k0 + TILE, 0);
          else drop_k();
        }
        this->vote.lost = voted ? this->vote.lost + b : this->vote.lost;
        if (some) count(1, 1);
        else count(0, -1);
        return true;
      }
      if constexpr (!(EDGE && SLOW)) load_v<EDGE>(k0, 0);
    }
  }
  UNROLL for (int i = 0; i < TM; i++) sum[i] += r[i];
  return false;
}

// Row i's reference, S and D: `row` is the lane's first row.
template <class S> INLINE void Tiles<S>::write_left_out(const Share& share, int row, int i, float m, float s, float d) {
  const long long all = (long long)call.query_rows * 4;
  const Address at = this->limit.left_out + row_number(call, share.sequence, share.head, row + i) * 4;
  write_f32(at, m);
  write_f32(at + all, s);
  write_f32(at + 2 * all, d);
}
