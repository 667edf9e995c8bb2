// The last of the blocks that compute the splits of a row block.
#pragma once

#include "place.cuh"

constexpr int MERGED = 8;  // most splits that the last block merges

// Whether the last block to finish merges the states of the splits.
INLINE bool last_merges(const Call& call) { return (call.flags & LAST_MERGES) != 0; }

// Called by every thread of a block that has written the states of its split. Returns whether all other splits of the row
// block are written, too; `fetch_f2` and `fetch_f4` then read them.
INLINE bool is_last_split(const Call& call, const Share& share) {
  fence_device();
  sync_block();
  bool last = false;
  if (thread_index() == 0) {
    const int counter = (share.index * call.heads + share.head) * call.row_blocks + share.row_block;
    const unsigned others = call.splits - 1;
    last = count_round(call.part_ms - (ARRIVALS - counter) * 4, others) == others;
  }
  last = any_of_block(last);
  if (last) fence_device();
  return last;
}
