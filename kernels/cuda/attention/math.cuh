// Method math: the matrix of scores in memory, the softmax of its rows, and the product with the values.
//
//   S = factor * (Q K')      P = 2^(S - m), row by row, after the soft cap and the masks      O = P V / sum of P
//
// The naive way uses a thread per element of a product. Why the code differs:
//
//  1. A block computes 64 x 64 elements of a product, and a lane 4 x 8 of them: each 16 bytes that it reads from shared memory
//     feed many multiply-adds, as in the tiles of attention.cuh. The next operands travel through registers at the same time.
//  2. Both factors are in shared memory as [depth][64], with 16-byte chunks permuted by exclusive or, so that neither stores nor
//     loads cause bank conflicts.
//  3. Tiles of 64 x 64 scores without any attended key are neither computed nor read.
//  4. Changes of the scores are part of the softmax, where a warp has a row and its lanes have adjacent keys.
//  5. Weights are divided by their sum at the end, together with the output: one division per element of O, not of P.
//  6. The rounding error of a sum grows with its chain: every FLUSH keys the products are added to separate sums.
//  7. A masked key weighs a positive zero, and an attended key whose weight underflows a negative zero. If values contain a NaN
//     or an infinity, products skip positive zeros.
#pragma once

#include "../common/elements.cuh"
#include "added.cuh"
#include "finish.cuh"

// The argument of a launch: the device twin of kernels/src/cuda/attention/math.rs.
struct Math {
  Call call;
  Address scores;         // [row][stride]: the scores, later the weights
  long long stride;       // f32 values from one row to the next, a multiple of the keys of a tile
  Divisor by_columns;     // precomputed division by the field of this name
  int columns, unused;    // `columns`: column blocks of the product; columns are keys or dims of the values
};

static_assert(__builtin_offsetof(Math, scores) == sizeof(Call) && sizeof(Math) == sizeof(Call) + 32, "");

namespace math {

constexpr int WARPS = 4, THREADS = WARPS * 32;
constexpr int ROWS = 64, COLUMNS = 64, DEPTH = 32;  // rows and columns of a block's product; depth of a slice in shared memory
constexpr int TM = 4, TN = 8;                       // rows and columns per lane
constexpr int FLUSH = 256;                          // keys whose products are one chain
constexpr int LINE = 64 * 4, AREA = DEPTH * LINE;   // bytes of 64 elements; bytes of a factor
constexpr int AT_ONCE = 4;                          // tiles of a row that a warp reads at once

// Lanes that differ in bit 0 have the same columns, lanes that differ in bit 1 the same rows.
INLINE int lane_col(int t) { return (t >> 1) & 7; }
INLINE int lane_row(int t) { return (t >> 5) * 4 + ((t & 1) | ((t >> 3) & 2)); }
// First of four columns of a lane.
INLINE int column_of(int t, int half) { return half * 32 + lane_col(t) * 4; }

// The work of a block: a share of the call, with row blocks counted from the first, and a block of columns.
struct Place {
  Share share;
  int row0, column;
};

INLINE Place place_of(const Math& x, int block) {
  const int of_columns = quotient_of(block, x.by_columns);
  Place p;
  p.share = share_of(x.call, of_columns);
  p.row0 = p.share.row_block * ROWS;
  p.column = (block - of_columns * x.columns) * COLUMNS;
  return p;
}

// Keys that some row of the block from `row0` on attends, rounded down to the start of a tile.
INLINE Range keys_of(const Sequence& s, int row0) {
  const int start = range_of(s, row0).start & ~(COLUMNS - 1);
  return Range{start, range_of(s, min_of(row0 + ROWS, s.queries) - 1).end};
}

INLINE Address scores_of(const Math& x, long long row) { return x.scores + row * x.stride * 4; }

// Loads four elements of a row from `first` on, unconverted: f32 values, or two words of 16-bit elements. Elements past `dims`,
// and those of a row that is not `there`, are zero.
INLINE f4 load_raw(Address row, int first, int dims, bool there, bool vec4, int dtype) {
  f4 x = zero4();
  const int end = there ? dims : 0;
  if (dtype == TYPE_F32) {
    load4_checked(x, row, first, end, vec4);
  } else {
    u2 y;
    load4_checked(y, row, first, end, vec4);
    x[0] = float_of_bits(y[0]);
    x[1] = float_of_bits(y[1]);
  }
  return x;
}

// Loads four rows like load_raw; `row(n, there)` returns the address of row n and whether it is there. Rows that are read element
// by element are loaded in a loop.
template <class Row> INLINE void load_rows(f4 (&x)[4], int first, int dims, bool vec4, int dtype, Row row) {
  if (vec4) {
    UNROLL for (int n = 0; n < 4; n++) {
      bool there = true;
      const Address a = row(n, there);
      x[n] = load_raw(a, first, dims, there, true, dtype);
    }
  } else {
    NO_UNROLL for (int n = 0; n < 4; n++) {
      bool there = true;
      const Address a = row(n, there);
      UNROLL for (int i = 0; i < 3; i++) x[i] = x[i + 1];
      x[3] = load_raw(a, first, dims, there, false, dtype);
    }
  }
}

// Converts loaded rows to f32 values.
INLINE void widen_rows(f4 (&x)[4], int dtype) {
  if (dtype == TYPE_F32) return;
  UNROLL for (int n = 0; n < 4; n++) x[n] = to_f32(u2{bits_of(x[n][0]), bits_of(x[n][1])}, dtype);
}

// Address of chunk `chunk` of line `depth` of a factor.
INLINE SharedBytes chunk_at(SharedBytes factor, int depth, int chunk) {
  return factor + depth * LINE + ((chunk ^ (depth >> 2 & 7)) << 4);
}

// Stores four rows, of four dims from 4 (t & 7) on, as [dim][row].
INLINE void store_transposed(SharedBytes factor, int t, const f4 (&x)[4]) {
  UNROLL for (int e = 0; e < 4; e++)
    store_shared(chunk_at(factor, (t & 7) * 4 + e, t >> 3), f4{x[0][e], x[1][e], x[2][e], x[3][e]});
}

// Adds the products of the DEPTH lines of both factors in shared memory.
INLINE void multiply(SharedBytes left, SharedBytes right, int t, float (&acc)[TM][TN]) {
  constexpr int BODY = 8;
  const int row = lane_row(t), col = lane_col(t);
  f4 a[2], b[2][2];
  auto fragments = [&](int n, int it, int k) LAMBDA {
    const int low = k >> 2, high = it << 1;
    const SharedBytes line = left + it * (BODY * LINE) + k * LINE;
    a[n] = load_shared(line + ((row ^ (high | low)) << 4));
    const SharedBytes other = right + it * (BODY * LINE) + k * LINE + ((col ^ (high | low)) << 4);
    b[n][0] = load_shared(other);
    b[n][1] = load_shared(other + 128);
  };
  fragments(0, 0, 0);
  NO_UNROLL for (int it = 0; it < DEPTH / BODY; it++) {
    UNROLL for (int k = 0; k < BODY; k++) {
      const int n = k & 1;
      if (k + 1 < BODY) fragments(n ^ 1, it, k + 1);
      else fragments(n ^ 1, (it + 1) & (DEPTH / BODY - 1), 0);
      UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++) acc[i][j] = __builtin_fmaf(a[n][i], b[n][j >> 2][j & 3], acc[i][j]);
    }
  }
}

