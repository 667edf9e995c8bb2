// Measures the magnitudes of a call's tensors, on which the certificate of its error depends.
//
//   naive:  for each row of queries and keys:  largest = max(largest, sum of squares)
//           for each value, each channel:      largest[channel] = max(largest[channel], |value|)
//
// 1. A block takes pieces of rows of one head, one after another, and keeps its findings in registers. It writes one record
//    at the end, so that nothing is cleared before a launch and no block waits for another. The host combines the records.
// 2. The lanes of a team share a row, four elements each, and load those of several rows before using any.
// 3. Non-negative numbers compare like their bits as integers: infinity is larger than any number, NaN larger still. The
//    maxima do not depend on the order.
#pragma once

#include "../common/elements.cuh"
#include "place.cuh"

// The argument of a launch: the device twin of kernels/src/cuda/attention/measure.rs.
struct Measure {
  Call call;
  Address records;                    // [block][record]
  Address mask, bias;                 // contiguous elements; for a table of biases, its elements
  long long mask_elements, bias_elements;  // number of elements; zero without addends, or if they are bytes
  int mask_dtype, bias_dtype;
  int record;                         // f32 values from one record to the next: CHANNELS, then a multiple of four channels
  int query_pieces, key_pieces;       // number of pieces in the longest sequence
  int kv_heads;
};

static_assert(__builtin_offsetof(Measure, records) == sizeof(Call), "");
static_assert(__builtin_offsetof(Measure, mask_dtype) == sizeof(Call) + 40, "");
static_assert(sizeof(Measure) == sizeof(Call) + 64, "");

// Entries of a record: the largest sum of squares of a row and the largest magnitude, of queries and of keys, then the
// largest magnitude of the mask and of the bias. Two entries are unused here.
enum { AT_QUERY = 0, AT_KEY = 2, AT_MASK = 4, AT_BIAS = 5, CHANNELS = 8 };

