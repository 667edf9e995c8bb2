// Splits of the keys that a block takes one after the other.
//
// Where the blocks of rows alone fill the device, a block takes all splits of its rows, and nothing is left to the merge
// kernel. The state of a split lies in memory until its turn to merge: split i completes as many subtrees of the balanced
// tree over split numbers as its number ends in ones, and the last split all of them. These are the merges of merge.cuh, in
// their order, so that the bits are the same.
#pragma once

#include "tile.cuh"

// Whether the block takes all splits.
template <class S> INLINE bool Tiles<S>::takes_all() { return (call.flags & SERIAL_SPLITS) != 0; }

// The split in hand of such a block, once a tile of it is taken in. Every row attends all keys.
template <class S> INLINE int Tiles<S>::split() { return (k0 - 1) / call.chunk; }

// Whether it was the last one of such a block.
template <class S> INLINE bool Tiles<S>::is_last() { return takes_all() && k0 >= call.sequence.reach; }

// Whether its state merges with earlier ones.
template <class S> INLINE bool Tiles<S>::joins() { return takes_all() && ((split() & 1) != 0 || is_last()); }

// Merges the rows' states with the earlier ones that lie at split `slot`, row by row: the next row becomes the first.
template <class S> INLINE void Tiles<S>::take_in(int slot) {
  Share share = here();
  share.split = slot;
  const Home x = home(share);
  const int t = opaque(tid), g = lane_col(t), row = own_row(call, share, t);
  const Address ms = call.part_ms + (row_number(call, share.sequence, share.head, row) * call.splits + slot) * 8;
  NO_UNROLL for (int i = 0; i < TM; i++) {
    f2 y = {NEG_INF, 0.f};
    if (i < x.left) y = read_f2(ms + (long long)i * call.splits * 8);
    const bool none = state_is_empty(y[0], y[1]);  // its W was never written
    const float own = stored_reference(m[0], m[0] == NO_KEY && sum[0] == 0.f), z = sum[0];
    const Merge merge = merge_of(y[0], own);
    NO_UNROLL for (int h = 0; h < AF; h++) {  // the next columns become the first
      f4 w = {0.f, 0.f, 0.f, 0.f};
      if ((int)(i < x.left) & (int)!none & (int)(dim_of(g, h * 4) < x.width)) w = read_f4(x.at + i * x.step + dim_of(g, h * 4) * 4);
      merge_into(merge, w, f4{acc[0][0], acc[0][1], acc[0][2], acc[0][3]});
      UNROLL for (int j = 0; j + 4 < AN; j++) acc[0][j] = acc[0][j + 4];
      UNROLL for (int e = 0; e < 4; e++) acc[0][AN - 4 + e] = w[e];
    }
    m[0] = merge.m;
    sum[0] = merge_apply(merge, y[1], z);
    rotate();
  }
}

// Makes the second row the first one, and the first the last.
template <class S> INLINE void Tiles<S>::rotate() {
  const float reference = m[0], z = sum[0];
  float first[AN];
  UNROLL for (int j = 0; j < AN; j++) first[j] = acc[0][j];
  UNROLL for (int n = 0; n + 1 < TM; n++) {
    m[n] = m[n + 1];
    sum[n] = sum[n + 1];
    UNROLL for (int j = 0; j < AN; j++) acc[n][j] = acc[n + 1][j];
  }
  m[TM - 1] = reference;
  sum[TM - 1] = z;
  UNROLL for (int j = 0; j < AN; j++) acc[TM - 1][j] = first[j];
}

// Turns to the next split of the block, if there is one, which begins at k0, and loads its first keys.
template <class S> INLINE bool Tiles<S>::next() {
  if constexpr (SERIAL) {
    if (!takes_all() || is_last()) return false;
    end = min_of(k0 + call.chunk, call.sequence.reach);
    flushed = false;
    UNROLL for (int n = 0; n < V_ITEMS; n++) forget(vr[n]);
    ready = k0 < end && k0 + TILE <= edge_to;
    if (ready) load_k<true>(k0, 0);
    else drop_k();
    return true;
  }
  return false;
}