// Like multiply, but positive zeros among the weights on the left contribute nothing.
INLINE void multiply_attended(SharedBytes left, SharedBytes right, int t, float (&acc)[TM][TN]) {
  NO_UNROLL for (int k = 0; k < DEPTH; k++) {
    const f4 a = load_shared(chunk_at(left, k, lane_row(t)));
    const SharedBytes other = chunk_at(right, k, lane_col(t));
    const f4 b[2] = {load_shared(other), load_shared(other + 128)};
    UNROLL for (int i = 0; i < TM; i++) {
      const bool absent = is_absent(a[i]);
      UNROLL for (int j = 0; j < TN; j++) {
        const float y = __builtin_fmaf(a[i], b[j >> 2][j & 3], acc[i][j]);
        acc[i][j] = absent ? acc[i][j] : y;
      }
    }
  }
}

// First step of method math: computes a tile of scores, in base-2 units.
INLINE void scores(SharedBytes sm, const Math& x) {
  const Call& call = x.call;
  const int t = thread_index(), dtype = call.dtype, size = element_size(dtype), d = call.head_dim;
  const Place p = place_of(x, block_index());
  const Sequence& s = p.share.sequence;
  if (p.row0 >= s.queries) return;
  const Range keys = keys_of(s, p.row0);
  if (p.column < keys.start || p.column >= keys.end) return;
  const int head = p.share.head, kv_head = quotient_of(head, call.by_group);
  const Address q = query_row(call, s, head, 0, size);
  const Address old = call.past_key.data + row_offset(call.past_key, s.batch, kv_head, 0) * size;
  const Address now = call.key.data + row_offset(call.key, s.batch, kv_head, s.key0) * size;
  f4 a[4], b[4];
  float acc[TM][TN];
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) acc[i][j] = 0.f;
  const int chunks = (d + DEPTH - 1) / DEPTH;
  NO_UNROLL for (int chunk = 0; chunk <= chunks; chunk++) {
    const int first = chunk * DEPTH + (t & 7) * 4, group = (t >> 3) * 4;
    if (chunk < chunks) {  // rows and keys past the last ones repeat the last
      load_rows(a, first, d, (call.flags & QUERY_VEC4) != 0, dtype, [&](int n, bool&) LAMBDA -> Address {
        return q + min_of(p.row0 + group + n, s.queries - 1) * call.query.token * size;
      });
      load_rows(b, first, d, (call.flags & KEY_VEC4) != 0, dtype, [&](int n, bool&) LAMBDA -> Address {
        const int key = min_of(p.column + group + n, s.reach - 1);
        return key < s.past ? old + key * call.past_key.token * size : now + (key - s.past) * call.key.token * size;
      });
    }
    if (chunk > 0) {
      multiply(sm, sm + AREA, t, acc);
      sync_block();
    }
    if (chunk == chunks) break;
    widen_rows(a, dtype);
    widen_rows(b, dtype);
    UNROLL for (int n = 0; n < 4; n++) a[n] = a[n] * call.query_factor;
    store_transposed(sm, t, a);
    store_transposed(sm + AREA, t, b);
    sync_block();
  }
  const int row = p.row0 + lane_row(t) * TM;
  const Address to = scores_of(x, row_number(call, s, head, row)) + p.column * 4;
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int h = 0; h < 2; h++)
      if (row + i < s.queries)
        write_f4(to + (i * x.stride + column_of(t, h)) * 4,
                 f4{acc[i][h * 4], acc[i][h * 4 + 1], acc[i][h * 4 + 2], acc[i][h * 4 + 3]});
}

