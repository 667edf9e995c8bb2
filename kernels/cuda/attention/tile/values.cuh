// Parts of W += P V.
#pragma once

#include "tile.cuh"

// Whether one of four elements is not finite.
INLINE bool is_odd(f4 x) {
  bool odd = false;
  UNROLL for (int e = 0; e < 4; e++) odd = odd || !(__builtin_fabsf(x[e]) < -NEG_INF);
  return odd;
}

// Brings in a stage of values and loads what is next. Where keys are `absent`, sets `odd_values` to whether a value is
// not finite.
template <class S>
template <bool EDGE>
INLINE void Tiles<S>::open_stage(int stage, bool absent, bool gaps, bool& odd_values) {
  if constexpr (EDGE && SLOW) gather_v(k0, stage);
  // What the area held is dead: a tile that, or whose keys, may be left out has just had a vote.
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
  if constexpr (!(EDGE && SLOW)) {
    if (stage + 1 < STAGES) load_v<EDGE>(k0, stage + 1);
    else if (ready) load_k<EDGE>(k0 + TILE, 0);
    else drop_k();
  }
  if ((EDGE && !ADDED) || (ADDED && RARELY(gaps))) odd_values = any_of_block(odd) && absent;
  else sync_block();
}

// Exchanges the weights of PC columns from `first` on, and rotates the columns up to `last`.
template <class S> INLINE void Tiles<S>::put_weights(const Exchange& x, int first, int last) {
  const int cg = x.cg, rg = x.rg;
  sync_warp();
  UNROLL for (int jj = 0; jj < PC; jj++)
    UNROLL for (int h = 0; h < TM / 4; h++)
      store_shared(x.weights + (jj * LANE_COLS + cg) * P_STRIDE + (((rg + h) ^ weight_shift(cg)) << 4),
                   f4{s[h * 4][first + jj], s[h * 4 + 1][first + jj], s[h * 4 + 2][first + jj],
                      s[h * 4 + 3][first + jj]});
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = first; j + PC < last; j++) s[i][j] = s[i][j + PC];
  sync_warp();
}

// Adds the products of up to UK keys, of which `keys` may have weights, with weights from `pu` on and values from `vu` on.
template <class S>
template <bool EDGE>
INLINE void Tiles<S>::multiply_values(const Exchange& x, SharedBytes pu, SharedBytes vu, int keys, bool odd_values) {
  const int cg = x.cg, rg = x.rg;
  f4 pa[2][TM / 4];
  float vb[2][AN];
  constexpr int KEYS = EDGE && SLOW ? 2 : BODY;
  auto fragments = [&](int b, int from, int key) LAMBDA {
    const int f = weight_shift((KEYS < LANE_COLS ? from + key : key) & (LANE_COLS - 1));
    UNROLL for (int h = 0; h < TM / 4; h++) {
      const int off = TM == 8 ? ((rg ^ (f & ~1)) << 4) + ((h ^ (f & 1)) << 4) : (rg ^ f) << 4;
      pa[b][h] = load_shared(pu + from * P_STRIDE + key * P_STRIDE + off);
    }
    UNROLL for (int h = 0; h < AF; h++) {
      const f4 x = load_shared(vu + from * V_STRIDE + key * V_STRIDE + cg * 16 + h * (LANE_COLS * 16));
      UNROLL for (int e = 0; e < 4; e++) vb[b][h * 4 + e] = x[e];
    }
  };
  if ((EDGE || ADDED) && RARELY(odd_values)) {  // the value of a key that is not attended is ignored
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
      UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < AN; j++)
          acc[i][j] = __builtin_fmaf(pa[b][i >> 2][i & 3], vb[b][j], acc[i][j]);
    }
  }
}
