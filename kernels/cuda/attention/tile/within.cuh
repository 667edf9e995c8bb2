// Votes inside an error budget: a tile is left out if its weights are small enough in every row of the block.
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
//  1. Most tiles stay, and one comparison per lane shows it for most of them: if every lane of a row has more weight in the
//     tile than its share of S allows, so has the row. A warp in which this holds for the first row of every lane keeps the
//     tile.
//  2. Otherwise all rows are summed. The number of lanes that share a row is the number of rows per lane, or twice that, so
//     each lane votes for one row: sums are exchanged across lanes in steps that each halve a lane's share. Between votes a
//     lane only has D of its row; S is that of the state.
//  3. The sums of the state and the output are the same as without a budget, so that the bits are the same if every tile stays.
//     D only has the sums of the votes.
//  4. The vote replaces the barrier before the values of a tile, whose first stage is in transit by then. So are the next keys
//     while the values are searched for a NaN or an infinity; a tile with one is never left out.
//  5. Counts are in memory, not in registers: they start with all tiles of the block, and tiles that no row attends are
//     subtracted. One thread adds to them, without waiting.
#pragma once

#include "tile.cuh"
#include "values.cuh"

// A block's place among the counts: in block order. The blocks of packed sequences are not known before the run, so the places
// of a sequence start after those of the BM-row blocks that fit before it, plus one per sequence before it.
template <class S> INLINE int Tiles<S>::place_of_counts(const Limit& limit, const Share& share) {
  if (limit.places == 0) return block_index();
  return share.head * limit.places + share.sequence.query0 / BM + share.index + first_row(share) / BM;
}

// Initializes the counts of a block with `rows` rows, none for an empty sequence, and `tiles` tiles.
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
  // The last block of a packed sequence clears the place that may be left before those of the next sequence.
  const int next = (s.query0 + s.queries) / BM + 1, own = s.query0 / BM + first_row(share) / BM + 1;
  if (own < next) {
    x[0] = y[0] = 0;
    write_u2(at + 16, x);
    write_u2(at + 24, y);
  }
}

// Adds `more` to a count: of tiles that some row attends, or of tiles that are left out.
template <class S> INLINE void Tiles<S>::count(int which, int more) {
  if (opaque(tid) == 0) add_u32(this->limit.counts + this->vote.place * 16ll + which * 4, more);
}

// Starts the votes of a split.
template <class S> INLINE void Tiles<S>::open_vote(const Share& share) {
  const int t = opaque(tid);
  const bool there = own_row(share, t) + own_row_of(t) < share.sequence.queries;
  this->vote.lost = there ? 0.f : -1.f;
  this->vote.place = place_of_counts(this->limit, share);
}

// The sum of the row that this lane votes for, over the lanes that share it.
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

// Rescales the left-out sum to the reference of row i, which moved by `scale`.
template <class S> INLINE void Tiles<S>::move_vote(int i, float scale) {
  if (own_row_of(opaque(tid)) == i) this->vote.lost *= scale;
}

// Rescales the left-out sum to the references of all rows, which moved by `scale`.
template <class S> INLINE void Tiles<S>::move_vote(const float (&scale)[TM]) {
  const int own = own_row_of(opaque(tid));
  float by = scale[0];
  UNROLL for (int i = 1; i < TM; i++) by = own == i ? scale[i] : by;
  this->vote.lost *= by;
}

// Turns scores into weights, and sums the weights of each of a lane's rows.
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

// Whether one of four elements in transit is not finite.
INLINE bool is_odd(f4 x, int) { return is_odd(x); }
INLINE bool is_odd(u2 x, int dtype) {
  const unsigned low = dtype == TYPE_F16 ? 0x7c00 : 0x7f80, high = low << 16;
  return (x[0] & low) == low || (x[0] & high) == high || (x[1] & low) == low || (x[1] & high) == high;
}

// Whether a value of the tile, whose first stage has been loaded, is not finite. Values that no row attends count too.
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

// Whether the block leaves out the tile; `r` are a lane's sums of its weights, and `absent` says whether the warp has masked keys.
// Adds the sums to S or D. Afterwards, except in slow edges, the first stage of values is in transit for a tile that stays, and
// the next keys for one that is left out. A tile that no row attends is not counted.
template <class S> template <bool EDGE> INLINE bool Tiles<S>::leaves_out(const float (&r)[TM], bool absent) {
  const float odds = this->limit.odds;
  const bool voted = (int)bits_of(this->vote.lost) >= 0;
  bool stays = any_of_block(!any_of_warp(!voted || !(r[0] > odds * sum[0])));
  if (RARELY(!stays)) {
    const float b = own_sum(r), room = odds * own_sum(sum);
    // As in `fits` in core, a sum of zero always fits, and any other sum fits only if the room is a normal number.
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

// Writes row i's reference, S and D: `row` is the lane's first row.
template <class S> INLINE void Tiles<S>::write_left_out(const Share& share, int row, int i, float m, float s, float d) {
  const long long all = (long long)call.query_rows * 4;
  const Address at = this->limit.left_out + row_number(call, share.sequence, share.head, row + i) * 4;
  write_f32(at, m);
  write_f32(at + all, s);
  write_f32(at + 2 * all, d);
}