// Second step: turns a row of scores into weights. A warp has a row, and a lane has two keys of each tile.
INLINE void weights(const Math& x) {
  const Call& call = x.call;
  const int t = thread_index(), lane = t & 31;
  const long long row = (long long)block_index() * WARPS + (t >> 5);
  if (row >= call.query_rows) return;
  const int of_tokens = quotient_of((int)row, call.by_tokens), token = (int)row - of_tokens * call.tokens;
  const Share share = share_of(call, of_tokens * call.row_blocks + token / ROWS);
  const Sequence& s = share.sequence;
  const Range keys = keys_of(s, token & ~(ROWS - 1)), own = range_of(s, token);
  const Address at = scores_of(x, row);
  const bool changes = call.changes != 0 || call.cap != 0.f;
  // The scores of AT_ONCE tiles from `tile` on, masked outside the row's range; -inf past the last tile.
  auto read = [&](int tile, f2 (&y)[AT_ONCE]) LAMBDA {
    UNROLL for (int n = 0; n < AT_ONCE; n++) {
      const int key = tile + n * COLUMNS + lane * 2;
      y[n] = f2{NEG_INF, NEG_INF};
      if (tile + n * COLUMNS < keys.end) y[n] = read_f2(at + key * 4ll);
      UNROLL for (int e = 0; e < 2; e++) y[n][e] = key + e >= own.start && key + e < own.end ? y[n][e] : NEG_INF;
    }
  };
  auto write = [&](int tile, const f2 (&y)[AT_ONCE]) LAMBDA {
    UNROLL for (int n = 0; n < AT_ONCE; n++)
      if (tile + n * COLUMNS < keys.end) write_f2(at + (tile + n * COLUMNS + lane * 2) * 4ll, y[n]);
  };
  float top = NEG_INF;
  NO_UNROLL for (int tile = keys.start; tile < keys.end; tile += AT_ONCE * COLUMNS) {
    f2 y[AT_ONCE];
    read(tile, y);
    if (changes) {
      NO_UNROLL for (int n = 0; n < AT_ONCE * 2; n++) {  // each step moves the next score to the first place
        const int key = tile + (n >> 1) * COLUMNS + lane * 2 + (n & 1);
        float z = y[0][0];
        if (key >= own.start && key < own.end) {
          if (call.cap != 0.f) z = soft_cap(call, z);
          z = changed(z, added_to(call, s, share.head, token, key));
        }
        UNROLL for (int i = 0; i + 1 < AT_ONCE; i++) y[i] = f2{y[i][1], y[i + 1][0]};
        y[AT_ONCE - 1] = f2{y[AT_ONCE - 1][1], z};
      }
      write(tile, y);
    }
    UNROLL for (int n = 0; n < AT_ONCE; n++) top = max2(top, max2(y[n][0], y[n][1]));
  }
  UNROLL for (int w = 1; w < 32; w <<= 1) top = max2(top, shuffle_xor(top, w));
  float m = NO_KEY, sum = 0.f;
  raise(m, top);
  NO_UNROLL for (int tile = keys.start; tile < keys.end; tile += AT_ONCE * COLUMNS) {
    f2 y[AT_ONCE];
    read(tile, y);
    UNROLL for (int n = 0; n < AT_ONCE; n++) {
      UNROLL for (int e = 0; e < 2; e++) y[n][e] = signed_weight(y[n][e], m);
      sum += y[n][0] + y[n][1];
    }
    write(tile, y);
  }
  UNROLL for (int w = 1; w < 32; w <<= 1) sum += shuffle_xor(sum, w);
  if (lane != 0) return;
  const float reference = stored_reference(m, m == NO_KEY && sum == 0.f);
  write_f2(call.part_ms + row * 8, f2{reference, sum});
  if (call.part_w == 0 && call.lse != 0) write_f32(call.lse + row * 4, log_sum_exp(reference, sum));
}

