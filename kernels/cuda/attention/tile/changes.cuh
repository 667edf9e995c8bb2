// The pass over the scores of an edge: soft cap, bias and additive mask, boolean mask, the sides of windows, ranges.
#pragma once

#include "../added.cuh"
#include "bits.cuh"

// Applies the soft cap to one score at a time, rotating the scores.
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

// Address of a lane's addends for chunk `chunk` of the warp's rows, which has four rows, and column `column` of the tile, in the
// layout of weights: adjacent lanes may then read adjacent keys, independent of the columns of their scores.
template <class S> INLINE SharedBytes Tiles<S>::spot(int t, int chunk, int column) {
  const SharedBytes area = sm + X + (t >> 5) * (TILE * P_STRIDE);
  return area + column * P_STRIDE + ((chunk ^ weight_shift(column & (LANE_COLS - 1))) << 4);
}

// Stores the table entries that the index names in the exchange area.
template <class S> INLINE void Tiles<S>::look_up() {
  const Share share = here();
  const int last_row = share.sequence.queries - 1, kind = call.bias.kind;
  const int row = first_row(share) + (opaque(tid) >> 5) * WARP_ROWS;
  const Address base = addend_base(call.bias, share.sequence, share.head);
  NO_UNROLL for (int half = 0; half < TILE; half += 32) {
    const int t = opaque(tid), column = half + (t & 31), key = min_of(k0 + column, share.sequence.reach - 1);
    NO_UNROLL for (int chunk = 0; chunk < WARP_ROWS / 4; chunk += LOOKS) {
      u2 entry[LOOKS * 4];
      UNROLL for (int n = 0; n < LOOKS * 4; n++) {
        const long long token = min_of(row + chunk * 4 + n, last_row);
        entry[n] = load_u2(call.index + (token * call.index_keys + key) * 8);
      }
      float x[LOOKS * 4];
      auto at = [&](int n, int size) LAMBDA { return base + entry_of(call, entry[n]) * call.bias.query * size; };
      if (kind == ADDEND_F32) {
        UNROLL for (int n = 0; n < LOOKS * 4; n++) x[n] = load_f32(at(n, 4));
      } else {
        unsigned raw[LOOKS * 4];
        UNROLL for (int n = 0; n < LOOKS * 4; n++) raw[n] = load_u16(at(n, 2));
        UNROLL for (int n = 0; n < LOOKS * 4; n++)
          x[n] = kind == ADDEND_F16 ? f16_to_float(raw[n]) : bf16_to_float(raw[n]);
      }
      UNROLL for (int n = 0; n < LOOKS * 4; n++) x[n] = limited(x[n]);
      UNROLL for (int b = 0; b < LOOKS; b++)
        store_shared(spot(t, chunk + b, column), f4{x[b * 4], x[b * 4 + 1], x[b * 4 + 2], x[b * 4 + 3]});
    }
  }
}

