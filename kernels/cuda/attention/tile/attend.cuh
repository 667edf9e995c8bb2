// The work on a tile of keys: scores, masks, weights, weighted sum.
#pragma once

#include "changes.cuh"
#include "memory.cuh"
#include "scores.cuh"
#include "staging.cuh"
#include "values.cuh"
#include "weights.cuh"
#include "within.cuh"

// Processes tile k0. The four steps share one function: if they are separate, clang orders their loops differently.
template <class S> template <bool EDGE> INLINE void Tiles<S>::attend() {
  const int keys = live<EDGE>();
  constexpr bool CHECKS = ADDED || (EDGE && !LEAN);  // whether keys may be left out
  if constexpr (EARLY && !EDGE) load_early();
  // Scores: s = Q K', a chunk of KD dims at a time. A plain tile loads the next contents of the exchange area at
  // the same time.
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) s[i][j] = 0.f;
  NO_UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
    if constexpr (EDGE && SLOW) {
      gather_k(k0, chunk);
      sync_block();
      store_k();
      sync_block();
    } else {
      if (chunk + 1 < CHUNKS) load_k<EDGE>(k0, chunk + 1);
      else if constexpr (!EDGE || ADDED) load_v<EDGE>(k0, 0);  // other edges have no registers for values yet
    }
    // Whether scores of keys that no row attends are skipped, where it is worth the code.
    constexpr bool SHORTENS = EDGE && ADDS && IN == F32 && D == 64;
    if (SHORTENS && keys <= TILE / 4) multiply_chunk<EDGE, SHORTENS ? TN / 4 : TN>(chunk);
    else if (SHORTENS && keys <= TILE / 2) multiply_chunk<EDGE, SHORTENS ? TN / 2 : TN>(chunk);
    else multiply_chunk<EDGE, TN>(chunk);
    if constexpr (EDGE && SLOW) {
      if (chunk + 1 < CHUNKS) sync_block();
    } else if (chunk + 1 < CHUNKS) {
      sync_block();
      store_k();
      sync_block();
    }
  }

  // Applies masks, ranges and the soft cap. `absent` says whether the warp has masked keys.
  bool absent = false;
  if constexpr (ADDED) {
    absent = add_scores<EDGE>();
  } else if constexpr (EDGE) {
    if constexpr (!LEAN) {
      absent = change_scores();
    } else {
      absent = limit_scores();
    }
  }

  // Raises references, turns scores into weights, and adds the weights to the sums.
  if constexpr (EDGE && SLOW) {  // row by row: each step moves the next row to the first place
    [[maybe_unused]] float parts[BUDGET ? TM : 1] = {};
    NO_UNROLL for (int i = 0; i < TM; i++) {
      float x = s[0][0];
      UNROLL for (int j = 1; j < TN; j++) x = max2(x, s[0][j]);
      if (any_of_warp(x > limit_of(m[0]))) {
        const float scale = raise(m[0], row_max(x));
        if constexpr (BUDGET) move_vote(i, scale);
        sum[0] *= scale;
        UNROLL for (int j = 0; j < AN; j++) acc[0][j] *= scale;
        if (flushed) {  // the part of W in memory has the old reference
          const Home x = home(here());
          const int g = lane_col(opaque(tid));
          if (i < x.left) rescale(x, i, g, scale);
        }
      }
      const float reference = m[0];
      float y[TN], r = 0.f;
      UNROLL for (int j = 0; j < TN; j++) {
        y[j] = signed_weight(s[0][j], reference);
        r = j ? r + y[j] : y[j];
      }
      if constexpr (BUDGET) {
        UNROLL for (int n = 0; n + 1 < TM; n++) parts[n] = parts[n + 1];
        parts[TM - 1] = r;
        const float z = sum[0];
        rotate_rows(y, reference, z);
      } else {
        const float z = sum[0] + r;
        rotate_rows(y, reference, z);
      }
    }
    if constexpr (BUDGET) {
      if (leaves_out<EDGE>(parts, absent)) {
        sync_block();
        return;
      }
    }
  } else {
    float mx[TM];
    bool need = false;
    UNROLL for (int i = 0; i < TM; i++) {
      mx[i] = s[i][0];
      UNROLL for (int j = 1; j < TN; j++) mx[i] = max2(mx[i], s[i][j]);
      need = need || mx[i] > limit_of(m[i]);
    }
    if (RARELY(any_of_warp(need))) {
      float scale[TM];
      raise_references(mx, scale);
      if constexpr (BUDGET) move_vote(scale);
      if (RARELY(flushed)) rescale_rows(scale);
    }
    if constexpr (BUDGET) {
      float r[TM];
      weigh(absent, r);
      if (leaves_out<EDGE>(r, absent)) {  // by now every lane has read the contents of the area
        if (ready) store_k();
        sync_block();
        return;
      }
    } else {
      if (RARELY(absent)) take_signed_weights();
      else take_weights();
    }
  }

  // Computes the weighted sum W += P V, UK keys at a time, unless no row of the block attends a key of the tile.
  bool some = true, gaps = CHECKS, odd_values = false;  // `gaps`: whether a warp of the block may have masked keys
  if constexpr (ADDED) gaps = any_of_block(absent);
  if (CHECKS && (!ADDED || RARELY(gaps))) {
    unsigned weights = 0;
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) weights |= bits_of(s[i][j]);
    some = any_of_block((!absent || weights != 0) && m[0] == m[0]);
  }
  const int t = opaque(tid);
  const Exchange x = {lane_col(t), lane_row(t) * (TM / 4), sm + XP + (t >> 5) * P_BYTES};
  if (CHECKS && RARELY(!some)) {
    if (ready) load_k<EDGE>(k0 + TILE, 0);
    else drop_k();
  } else if constexpr (STRAIGHT == 1) {
    UNROLL for (int stage = 0; stage < STAGES; stage++) {
      if (EDGE && stage > 0 && stage * VK >= keys) {
        drop_k();
        break;
      }
      open_stage<EDGE>(x, stage, absent, gaps, odd_values);
      NO_UNROLL for (int n = 0; n < PRODUCTS_V; n++) {
        put_weights(x, stage * (PRODUCTS_V * PC), (stage + 1) * (PRODUCTS_V * PC));
        multiply_values<EDGE>(x, x.weights, sm + X + n * (UK * V_STRIDE), keys - (stage * PRODUCTS_V + n) * UK, odd_values);
      }
    }
  } else if constexpr (!EDGE && STRAIGHT == 2) {
    NO_UNROLL for (int stage = 0; stage < STAGES; stage++) {
      open_stage<EDGE>(x, stage, absent, gaps, odd_values);
      if constexpr (PIPED) {
        multiply_stage(x);
      } else {
        UNROLL for (int n = 0; n < PRODUCTS_V; n++) {
          put_weights(x, n * PC, 0);
          multiply_values<EDGE>(x, x.weights, sm + X + n * (UK * V_STRIDE), UK, odd_values);
        }
      }
      if (stage + 1 < STAGES) {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j + PRODUCTS_V * PC < TN; j++) s[i][j] = s[i][j + PRODUCTS_V * PC];
      }
    }
  } else {
    NO_UNROLL for (int n = 0; n < PRODUCTS; n++) {
      if (EDGE && n > 0 && n * UK >= keys) {
        drop_k();
        break;
      }
      if (n % PRODUCTS_V == 0) open_stage<EDGE>(x, n / PRODUCTS_V, absent, gaps, odd_values);
      if (n % PRODUCTS_P == 0) put_weights(x, 0, TN);
      multiply_values<EDGE>(x, x.weights + n % PRODUCTS_P * (UK * P_STRIDE), sm + X + n % PRODUCTS_V * (UK * V_STRIDE),
                            keys - n * UK, odd_values);
    }
  }
  sync_block();  // the values are no longer needed
  if constexpr (!(EDGE && SLOW)) {
    if (ready) store_k();
    sync_block();
  }
}