// Third step: computes a block of the product with the values, and writes outputs, or the W of a state that another kernel
// finishes.
INLINE void values(SharedBytes sm, const Math& x) {
  const Call& call = x.call;
  const int t = thread_index(), dtype = call.dtype, size = element_size(dtype), dv = call.value_dim;
  const Place p = place_of(x, block_index());
  const Sequence& s = p.share.sequence;
  if (p.row0 >= s.queries) return;
  const Range keys = keys_of(s, p.row0);
  const int head = p.share.head, kv_head = quotient_of(head, call.by_group);
  const long long first_row = row_number(call, s, head, p.row0);
  const Address old = call.past_value.data + row_offset(call.past_value, s.batch, kv_head, 0) * size;
  const Address now = call.value.data + row_offset(call.value, s.batch, kv_head, s.key0) * size;
  f4 a[4], b[4];
  auto load = [&](int first) LAMBDA {
    const int group = (t >> 3) * 4;
    UNROLL for (int n = 0; n < 4; n++)
      a[n] = load_f4(scores_of(x, first_row + min_of(group + n, s.queries - 1 - p.row0)) + (first + (t & 7) * 4) * 4ll);
    load_rows(b, p.column + (t & 15) * 4, dv, (call.flags & VALUE_VEC4) != 0, dtype, [&](int n, bool& there) LAMBDA -> Address {
      const int key = first + n * (THREADS / 16) + (t >> 4);
      there = key < s.reach;
      return key < s.past ? old + key * call.past_value.token * size : now + (key - s.past) * call.value.token * size;
    });
  };
  float acc[TM][TN], sums[TM][TN];
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) acc[i][j] = sums[i][j] = 0.f;
  const int end = (keys.end + COLUMNS - 1) & ~(COLUMNS - 1);
  bool odd = false;
  NO_UNROLL for (int first = keys.start; first <= end; first += DEPTH) {
    if (first < end) load(first);
    if (first > keys.start) {
      if (RARELY(odd)) multiply_attended(sm, sm + AREA, t, acc);
      else multiply(sm, sm + AREA, t, acc);
      if (first % FLUSH == 0 || first == end) {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++) {
            sums[i][j] += acc[i][j];
            acc[i][j] = 0.f;
          }
      }
      sync_block();
    }
    if (first == end) break;
    widen_rows(b, dtype);
    store_transposed(sm, t, a);
    odd = false;
    UNROLL for (int n = 0; n < 4; n++) {
      store_shared(chunk_at(sm + AREA, n * (THREADS / 16) + (t >> 4), t & 15), b[n]);
      UNROLL for (int e = 0; e < 4; e++) odd = odd || !(b[n][e] - b[n][e] == 0.f);
    }
    odd = any_of_block(odd);
  }
  NO_UNROLL for (int i = 0; i < TM * 2; i++) {  // each step moves the next half of a row to the first place
    const int row = lane_row(t) * TM + (i >> 1), dim = p.column + column_of(t, i & 1);
    const long long number = first_row + row;
    const f4 w = {sums[0][0], sums[0][1], sums[0][2], sums[0][3]};
    if (p.row0 + row < s.queries) {
      const f2 state = read_f2(call.part_ms + number * 8);
      if (call.part_w == 0) {
        const Address out = output_row(call, s.batch, head, s.query0 + p.row0 + row);
        write_quotient4(call, out, dim, w, state[1], state_is_empty(state[0], state[1]), dtype);
      } else if (dim < call.part_dim) {
        write_f4(call.part_w + (number * call.part_dim + dim) * 4, w);
      }
    }
    UNROLL for (int n = 0; n < TM; n++) {
      UNROLL for (int j = 0; j + 4 < TN; j++) sums[n][j] = sums[n][j + 4];
      UNROLL for (int j = 0; j < 4 && n + 1 < TM; j++) sums[n][j + 4] = sums[n + 1][j];
    }
  }
}

}  // namespace math
