// The pass over the scores of an edge: soft cap, bias and mask, the sides of windows, ranges.
#pragma once

#include "../added.cuh"
#include "tile.cuh"

// Whether not every row attends every key of tile k0 by length, causality and window.
template <class S> INLINE bool Tiles<S>::is_partial() {
  const Share share = here();
  return k0 < full_from || k0 + TILE > range_of(share.sequence, first_row(call, share)).end;
}

// The soft cap over the scores, column by column: the next column becomes the first.
template <class S> INLINE void Tiles<S>::cap_scores() {
  NO_UNROLL for (int n = 0; n < TM * TN; n++) {
    const float y = soft_cap(call, s[0][0]);
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) {
        const int next = i * TN + j + 1;
        if (next < TM * TN) s[i][j] = s[next / TN][next % TN];
      }
    s[TM - 1][TN - 1] = y;
  }
}

// Adds the elements of the bias, or of the mask, that belong to key `key` and BATCH chunks of four rows from `row` on to
// `sum`. Rows and keys past the last ones repeat them. Sets `special` where an element is not finite or beyond ORDINARY.
template <class S>
INLINE void Tiles<S>::add_elements(float (&sum)[BATCH][4], int row, int key, bool of_bias, bool& special) {
  const Share share = here();
  const Sequence& q = share.sequence;
  const int last_row = q.queries - 1, column = min_of(key, q.reach - 1);
  const int kind = of_bias ? call.bias.kind : call.mask.kind, size = addend_size(kind);
  const long long per_row = (of_bias ? call.bias.query : call.mask.query) * size;
  const long long per_key = (of_bias ? call.bias.key : call.mask.key) * size;
  const Address base = of_bias ? addend_base(call.bias, q, share.head) : addend_base(call.mask, q, share.head);
  Address at[BATCH][4];
  if (of_bias && (call.changes & CHANGED_BY_INDEX)) {
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) {
        const int token = min_of(row + b * 4 + e, last_row);
        at[b][e] = base + indexed_entry(call, call.index + token * (call.index_keys * 8ll), column) * per_row;
      }
  } else {
    auto position = [&](int token) LAMBDA { return of_bias ? bias_position(call, token) : token; };
    const Address from = base + position(column) * per_key;
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) at[b][e] = from + position(min_of(row + b * 4 + e, last_row)) * per_row;
  }
  float x[BATCH][4];
  if (kind == ADDEND_F32) {
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) x[b][e] = load_f32(at[b][e]);
  } else if (kind == ADDEND_BOOL) {
    special = true;
    unsigned raw[BATCH][4];
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) raw[b][e] = load_u8(at[b][e]);
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) sum[b][e] = raw[b][e] != 0 ? sum[b][e] : NEG_INF;
    return;
  } else {
    unsigned raw[BATCH][4];
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) raw[b][e] = load_u16(at[b][e]);
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++)
        x[b][e] = kind == ADDEND_F16 ? f16_to_float(raw[b][e]) : bf16_to_float(raw[b][e]);
  }
  bool odd = false;
  UNROLL for (int b = 0; b < BATCH; b++)
    UNROLL for (int e = 0; e < 4; e++) odd = odd || !(__builtin_fabsf(x[b][e]) <= ORDINARY);
  if (any_of_warp(odd)) {
    special = true;
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) sum[b][e] = added(sum[b][e], limited(x[b][e]));
  } else {
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) sum[b][e] += x[b][e];
  }
}

// Takes out a key on another side than the row and, where `partial`, one that is out of the row's range.
template <class S> INLINE void Tiles<S>::limit_elements(float (&sum)[BATCH][4], int row, int key, bool partial) {
  const Share share = here();
  if (call.changes & CHANGED_BY_SIDES) {
    const Sides sides = sides_of(call, share.sequence);
    const int side = side_of(call, sides, key);
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++)
        sum[b][e] = side_of(call, sides, row + b * 4 + e) == side ? sum[b][e] : NEG_INF;
  }
  if (partial) {
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) {
        const Range range = range_of(share.sequence, row + b * 4 + e);
        sum[b][e] = key >= range.start && key < range.end ? sum[b][e] : NEG_INF;
      }
  }
}

