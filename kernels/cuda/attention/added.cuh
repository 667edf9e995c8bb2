// Addends of the scores: bias, mask and the sides of shifted windows, in natural units.
//
// -inf, a false element or another side masks a key; other addends do not matter.
#pragma once

#include "place.cuh"

constexpr float MASK_LIMIT = 0x1.62e42ep+126f;  // the limit of core/src/attention/mask.rs
constexpr float ORDINARY = 0x1p+125f;           // two elements of at most this magnitude have a sum within MASK_LIMIT

// x with its magnitude limited to MASK_LIMIT if it is finite.
INLINE float limited(float x) {
  const float most = __builtin_copysignf(MASK_LIMIT, x);
  const float a = __builtin_fabsf(x);
  return a > MASK_LIMIT && a != -NEG_INF ? most : x;
}

// The sum of earlier addends and a limited element.
INLINE float added(float sum, float x) {
  // The minimum ignores a NaN, so a NaN in one operand does not hide a -inf in the other.
  return __builtin_fminf(sum, x) == NEG_INF ? NEG_INF : limited(sum + x);
}

// The score x plus the sum of its addends, in base-2 units.
INLINE float changed(float x, float sum) { return sum == NEG_INF ? NEG_INF : __builtin_fmaf(sum, LOG2E, x); }

INLINE int addend_size(int kind) { return kind == ADDEND_F32 ? 4 : kind == ADDEND_BOOL ? 1 : 2; }

// The addend that the element at `a` stands for.
INLINE float addend_at(Address a, int kind) {
  switch (kind) {
    case ADDEND_BOOL: return load_u8(a) != 0 ? 0.f : NEG_INF;
    case ADDEND_F32: return load_f32(a);
    case ADDEND_F16: return f16_to_float(load_u16(a));
    default: return bf16_to_float(load_u16(a));
  }
}

// Address of the first element for a sequence and a head.
INLINE Address addend_base(const Addend& x, const Sequence& s, int head) {
  const int batch = s.batch - quotient_of(s.batch, x.by_period) * x.period;
  return x.data + (batch * x.batch + head * x.head) * addend_size(x.kind);
}

// The position of a token for the bias.
INLINE int bias_position(const Call& call, int token) {
  const Windows& w = call.windows;
  return w.positions ? token + quotient_of(token, w.by_width) * (w.width - 1) : token;
}

// The entry of the table that an element of the index names. An element beyond the table names the nearest
// entry.
INLINE int entry_of(const Call& call, u2 x) {
  return (int)x[1] < 0 ? 0 : x[1] != 0 || x[0] >= (unsigned)call.entries ? call.entries - 1 : (int)x[0];
}

// First token row and first column of a window's second sides; NO_SIDE where the window has only one side.
struct Sides {
  int row, column;
};
constexpr int NO_SIDE = 0x7fffffff;

INLINE Sides sides_of(const Call& call, const Sequence& s) {
  if (!(call.changes & CHANGED_BY_SIDES)) return Sides{NO_SIDE, NO_SIDE};
  const Windows& w = call.windows;
  const int window = s.batch - quotient_of(s.batch, w.by_windows) * w.windows;
  const int down = quotient_of(window, w.by_across), right = window - down * w.across;
  Sides x;
  x.row = (down + 1) * w.across == w.windows ? w.side_row : NO_SIDE;
  x.column = right + 1 == w.across ? w.side_column : NO_SIDE;
  return x;
}

INLINE int side_of(const Call& call, const Sides& x, int token) {
  const int row = quotient_of(token, call.windows.by_width), column = token - row * call.windows.width;
  return (row >= x.row ? 2 : 0) | (column >= x.column ? 1 : 0);
}

// Sum of all addends of the score of a row and a key.
INLINE float added_to(const Call& call, const Sequence& s, int head, int row, int key) {
  float sum = 0.f;
  if (call.changes & CHANGED_BY_BIAS) {
    const Addend& x = call.bias;
    long long at = bias_position(call, row) * x.query + bias_position(call, key) * x.key;
    if (call.changes & CHANGED_BY_INDEX)
      at = entry_of(call, load_u2(call.index + (row * (long long)call.index_keys + key) * 8)) * x.query;
    sum = added(sum, limited(addend_at(addend_base(x, s, head) + at * addend_size(x.kind), x.kind)));
  }
  if (call.changes & CHANGED_BY_MASK) {
    const Addend& x = call.mask;
    const long long at = row * x.query + key * x.key;
    sum = added(sum, limited(addend_at(addend_base(x, s, head) + at * addend_size(x.kind), x.kind)));
  }
  if (call.changes & CHANGED_BY_SIDES) {
    const Sides x = sides_of(call, s);
    if (side_of(call, x, row) != side_of(call, x, key)) sum = NEG_INF;
  }
  return sum;
}