// Adds the elements of the bias, or of an additive mask, to the warp's rows in the exchange area, which is still empty if
// `fresh`. Rows and keys past the last ones repeat the last. Sets `special` if an element is not finite or beyond ORDINARY.
template <class S> INLINE void Tiles<S>::add_elements(bool of_bias, bool fresh, bool& special) {
  const Share share = here();
  const Sequence& q = share.sequence;
  const int last_row = q.queries - 1, kind = of_bias ? call.bias.kind : call.mask.kind, size = addend_size(kind);
  const int first = min_of(first_row(share) + (opaque(tid) >> 5) * WARP_ROWS, last_row);
  const bool wraps = of_bias && call.windows.positions;
  const long long per_row = of_bias ? call.bias.query : call.mask.query;
  const long long per_key = (of_bias ? call.bias.key : call.mask.key) * size;
  const Address base = of_bias ? addend_base(call.bias, q, share.head) : addend_base(call.mask, q, share.head);
  NO_UNROLL for (int half = 0; half < TILE; half += 32) {
    const int t = opaque(tid), column = half + (t & 31), key = min_of(k0 + column, q.reach - 1);
    Address at = base + first * per_row * size + key * per_key;
    int left = 0, more = last_row - first;  // number of rows to the next row of a window; number of rows to the last row
    if (wraps) {
      const int width = call.windows.width, down = quotient_of(first, call.windows.by_width);
      at += down * (width - 1) * per_row * size + quotient_of(key, call.windows.by_width) * (width - 1) * per_key;
      left = (down + 1) * width - first;
    }
    // The element n rows from here, or of row `most` if that comes first.
    auto row = [&](int n, int size, int most) LAMBDA {
      return at + (long long)(min_of(n, most) * size) * (int)per_row;
    };
    auto next = [&](int n, int size, int most) LAMBDA -> Address {  // consecutive rows, which wrap in a window
      const Address a = at;
      const bool wrap = --left == 0;
      left = wrap ? call.windows.width : left;
      if (n < most) at += (long long)((wrap ? call.windows.width : 1) * size) * (int)per_row;
      return a;
    };
    NO_UNROLL for (int chunk = 0; chunk < WARP_ROWS / 4; chunk += BATCH) {
      float x[ROWS];
      unsigned raw[ROWS];
      const int most = opaque(more);
      if (kind == ADDEND_F32) {
        if (wraps) {
          UNROLL for (int n = 0; n < ROWS; n++) x[n] = load_f32(next(n, 4, most));
        } else {
          const int last = opaque(most);
          UNROLL for (int n = 0; n < ROWS; n++) x[n] = load_f32(row(n, 4, last));
        }
      } else {
        UNROLL for (int n = 0; n < ROWS; n++) raw[n] = load_u16(next(n, 2, most));
        UNROLL for (int n = 0; n < ROWS; n++)
          x[n] = kind == ADDEND_F16 ? f16_to_float(raw[n]) : bf16_to_float(raw[n]);
      }
      if (!wraps && kind == ADDEND_F32) at += (long long)(ROWS * size) * (int)per_row;
      more -= ROWS;
      bool odd = false;
      UNROLL for (int n = 0; n < ROWS; n++) odd = odd || !(__builtin_fabsf(x[n]) <= ORDINARY);
      if (any_of_warp(odd)) {
        special = true;
        UNROLL for (int n = 0; n < ROWS; n++) x[n] = limited(x[n]);
      }
      if (!fresh) {
        f4 sum[BATCH];
        UNROLL for (int b = 0; b < BATCH; b++) sum[b] = load_shared(spot(t, chunk + b, column));
        UNROLL for (int n = 0; n < ROWS; n++)
          x[n] = special ? added(sum[n >> 2][n & 3], x[n]) : sum[n >> 2][n & 3] + x[n];
      }
      UNROLL for (int b = 0; b < BATCH; b++)
        store_shared(spot(t, chunk + b, column), f4{x[b * 4], x[b * 4 + 1], x[b * 4 + 2], x[b * 4 + 3]});
    }
  }
  if (!B16 && !wraps) fetch_ahead(share, base, per_row * size, per_key);
}

// Prefetches the elements of the next tile; strides in bytes.
template <class S>
INLINE void Tiles<S>::fetch_ahead(const Share& share, Address base, long long per_row, long long per_key) {
  const Sequence& q = share.sequence;
  if (k0 + TILE >= q.reach) return;
  const int t = opaque(tid), key = min_of(k0 + TILE + (t & 1) * 32, q.reach - 1);
  const int row = first_row(share) + (t >> 5) * WARP_ROWS + (t >> 1 & 15);
  UNROLL for (int n = 0; n < WARP_ROWS; n += 16)
    prefetch(base + min_of(row + n, q.queries - 1) * per_row + key * per_key);
}

// The addend whose elements lanes load for their own scores: a bias, a mask or none.
template <class S> INLINE int Tiles<S>::own_addend() {
  return call.changes & (has_bits(call) ? CHANGED_BY_BIAS : CHANGED_BY_MASK | CHANGED_BY_BIAS);
}

// Start of the lane's elements in tile k0, whose keys are CLAMPED to the last one or all exist. With FETCH, prefetches the
// elements of the next tile.
template <class S> template <bool CLAMPED, bool FETCH> INLINE typename Tiles<S>::Elements32 Tiles<S>::own_elements() {
  const bool of_bias = own_addend() == CHANGED_BY_BIAS;
  const Share share = here();
  const Sequence& q = share.sequence;
  Elements32 x;
  x.per_row = (of_bias ? call.bias.query : call.mask.query) * 4;
  const Address base = of_bias ? addend_base(call.bias, q, share.head) : addend_base(call.mask, q, share.head);
  if constexpr (FETCH) fetch_ahead(share, base, x.per_row, 4);
  const int t = opaque(tid), row = own_row(share, t);
  const int first = CLAMPED ? min_of(k0 + lane_col(t), q.reach - 1) : k0 + lane_col(t);
  x.keys = q.reach - 1 - first;
  x.rows = q.queries - 1;
  x.row = row;
  x.at = base + min_of(row, q.queries - 1) * x.per_row + first * 4ll;
  return x;
}

