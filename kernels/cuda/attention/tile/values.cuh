// Steps of W += P V.
#pragma once

#include "tile.cuh"

// Whether one of four elements is not finite.
INLINE bool is_odd(f4 x) {
  bool odd = false;
  UNROLL for (int e = 0; e < 4; e++) odd = odd || !(__builtin_fabsf(x[e]) < -NEG_INF);
  return odd;
}

// Stores a stage of values and loads the next operands. If keys are `absent`, sets `odd_values` to whether a value is not
// finite.
template <class S>
template <bool EDGE>
INLINE void Tiles<S>::open_stage(const Exchange& x, int stage, bool absent, bool gaps, bool& odd_values) {
  if constexpr (EDGE && SLOW) gather_v(k0, stage);
  // The contents of the area are no longer needed if the tile has just had a vote, because it or its keys may be left out.
  constexpr bool VOTED = BUDGET || ADDED || (EDGE && !LEAN);
  if (!VOTED || stage > 0) sync_block();
  bool odd = false;
  auto bring = [&](auto& from) LAMBDA {
    store_v(from);
    if ((EDGE && !ADDED) || (ADDED && RARELY(gaps)))
      UNROLL for (int i = 0; i < V_ITEMS; i++) odd = odd || is_odd(to_f32(from[i], call.dtype));
  };
  if constexpr (EDGE && SLOW) bring(vr);
  else bring(travelling());
  if constexpr (PIPED && !EDGE) put_column(x, 0, 0);
  if constexpr (!(EDGE && SLOW)) {
    if (stage + 1 < STAGES) load_v<EDGE>(k0, stage + 1);
    else if (ready) load_k<EDGE>(k0 + TILE, 0);
    else drop_k();
  }
  if ((EDGE && !ADDED) || (ADDED && RARELY(gaps))) odd_values = any_of_block(odd) && absent;
  else sync_block();
}

// W += p v' for one key.
template <class S> INLINE void Tiles<S>::add_products(const f4 (&p)[TM / 4], const float (&v)[AN]) {
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int n = 0; n < AN; n++) {
      const int j = to_and_fro(i, n, AN);
      acc[i][j] = __builtin_fmaf(p[i >> 2][i & 3], v[j], acc[i][j]);
    }
}

// Stores the weights of a column of scores in slot `slot` of the exchange.
template <class S> INLINE void Tiles<S>::put_column(const Exchange& x, int slot, int column) {
  UNROLL for (int h = 0; h < TM / 4; h++)
    store_shared(x.weights + (slot * LANE_COLS + x.cg) * P_STRIDE + (((x.rg + h) ^ weight_shift(x.cg)) << 4),
                 f4{s[h * 4][column], s[h * 4 + 1][column], s[h * 4 + 2][column], s[h * 4 + 3][column]});
}

// Exchanges the weights of PC columns from `first` on, and rotates the columns up to `last`.
template <class S> INLINE void Tiles<S>::put_weights(const Exchange& x, int first, int last) {
  sync_warp();
  UNROLL for (int jj = 0; jj < PC; jj++) put_column(x, jj, first + jj);
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = first; j + PC < last; j++) s[i][j] = s[i][j + PC];
  sync_warp();
}

// Adds the products of a stage whose first column of weights is in the exchange. While a column is multiplied, the next
// one is stored in the other slot.
template <class S> INLINE void Tiles<S>::multiply_stage(const Exchange& x) {
  if (RARELY(idles())) return;
  f4 pa[2][TM / 4];
  float vb[2][AN];
  auto fragments = [&](int b, int key) LAMBDA {
    const int f = weight_shift(key & (LANE_COLS - 1));
    UNROLL for (int h = 0; h < TM / 4; h++)
      pa[b][h] = load_shared(x.weights + key % (2 * LANE_COLS) * P_STRIDE + chunk_of_weights(x.rg, h, f));
    UNROLL for (int h = 0; h < AF; h++) {
      const f4 v = load_shared(sm + X + key * V_STRIDE + x.cg * 16 + h * (LANE_COLS * 16));
      UNROLL for (int e = 0; e < 4; e++) vb[b][h * 4 + e] = v[e];
    }
  };
  fragments(0, 0);
  UNROLL for (int key = 0; key < VK; key++) {
    const int b = key & 1, next = key / LANE_COLS + 1;
    if (key % LANE_COLS == LANE_COLS / 2 && next < VK / LANE_COLS) {
      sync_warp();
      put_column(x, next & 1, next);
      sync_warp();
    }
    if (key + 1 < VK) fragments(b ^ 1, key + 1);
    add_products(pa[b], vb[b]);
  }
}

// Adds the products of up to UK keys, with weights from `pu` on and values from `vu` on. Only the first `keys` may have
// weights.
template <class S>
template <bool EDGE>
INLINE void Tiles<S>::multiply_values(const Exchange& x, SharedBytes pu, SharedBytes vu, int keys, bool odd_values) {
  const int cg = x.cg, rg = x.rg;
  f4 pa[2][TM / 4];
  float vb[2][AN];
  constexpr int KEYS = EDGE && SLOW ? 2 : BODY;
  auto fragments = [&](int b, int from, int key) LAMBDA {
    const int f = weight_shift((KEYS < LANE_COLS ? from + key : key) & (LANE_COLS - 1));
    UNROLL for (int h = 0; h < TM / 4; h++)
      pa[b][h] = load_shared(pu + from * P_STRIDE + key * P_STRIDE + chunk_of_weights(rg, h, f));
    UNROLL for (int h = 0; h < AF; h++) {
      const f4 x = load_shared(vu + from * V_STRIDE + key * V_STRIDE + cg * 16 + h * (LANE_COLS * 16));
      UNROLL for (int e = 0; e < 4; e++) vb[b][h * 4 + e] = x[e];
    }
  };
  if ((EDGE || ADDED) && RARELY(odd_values)) {  // the value of a masked key is ignored
    NO_UNROLL for (int key = 0; key < UK; key++) {
      const int f = weight_shift(key & (LANE_COLS - 1));
      UNROLL for (int h = 0; h < TM / 4; h++)
        pa[0][h] = load_shared(pu + key * P_STRIDE + (((rg + h) ^ f) << 4));
      UNROLL for (int j = 0; j < AN; j++) vb[0][j] = load_shared_f(vu + key * V_STRIDE + dim_of(cg, j) * 4);
      UNROLL for (int i = 0; i < TM; i++) {
        const float p = pa[0][i >> 2][i & 3];
        UNROLL for (int j = 0; j < AN; j++)
          acc[i][j] = is_absent(p) ? acc[i][j] : __builtin_fmaf(p, vb[0][j], acc[i][j]);
      }
    }
    return;
  }
  if (RARELY(idles())) return;
  fragments(0, 0, 0);
  const int until = EDGE ? min_of(keys, UK) : UK;
  NO_UNROLL for (int from = 0; from < until; from += KEYS) {
    UNROLL for (int key = 0; key < KEYS; key++) {
      const int b = key & 1;
      if (key + 1 < KEYS) fragments(b ^ 1, from, key + 1);
      else if (KEYS < UK) fragments(b ^ 1, (from + KEYS) & (UK - 1), 0);
      add_products(pa[b], vb[b]);
    }
  }
}
