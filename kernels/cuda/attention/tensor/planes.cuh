// Keys and values as two f16 planes each, in tiles, as the attention kernel keeps them in shared memory.
//
//   x 2^s = hi + lo + residual      hi = f16(x 2^s), lo = f16(x 2^s - hi), s an integer for each tile
//
// `s` brings the largest magnitude of a tile to [2^14, 2^15). So lo has the scale of hi, and one f32 sum can hold all products. An
// element of at least 2^-17 of the largest one keeps 22 bits. 16-bit elements have no lo: hi holds those of at least 2^-28 of the
// largest one.
//
// Kernels with one f16 product for each product of operands write f32 elements to one plane too, x 2^s = hi + residual. Of a
// residual, r, R and the values' residual below are then the part beyond 2^-11 of the element, and l = r, L = R.
//
// The guard decides where this is as exact as f32. A channel is a dim of a head:
//   scores: for a query row q              sum_c |q_c| R_c + r_c K_c + l_c L_c   <=   MOST_SCORE 2^-24 sum_c |q_c| K_c
//   values: for a channel of a tile                          largest residual   <=   MOST_VALUE 2^-24 mean |v|
// K, R and L are the largest magnitude, residual and lo of a channel of the keys; r and l are residual and lo of the query. NaN,
// infinities, magnitudes beyond 2^±MOST_EXPONENT and rows whose scores may exceed MOST_REFERENCE do not pass.
#pragma once

#include "../../common/tensor_cores.cuh"
#include "../place.cuh"

// Arguments in addition to the call. `refused` has a word for each key head of each sequence, then one for each block of `rows`
// query rows of each head. A word that is not zero: Tensor Cores do not compute this. Words and channels are zero before the first
// kernel runs.
struct Planes {
  Address images;    // [batch][key head][tile]: planes of keys, then of values
  Address shifts;    // i32 [batch][key head][tile][2]: s of keys and of values
  Address channels;  // f32 [sequence][key head][3][D]: K, R, L
  Address refused;   // u32
  int tiles;         // of a key head; packed sequences share them
  int longest;       // tiles of the longest sequence
  int kv_heads, rows, row_blocks;  // `row_blocks`: words of a head; packed sequences share them
  int unused;  // zero; fills the struct to a multiple of eight bytes
  Divisor by_longest, by_kv_heads;
};

struct TensorCall {
  Call call;
  Planes planes;
};

static_assert(__builtin_offsetof(TensorCall, planes) == sizeof(Call) && sizeof(Planes) == 72, "");

constexpr int NO_SHIFT = 127;  // of a tile of zeros
constexpr int MOST_EXPONENT = 30;
constexpr float MOST_SCORE = 12.f / 16777216.f, MOST_VALUE = 32.f / 16777216.f;
constexpr float MOST_REFERENCE = 1048576.f;  // a reference of a weight is a whole number, and 15 more is one too

INLINE unsigned magnitude(float x) { return bits_of(x) & 0x7fffffff; }
INLINE unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }
INLINE unsigned largest_of_lanes(unsigned x, int first, int last) {
  NO_UNROLL for (int mask = first; mask <= last; mask <<= 1) x = larger(x, bits_of(shuffle_xor(float_of_bits(x), mask)));
  return x;
}

// Whether a largest magnitude, as bits, can be scaled.
INLINE bool is_ordinary(unsigned most) {
  const int exponent = (int)(most >> 23) - 127;
  return most == 0 || (exponent <= MOST_EXPONENT && exponent >= -MOST_EXPONENT);
}
// The power of two that brings such a magnitude to [2^14, 2^15).
INLINE int shift_for(unsigned most) { return most == 0 || !is_ordinary(most) ? 0 : 14 + 127 - (int)(most >> 23); }
INLINE float exact_power(int n) { return float_of_bits((unsigned)(n + 127) << 23); }

// Two numbers in two planes.
struct Split {
  unsigned hi, lo;
};
INLINE float low_half(unsigned x) { return f16_to_float(x & 0xffff); }
INLINE float high_half(unsigned x) { return f16_to_float(x >> 16); }
template <bool ONE = false> INLINE Split split_of(float a, float b) {
  const unsigned hi = pack_f16(a, b);
  return Split{hi, ONE ? 0 : pack_f16(a - low_half(hi), b - high_half(hi))};
}

// Residuals, and magnitudes of lo, of the numbers of a split. Of ROUNDED numbers, both are the residual beyond 2^-11 of them.
struct Missed {
  float residual[2], low[2];
};
template <bool ROUNDED = false> INLINE Missed missed_by(float a, float b, const Split& x) {
  if constexpr (ROUNDED) {
    const float ra = __builtin_fabsf(a - low_half(x.hi)), rb = __builtin_fabsf(b - high_half(x.hi));
    const float ea = max2(ra - __builtin_fabsf(a) * 0x1p-11f, 0.f), eb = max2(rb - __builtin_fabsf(b) * 0x1p-11f, 0.f);
    return Missed{{ea, eb}, {ea, eb}};
  }
  const float la = low_half(x.lo), lb = high_half(x.lo);
  return Missed{{__builtin_fabsf(a - low_half(x.hi) - la), __builtin_fabsf(b - high_half(x.hi) - lb)},
                {__builtin_fabsf(la), __builtin_fabsf(lb)}};
}

// A tile of BN keys in shared memory: rows of D elements whose 16-byte chunks are permuted by the number of the row, so that the
// same chunk of eight adjacent rows is in different banks; two planes, or ONE.
template <int D_, int BN_, bool ONE_> struct Image {
  static constexpr bool ONE = ONE_;
  static constexpr int D = D_, BN = BN_, ROW = D * 2, PLANE = BN * ROW, KEYS = (ONE ? 1 : 2) * PLANE, BYTES = 2 * KEYS;
  static_assert(ROW % 64 == 0, "");
  // The bits of a row's number that permute its chunks, by exclusive or. Rows of an odd number of 64 bytes alternate between the
  // halves of 128 bytes, so two bits suffice.
  INLINE static int permuted_by(int row) { return ROW % 128 == 0 ? row & 7 : row >> 1 & 3; }
};

// Packed sequences share the tiles and words of batch index zero. A sequence of n keys has at most n / BN + 1 tiles, so those of the
// sequence at key0 may begin at key0 / BN + index. The same holds for blocks of rows. Without packing, key0 and query0 are zero and
// `batch` is the index.

// The number of a sequence's first tile among the tiles of all key heads.
template <class I> INLINE long long first_tile(const Planes& p, const Sequence& s, int index, int kv_head) {
  return ((long long)s.batch * p.kv_heads + kv_head) * p.tiles + s.key0 / I::BN + index - s.batch;
}
// The number of the word of a row's block.
INLINE long long of_rows(const Call& call, const Planes& p, const Share& x, int row) {
  const Sequence& s = x.sequence;
  const long long of_head = (long long)s.batch * call.heads + x.head;
  return (long long)call.sequence_count * p.kv_heads + of_head * p.row_blocks + s.query0 / p.rows + x.index - s.batch + row / p.rows;
}