// Loads the elements of the next COUNT rows. Rows past the last one repeat it, and so do CLAMPED keys.
template <class S>
template <bool CLAMPED, int COUNT>
INLINE void Tiles<S>::load_elements(Elements32& from, float (&x)[COUNT][TN]) {
  UNROLL for (int i = 0; i < COUNT; i++) {
    UNROLL for (int j = 0; j < TN; j++)
      x[i][j] = load_f32(from.at + (CLAMPED ? min_of(j * LANE_COLS, from.keys) : j * LANE_COLS) * 4);
    from.at += from.row + i < from.rows ? from.per_row : 0;
  }
  from.row += COUNT;
}

// Adds elements to the scores of rows from `first` on. Sets `absent` if the lane has a masked key.
template <class S> template <int COUNT> INLINE void Tiles<S>::add_elements_to(int first, float (&x)[COUNT][TN], bool& absent) {
  float sums[4] = {0.f, 0.f, 0.f, 0.f};  // sums of magnitudes, which exceed ORDINARY if one magnitude does
  UNROLL for (int i = 0; i < COUNT; i++)
    UNROLL for (int j = 0; j < TN; j++) sums[j & 3] += __builtin_fabsf(x[i][j]);
  if (RARELY(any_of_warp(!((sums[0] + sums[1]) + (sums[2] + sums[3]) <= ORDINARY)))) {
    NO_UNROLL for (int i = 0; i < COUNT; i++) {  // each step moves the next row to the first place
      float y[TN];
      UNROLL for (int j = 0; j < TN; j++) {
        absent = absent || x[0][j] == NEG_INF;
        y[j] = changed(s[first][j], limited(x[0][j]));
      }
      UNROLL for (int n = 0; n + 1 < COUNT; n++)
        UNROLL for (int j = 0; j < TN; j++) {
          x[n][j] = x[n + 1][j];
          s[first + n][j] = s[first + n + 1][j];
        }
      UNROLL for (int j = 0; j < TN; j++) s[first + COUNT - 1][j] = y[j];
    }
  } else {
    UNROLL for (int i = 0; i < COUNT; i++)
      UNROLL for (int j = 0; j < TN; j++) s[first + i][j] = __builtin_fmaf(x[i][j], LOG2E, s[first + i][j]);
  }
}

// Loads the addends of plain tile k0 before its scores are computed.
template <class S> INLINE void Tiles<S>::load_early() {
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) early[i][j] = 0.f;
  if (own_addend() == 0) return;
  Elements32 from = own_elements<false, false>();
  load_elements<false>(from, early);
}

// Adds to the scores of tile k0 if only a boolean mask, an addend of f32 elements and ranges change them, some rows at a time.
// Returns whether a lane of the warp has a masked key.
template <class S> template <bool EDGE> INLINE bool Tiles<S>::add_scores() {
  bool absent = false;
  if (own_addend()) {
    constexpr int COUNT = EDGE ? 2 : TM / 2;
    Elements32 from = own_elements<EDGE, true>();
    UNROLL for (int row = 0; row < TM; row += COUNT) {
      float x[COUNT][TN];
      if constexpr (EARLY && !EDGE) {
        UNROLL for (int i = 0; i < COUNT; i++)
          UNROLL for (int j = 0; j < TN; j++) x[i][j] = early[row + i][j];
      } else {
        load_elements<EDGE>(from, x);
      }
      add_elements_to(row, x, absent);
    }
  }
  if (has_bits(call)) absent = take_bits() || absent;
  if constexpr (EDGE) absent = limit_scores() || absent;
  return any_of_warp(absent);
}

// Masks keys on another side than the row, or outside the row's range.
template <class S> INLINE void Tiles<S>::take_out(const Sides& sides, bool fresh) {
  const Share share = here();
  const int row = first_row(share) + (opaque(tid) >> 5) * WARP_ROWS;
  NO_UNROLL for (int half = 0; half < TILE; half += 32) {
    const int t = opaque(tid), column = half + (t & 31), key = k0 + column, side = side_of(call, sides, key);
    NO_UNROLL for (int chunk = 0; chunk < WARP_ROWS / 4; chunk++) {
      f4 y = zero4();
      if (!fresh) y = load_shared(spot(t, chunk, column));
      UNROLL for (int e = 0; e < 4; e++) {
        const int token = row + chunk * 4 + e;
        const Range range = range_of(share.sequence, token);
        const bool in = key >= range.start && key < range.end && side_of(call, sides, token) == side;
        y[e] = in ? y[e] : NEG_INF;
      }
      store_shared(spot(t, chunk, column), y);
    }
  }
}

