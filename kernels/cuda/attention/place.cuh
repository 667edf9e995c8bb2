// Geometry of a call: a block's share, the interval of keys of a row, addresses of rows.
#pragma once

#include "../common/index.cuh"
#include "../common/math.cuh"
#include "call.cuh"

// A block's share: its sequence, the index of the sequence, its head, split of the keys and block of rows. If a block computes a
// group of heads, `head` is the first of them.
struct Share {
  Sequence sequence;
  int index, head, split, row_block;
};

// The share of a block that computes `group` heads. Blocks are ordered by blocks of rows, from the last to the first, then
// splits, then heads. With LONGEST_FIRST the order is heads, then splits, then blocks of rows, so that blocks with the most
// keys start first. The short blocks of the last rows begin at `short_from`: they fill the SMs that the others leave idle at
// the end.
INLINE Share share_of(const Call& call, int block, int group = 1) {
  Share x;
  const bool is_short = block >= call.short_from, longest_first = (call.flags & LONGEST_FIRST) != 0;
  const int quotient = quotient_of(block, call.by_first);
  const int of_first = is_short ? block - call.short_from : quotient, of_splits = quotient_of(of_first, call.by_splits);
  const int first = block - quotient * call.first;
  x.split = of_first - of_splits * call.splits;
  x.row_block = (longest_first ? call.row_blocks - of_splits : is_short ? call.row_blocks : call.first - first) - 1;
  int head = longest_first ? first : of_splits;
  head *= group;
  const int index = quotient_of(head, call.by_heads);
  x.index = index;
  x.head = head - index * call.heads;
  x.sequence = call.sequence;
  x.sequence.batch = index;
  if (call.sequences != 0) {
    const Address from = call.sequences + (long long)index * sizeof(Sequence);
    x.sequence.batch = load_i32(from + 0);
    x.sequence.query0 = load_i32(from + 4);
    x.sequence.queries = load_i32(from + 8);
    x.sequence.key0 = load_i32(from + 12);
    x.sequence.keys = load_i32(from + 16);
    x.sequence.past = load_i32(from + 20);
    x.sequence.reach = load_i32(from + 24);
    x.sequence.left = load_i32(from + 28);
    x.sequence.right = load_i32(from + 32);
    x.sequence.offset = load_i32(from + 36);
  }
  return x;
}

// The keys that a row may attend by length, causality and window. Neither end ever decreases with the row.
struct Range {
  int start, end;
};

INLINE Range range_of(const Sequence& s, int row) {
  const int diagonal = s.offset + row;  // all steps below fit 32 bits
  int start = 0, end = s.reach;
  if (s.left >= 0 && diagonal > s.left) start = diagonal - s.left;
  if (s.right >= 0 && diagonal < end - s.right) end = max_of(diagonal + s.right + 1, 0);
  return Range{min_of(start, end), end};
}

// Index of a query row among all rows of the call.
INLINE long long row_number(const Call& call, const Sequence& s, int head, int row) {
  return (s.batch * call.heads + head) * call.tokens + s.query0 + row;  // fits 31 bits
}

INLINE Address query_row(const Call& call, const Sequence& s, int head, int row, int size) {
  return call.query.data + row_offset(call.query, s.batch, head, s.query0 + row) * size;
}

INLINE Address output_row(const Call& call, int batch, int head, int token) {
  return call.output.data + row_offset(call.output, batch, head, token) * element_size(call.dtype);
}

// Score x under the soft cap.
INLINE float soft_cap(const Call& call, float x) { return call.cap * tanh_of(x); }