namespace measure {

constexpr int WARPS = 8, THREADS = WARPS * 32;
// Rows of a piece, elements of a piece of a mask, rows that a team loads at once, and columns of the widest value.
constexpr int ROWS = 64, ELEMENTS = 4096, AT_ONCE = 4, COLUMNS = 256;
// Largest number of float4s of a row per lane.
constexpr int QUADS = COLUMNS / 128;

INLINE float larger(float a, float b) { return bits_of(b) > bits_of(a) ? b : a; }
INLINE float magnitude(float x) { return float_of_bits(bits_of(x) & 0x7fffffffu); }
INLINE void raise(float& a, float b) { a = larger(a, b); }

// Lanes that share a row: a power of two.
INLINE int team_of(int dim) {
  int team = 1;
  while (team < 32 && team * 4 < dim) team *= 2;
  return team;
}

// A piece of rows: address of the first, bytes from one to the next.
struct Piece {
  Address first;
  long long step;
  int rows, dim;
  bool vec4;
};

// Calls `take(row, quad, x)` for every float4 of the piece that belongs to the lane, and `done(row)` after those of a row.
// `done` may get rows past the end, because whole warps call it.
template <bool B16, class Take, class Done>
INLINE void for_quads(const Piece& piece, int dtype, Take take, Done done) {
  const int team = team_of(piece.dim), lane = thread_index() & (team - 1), own = thread_index() / team;
  const int teams = THREADS / team;
  NO_UNROLL for (int start = 0; start < piece.rows; start += AT_ONCE * teams) {
    UNROLL for (int q = 0; q < QUADS; q++) {
      const int quad = lane + q * 32;
      if (q > 0 && quad * 4 >= piece.dim) break;
      typename Raw<B16>::Type x[AT_ONCE];
      UNROLL for (int i = 0; i < AT_ONCE; i++) {
        const int row = start + i * teams + own;
        clear(x[i]);
        if (row < piece.rows) load4_checked(x[i], piece.first + row * piece.step, quad * 4, piece.dim, piece.vec4);
      }
      UNROLL for (int i = 0; i < AT_ONCE; i++) take(i, q, to_f32(x[i], dtype));
    }
    UNROLL for (int i = 0; i < AT_ONCE; i++) done(i, team);
  }
}

// The largest sum of squares of a row, and the largest magnitude.
template <bool B16> INLINE void norms(const Piece& piece, int dtype, float& squares, float& largest) {
  float sums[AT_ONCE] = {};
  for_quads<B16>(
      piece, dtype,
      [&](int i, int, f4 x) LAMBDA {
        UNROLL for (int e = 0; e < 4; e++) {
          sums[i] = __builtin_fmaf(x[e], x[e], sums[i]);
          raise(largest, magnitude(x[e]));
        }
      },
      [&](int i, int team) LAMBDA {
        NO_UNROLL for (int mask = 1; mask < team; mask *= 2) sums[i] += shuffle_xor(sums[i], mask);
        raise(squares, magnitude(sums[i]));
        sums[i] = 0.f;
      });
}

// The largest magnitude of each column.
template <bool B16> INLINE void channels(const Piece& piece, int dtype, f4 (&most)[QUADS]) {
  for_quads<B16>(
      piece, dtype,
      [&](int, int q, f4 x) LAMBDA {
        UNROLL for (int e = 0; e < 4; e++) most[q][e] = larger(most[q][e], magnitude(x[e]));
      },
      [&](int, int) LAMBDA {});
}

// The largest magnitude of a piece of a mask or a bias. -inf counts as zero, because it masks a key.
INLINE void addends(Address data, long long elements, int dtype, long long piece, float& largest) {
  const long long start = piece * ELEMENTS;
  const long long end = elements - start < ELEMENTS ? elements : start + ELEMENTS;
  for (long long i = start + thread_index(); i < end; i += THREADS) {
    const float x = element(data, i, dtype);
    if (x != NEG_INF) raise(largest, magnitude(x));
  }
}

// The keys that some row of a sequence may attend.
INLINE Range keys_of(const Sequence& s) {
  if (s.queries <= 0) return Range{0, 0};
  const Range last = range_of(s, s.queries - 1);
  return Range{min_of(range_of(s, 0).start, last.end), last.end};
}

// The maxima that a thread has found.
struct Found {
  float at[CHANNELS];
  f4 values[QUADS];
};

// Rows of a tensor from a token on.
INLINE Piece rows_of(const Tensor& t, int batch, int head, int token, int rows, int dim, bool vec4, int size) {
  return Piece{t.data + row_offset(t, batch, head, token) * size, t.token * size, rows, dim, vec4};
}

// Sequence `index` of the call.
INLINE Sequence sequence_of(const Call& call, int index) {
  if (call.sequences == 0) {
    Sequence s = call.sequence;
    s.batch = index;
    return s;
  }
  const Address from = call.sequences + (long long)index * sizeof(Sequence);
  return Sequence{load_i32(from),      load_i32(from + 4),  load_i32(from + 8),  load_i32(from + 12), load_i32(from + 16),
                  load_i32(from + 20), load_i32(from + 24), load_i32(from + 28), load_i32(from + 32), load_i32(from + 36)};
}

// Tensors measured in rows.
enum { QUERIES, KEYS, VALUES };

// Measures one piece of the call.
template <bool B16> INLINE void take(const Measure& m, long long item, Found& found) {
  const Call& call = m.call;
  const int size = B16 ? 2 : 4;
  const long long queries = (long long)call.sequence_count * call.heads * m.query_pieces;
  const long long keys = (long long)call.sequence_count * m.kv_heads * m.key_pieces;
  if (item >= queries + 2 * keys) {
    item -= queries + 2 * keys;
    const long long masks = (m.mask_elements + ELEMENTS - 1) / ELEMENTS;
    if (item < masks) addends(m.mask, m.mask_elements, m.mask_dtype, item, found.at[AT_MASK]);
    else addends(m.bias, m.bias_elements, m.bias_dtype, item - masks, found.at[AT_BIAS]);
    return;
  }
  const int what = item < queries ? QUERIES : item < queries + keys ? KEYS : VALUES;
  item -= what == QUERIES ? 0 : what == KEYS ? queries : queries + keys;
  const int pieces = what == QUERIES ? m.query_pieces : m.key_pieces;
  const int heads = what == QUERIES ? call.heads : m.kv_heads;
  const int pair = (int)(item / pieces), first = (int)(item - (long long)pair * pieces) * ROWS;
  const int index = pair / heads, head = pair - index * heads;
  const Sequence s = sequence_of(call, index);
  const Range range = what == QUERIES ? Range{0, s.queries} : keys_of(s);
  const int start = range.start + first, end = min_of(start + ROWS, range.end);
  // Keys of the past come before the new ones.
  const int middle = what == QUERIES ? start : max_of(start, min_of(end, s.past));
  const int token = what == QUERIES ? s.query0 : s.key0 - s.past;
  const Tensor& past = what == VALUES ? call.past_value : call.past_key;
  const Tensor& fresh = what == QUERIES ? call.query : what == KEYS ? call.key : call.value;
  const int dim = what == VALUES ? call.value_dim : call.head_dim;
  const bool vec4 = (call.flags & (what == QUERIES ? QUERY_VEC4 : what == KEYS ? KEY_VEC4 : VALUE_VEC4)) != 0;
  NO_UNROLL for (int part = 0; part < 2; part++) {
    const int from = part == 0 ? start : middle, to = part == 0 ? middle : end;
    if (from >= to) continue;
    const Tensor& t = part == 0 ? past : fresh;
    const Piece piece = rows_of(t, s.batch, head, part == 0 ? from : token + from, to - from, dim, vec4, size);
    if (what == VALUES) {
      channels<B16>(piece, call.dtype, found.values);
    } else {
      float squares = 0.f, largest = 0.f;
      norms<B16>(piece, call.dtype, squares, largest);
      raise(found.at[AT_QUERY], what == QUERIES ? squares : 0.f);
      raise(found.at[AT_QUERY + 1], what == QUERIES ? largest : 0.f);
      raise(found.at[AT_KEY], what == KEYS ? squares : 0.f);
      raise(found.at[AT_KEY + 1], what == KEYS ? largest : 0.f);
    }
  }
}

// Writes the record of the block.
INLINE void join(const Measure& m, Found& found) {
  SHARED(memory, WARPS * (CHANNELS + COLUMNS) * 4);
  const int lane = thread_index() & 31, warp = thread_index() >> 5;
  const SharedBytes own = memory + warp * (CHANNELS + COLUMNS) * 4;
  UNROLL for (int i = 0; i < CHANNELS; i++) {
    NO_UNROLL for (int mask = 1; mask < 32; mask *= 2) raise(found.at[i], shuffle_xor(found.at[i], mask));
    if (lane == 0) store_shared_f(own + i * 4, found.at[i]);
  }
  const int team = team_of(m.call.value_dim);
  UNROLL for (int q = 0; q < QUADS; q++) {
    UNROLL for (int e = 0; e < 4; e++) {
      float x = found.values[q][e];
      NO_UNROLL for (int mask = team; mask < 32; mask *= 2) raise(x, shuffle_xor(x, mask));
      found.values[q][e] = x;
    }
    if (lane < team) store_shared(own + (CHANNELS + (lane + q * 32) * 4) * 4, found.values[q]);
  }
  sync_block();
  for (int i = thread_index(); i < m.record; i += THREADS) {
    float x = 0.f;
    UNROLL for (int w = 0; w < WARPS; w++) raise(x, load_shared_f(memory + (w * (CHANNELS + COLUMNS) + i) * 4));
    write_f32(m.records + ((long long)block_index() * m.record + i) * 4, x);
  }
}

INLINE void run(const Measure& m) {
  const Call& call = m.call;
  const long long items =
      (long long)call.sequence_count * ((long long)call.heads * m.query_pieces + 2ll * m.kv_heads * m.key_pieces) +
      (m.mask_elements + ELEMENTS - 1) / ELEMENTS + (m.bias_elements + ELEMENTS - 1) / ELEMENTS;
  Found found = {};
  NO_UNROLL for (long long item = block_index(); item < items; item += block_count()) {
    if (call.dtype == TYPE_F32) take<false>(m, item, found);
    else take<true>(m, item, found);
  }
  join(m, found);
}

}  // namespace measure