// Changes the scores of tile k0, and loads its first values. Returns whether a lane of the warp has a masked key.
template <class S> INLINE bool Tiles<S>::change_scores() {
  if (call.cap != 0.f) cap_scores();
  const Share share = here();
  const Sequence& q = share.sequence;
  const int reach = q.reach;
  bool absent = k0 + TILE > reach, special = false;
  const Sides sides = sides_of(call, q);
  // Whether rows attend different keys.
  const bool differ = k0 < full_from || min_of(k0 + TILE, reach) > range_of(q, first_row(share)).end ||
                      sides.row != NO_SIDE || sides.column != NO_SIDE;
  const int addends = call.changes & (has_bits(call) ? CHANGED_BY_BIAS : CHANGED_BY_MASK | CHANGED_BY_BIAS);
  const bool adds = differ || addends != 0;
  if (adds) {
    sync_block();  // the keys are no longer needed
    bool fresh = true;
    if (call.changes & CHANGED_BY_INDEX) {
      look_up();
      special = true;
      fresh = false;
    }
    NO_UNROLL for (int of = CHANGED_BY_MASK; of <= CHANGED_BY_BIAS; of++)
      if ((addends & of) && !(of == CHANGED_BY_BIAS && (call.changes & CHANGED_BY_INDEX))) {
        add_elements(of == CHANGED_BY_BIAS, fresh, special);
        fresh = false;
      }
    if (differ) {
      take_out(sides, fresh);
      special = true;
    }
  }
  if constexpr (!B16) load_v<true>(k0, 0);  // values are in transit while scores become weights
  if (adds) {
    sync_warp();
    const int t = opaque(tid);
    const SharedBytes own = spot(t, lane_row(t) * (TM / 4), lane_col(t));
    const SharedBytes other = TM == 8 ? spot(t, lane_row(t) * (TM / 4) + 1, lane_col(t)) : own;
    if (B16 || special) {  // a single path needs fewer registers
      UNROLL for (int j = 0; j < TN; j++)
        UNROLL for (int h = 0; h < TM / 4; h++) {
          const f4 x = load_shared((h ? other : own) + j * (LANE_COLS * P_STRIDE));
          UNROLL for (int e = 0; e < 4; e++) {
            absent = absent || x[e] == NEG_INF;
            s[h * 4 + e][j] = changed(s[h * 4 + e][j], x[e]);
          }
        }
    } else {
      UNROLL for (int j = 0; j < TN; j++)
        UNROLL for (int h = 0; h < TM / 4; h++) {
          const f4 x = load_shared((h ? other : own) + j * (LANE_COLS * P_STRIDE));
          UNROLL for (int e = 0; e < 4; e++) s[h * 4 + e][j] = __builtin_fmaf(x[e], LOG2E, s[h * 4 + e][j]);
        }
    }
  }
  if (has_bits(call)) absent = take_bits() || absent;
  if (k0 + TILE > reach) {
    const int left = reach - k0 - lane_col(opaque(tid));
    UNROLL for (int j = 0; j < TN; j++)
      UNROLL for (int i = 0; i < TM; i++) s[i][j] = j * LANE_COLS < left ? s[i][j] : NEG_INF;
  }
  if constexpr (B16) load_v<true>(k0, 0);  // widened values need more registers
  return any_of_warp(absent);
}

// Applies the range of an edge without other changes to one column at a time, rotating the columns. Returns whether it masks a
// key.
template <class S> INLINE bool Tiles<S>::limit_scores() {
  const Share share = here();
  if (k0 >= full_from && k0 + TILE <= range_of(share.sequence, first_row(share)).end) return false;
  const int t = opaque(tid);
  const Sequence& q = share.sequence;
  const int row = own_row(share, t);
  const long long diagonal = (long long)q.offset + row;
  NO_UNROLL for (int j = 0; j < TN; j++) {
    const int key = k0 + j * LANE_COLS + lane_col(t);
    // Row i attends the key by length, causality and window if after < i <= before.
    const int before = q.left < 0 ? TM : clamped(key - diagonal + q.left, -1, TM);
    const int after = key >= q.reach ? TM : q.right < 0 ? -1 : clamped(key - diagonal - q.right - 1, -1, TM);
    UNROLL for (int i = 0; i < TM; i++) {
      const float x = s[i][0];
      UNROLL for (int n = 0; n + 1 < TN; n++) s[i][n] = s[i][n + 1];
      s[i][TN - 1] = before < i || after >= i || row + i >= q.queries ? NEG_INF : x;
    }
  }
  return true;
}
