// Attention by f32 products for the rows that Tensor Cores refused (planes.cuh). Blocks of other rows return at once.
#pragma once

#include "../attention.cuh"
#include "planes.cuh"

template <class S> INLINE bool is_refused(const TensorCall& x) {
  const Share share = share_of(x.call, block_index());
  const int row = share.row_block * S::BM;
  return row < share.sequence.queries && load_i32(x.planes.refused + of_rows(x.call, x.planes, share, row) * 4) != 0;
}

// Like ATTENTION. Blocks have at most as many rows as those of the kernel that refuses.
#define ATTENTION_REFUSED(name, IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES, BLOCKS)  \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const TensorCall x) {                                \
    typedef Tiles<Shape<IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES>> A;             \
    SHARED(memory, A::SHARED_BYTES);                                                                      \
    if (is_refused<A>(x)) A::run(memory, x.call, Unlimited{});                                            \
  }