// Changes the scores of tile k0. Returns whether a lane of the warp has a key that is not attended.
//
// What is added to the rows of a warp goes through the exchange area, in the layout of weights: lanes side by side read
// keys side by side, whatever the columns of their scores.
template <class S> INLINE bool Tiles<S>::change_scores() {
  if (call.cap != 0.f) cap_scores();
  const bool partial = is_partial();
  if (!partial && call.changes == 0) return false;
  sync_block();  // the keys are dead
  bool special = partial || (call.changes & CHANGED_BY_SIDES);
  const SharedBytes area = sm + X + (opaque(tid) >> 5) * (TILE * P_STRIDE);
  NO_UNROLL for (int n = 0; n < 2 * BATCHES; n++) {
    const int t = opaque(tid), column = (n & 1) * 32 + (t & 31), chunk = (n >> 1) * BATCH;
    const int row = first_row(call, here()) + (t >> 5) * WARP_ROWS + chunk * 4;
    float sum[BATCH][4];
    UNROLL for (int b = 0; b < BATCH; b++)
      UNROLL for (int e = 0; e < 4; e++) sum[b][e] = 0.f;
    NO_UNROLL for (int of = CHANGED_BY_MASK; of <= CHANGED_BY_BIAS; of++)
      if (call.changes & of) add_elements(sum, row, k0 + column, of == CHANGED_BY_BIAS, special);
    if (partial || (call.changes & CHANGED_BY_SIDES)) limit_elements(sum, row, k0 + column, partial);
    UNROLL for (int b = 0; b < BATCH; b++)
      store_shared(area + column * P_STRIDE + (((chunk + b) ^ weight_shift(column & (LANE_COLS - 1))) << 4),
                   f4{sum[b][0], sum[b][1], sum[b][2], sum[b][3]});
  }
  sync_warp();
  const int t = opaque(tid), cg = lane_col(t), rg = lane_row(t) * (TM / 4);
  auto element = [&](int j, int h) LAMBDA {
    return load_shared(area + (j * LANE_COLS + cg) * P_STRIDE + (((rg + h) ^ weight_shift(cg)) << 4));
  };
  bool absent = false;
  if (special) {
    UNROLL for (int j = 0; j < TN; j++)
      UNROLL for (int h = 0; h < TM / 4; h++) {
        const f4 x = element(j, h);
        UNROLL for (int e = 0; e < 4; e++) {
          absent = absent || x[e] == NEG_INF;
          s[h * 4 + e][j] = changed(s[h * 4 + e][j], x[e]);
        }
      }
  } else {
    UNROLL for (int j = 0; j < TN; j++)
      UNROLL for (int h = 0; h < TM / 4; h++) {
        const f4 x = element(j, h);
        UNROLL for (int e = 0; e < 4; e++) s[h * 4 + e][j] = __builtin_fmaf(x[e], LOG2E, s[h * 4 + e][j]);
      }
  }
  return any_of_warp(absent);
}

// The range of an edge without other changes, column by column: the next column becomes the first.
template <class S> INLINE void Tiles<S>::limit_scores() {
  const Share share = here();
  const int t = opaque(tid);
  const Sequence& q = share.sequence;
  const int row = own_row(call, share, t);
  const long long diagonal = (long long)q.offset + row;
  NO_UNROLL for (int j = 0; j < TN; j++) {
    const int key = k0 + j * LANE_COLS + lane_col(t);
    // Row i attends the key by length, causality and window when after < i <= before.
    const int before = q.left < 0 ? TM : clamped(key - diagonal + q.left, -1, TM);
    const int after = key >= q.reach ? TM : q.right < 0 ? -1 : clamped(key - diagonal - q.right - 1, -1, TM);
    UNROLL for (int i = 0; i < TM; i++) {
      const float x = s[i][0];
      UNROLL for (int n = 0; n + 1 < TN; n++) s[i][n] = s[i][n + 1];
      s[i][TN - 1] = before < i || after >= i || row + i >= q.queries ? NEG_INF : x;
    }
  }
}
