// Where things lie: a block's share of the call, the interval of keys of a row, addresses of rows.
#pragma once

#include "state.cuh"

// A block's share: which sequence, head and part of the keys, and which block of rows.
struct Share {
  Sequence sequence;
  int head, split, row_block;
};

// n / d for n below 2^31: a device has no instruction for it.
INLINE int quotient_of(int n, const Divisor& d) {
  return (int)((unsigned)((unsigned long long)((unsigned)n * 2) * d.multiplier >> 32) >> d.shift);
}

INLINE Share share_of(const Call& call, int block) {
  Share x;
  const int of_rows = quotient_of(block, call.by_row_blocks), of_splits = quotient_of(of_rows, call.by_splits);
  const int index = quotient_of(of_splits, call.by_heads);
  x.row_block = block - of_rows * call.row_blocks;
  x.split = of_rows - of_splits * call.splits;
  x.head = of_splits - index * call.heads;
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
  const int diagonal = s.offset + row;  // no step below leaves 32 bits
  int start = 0, end = s.reach;
  if (s.left >= 0 && diagonal > s.left) start = diagonal - s.left;
  if (s.right >= 0 && diagonal < end - s.right) end = max_of(diagonal + s.right + 1, 0);
  return Range{min_of(start, end), end};
}

// Number of a query row among all of the call.
INLINE long long row_number(const Call& call, const Sequence& s, int head, int row) {
  return (s.batch * call.heads + head) * call.tokens + s.query0 + row;  // counted in 31 bits
}

// First element of a row, in elements from the tensor's first.
INLINE long long row_offset(const Tensor& t, int batch, int head, int token) {
  return (long long)((unsigned)batch * (Address)t.batch + (unsigned)head * (Address)t.head) + token * t.token;
}

INLINE Address query_row(const Call& call, const Sequence& s, int head, int row, int size) {
  return call.query.data + row_offset(call.query, s.batch, head, s.query0 + row) * size;
}

// Row of key `j`, which lies in the past or among the new keys. The same for values.
INLINE Address cache_row(const Call& call, const Tensor& past, const Tensor& fresh, const Sequence& s, int kv_head, int j) {
  const long long at = j < s.past ? row_offset(past, s.batch, kv_head, j)
                                  : row_offset(fresh, s.batch, kv_head, s.key0 + j - s.past);
  return (j < s.past ? past.data : fresh.data) + at * element_size(call.dtype);
}

INLINE Address output_row(const Call& call, int batch, int head, int token) {
  return call.output.data + row_offset(call.output, batch, head, token) * element_size(call.dtype);
}

// Where a row's element of the mask for key zero lies, in elements.
INLINE long long mask_row(const Call& call, const Sequence& s, int head, int row) {
  return s.batch * call.mask_batch + head * call.mask_head + row * call.mask_query;
}

// What an element of the mask adds to a score in units of log 2.
INLINE float mask_bias(const Call& call, long long at) {
  switch (call.mask_kind) {
    case MASK_BOOL: return load_u8(call.mask + at) != 0 ? 0.f : NEG_INF;
    case MASK_F32: return load_f32(call.mask + at * 4) * LOG2E;
    case MASK_F16: return half_to_float(load_u16(call.mask + at * 2)) * LOG2E;
    default: return brain_to_float(load_u16(call.mask + at * 2)) * LOG2E;
  }
}

// tanh x. Below 0.6 a polynomial (minimax for (tanh x - x) / x^3 in x^2) keeps the relative error of small
// arguments; beyond, 1 - 2 / (1 + e^(2x)) loses nothing.
INLINE float tanh_of(float x) {
  const float a = __builtin_fabsf(x);
  if (a < 0.6f) {
    const float u = x * x;
    float p = -0.005894395522773266f;
    p = __builtin_fmaf(p, u, 0.020795369520783424f);
    p = __builtin_fmaf(p, u, -0.05378366634249687f);
    p = __builtin_fmaf(p, u, 0.13331922888755798f);
    p = __builtin_fmaf(p, u, -0.33333298563957214f);
    return __builtin_fmaf(p * u, x, x);
  }
  const float y = 1.f - 2.f / (1.f + exp2_fast(2.f * LOG2E * a));
  return x != x ? x : x < 0.f ? -y : y;
}
