// Splits of the keys that a block takes one after another.
//
// If the blocks of rows alone fill the device, a block takes all splits of its rows, and nothing is left to the merge
// kernel. The state of a split waits in memory until it is merged: split i completes one subtree of the balanced tree over
// split numbers per trailing one bit of its number, and the last split completes all of them. These are the merges of
// merge.cuh, in their order, so that the bits are the same.
#pragma once

#include "tile.cuh"

// Whether the block takes all splits.
template <class S> INLINE bool Tiles<S>::takes_all() { return (call.flags & SERIAL_SPLITS) != 0; }

// Index of the current split of a block that takes all splits, once a tile of it has been processed. Every row attends all keys.
template <class S> INLINE int Tiles<S>::split() { return (k0 - 1) / call.chunk; }

// Whether the block takes all splits and the current one is the last.
template <class S> INLINE bool Tiles<S>::is_last() { return takes_all() && k0 >= call.sequence.reach; }

// Whether the state of the current split merges with earlier ones.
template <class S> INLINE bool Tiles<S>::joins() { return takes_all() && ((split() & 1) != 0 || is_last()); }

// Merges the rows' states with the earlier ones stored at split `slot`.
template <class S> INLINE void Tiles<S>::take_in(int slot) {
  Share share = here();
  share.split = slot;
  const Home x = home(share);
  const int t = opaque(tid), g = lane_col(t), row = own_row(share, t);
  const Address ms = call.part_ms + (row_number(call, share.sequence, share.head, row) * call.splits + slot) * 8;
  f2 y[TM];
  f4 w[TM][AF];
  UNROLL for (int i = 0; i < TM; i++) {  // loads all rows at once, because waiting dominates the time
    y[i] = f2{NEG_INF, 0.f};
    if (i < x.left) y[i] = read_f2(ms + (long long)i * call.splits * 8);
    UNROLL for (int h = 0; h < AF; h++) {
      clear(w[i][h]);
      if ((int)(i < x.left) & (int)(dim_of(g, h * 4) < x.width)) w[i][h] = read_f4(x.at + i * x.step + dim_of(g, h * 4) * 4);
    }
  }
  UNROLL for (int i = 0; i < TM; i++) {
    const Merge merge = merge_of(y[i][0], stored_reference(m[i], m[i] == NO_KEY && sum[i] == 0.f));
    m[i] = merge.m;
    sum[i] = merge_apply(merge, y[i][1], sum[i]);
    UNROLL for (int h = 0; h < AF; h++) {
      float* a = acc[i] + h * 4;
      if (state_is_empty(y[i][0], y[i][1])) clear(w[i][h]);  // the W of an empty state was never written
      merge_into(merge, w[i][h], f4{a[0], a[1], a[2], a[3]});
      UNROLL for (int e = 0; e < 4; e++) a[e] = w[i][h][e];
    }
  }
}

// The end of the keys that the block attends, in any split.
template <class S> INLINE int Tiles<S>::end_of_all() {
  if constexpr (SERIAL) return takes_all() ? call.sequence.reach : end;
  else return end;
}

// Advances to the next split of the block, if any, which begins at k0. Its first keys are loaded with the previous tile, or
// by `begin`.
template <class S> INLINE bool Tiles<S>::next() {
  if constexpr (SERIAL) {
    if (!takes_all() || is_last()) return false;
    end = min_of(k0 + call.chunk, call.sequence.reach);
    flushed = false;
    UNROLL for (int n = 0; n < V_ITEMS; n++) forget(vr[n]);
    return true;
  }
  return false;
}
