// The scan over parts: from what each part does to a state, S -> A S + b, the state before each of them and after the last.
//
//   for each part p:  before_p <- S,  S <- A_p S + b_p
//
// 1. Columns of a state are independent: a block has 32 of them for all parts of a head, in shared memory, so that a launch
//    does the scan. Its steps are few, and rounding errors are those of the recurrence over parts.
// 2. With a delta rule A_p is dense: a lane has every sixteenth row and four columns of the product. Otherwise it is diagonal: the
//    gates of the part, from the sum of their logarithms, f64. A sum of -inf clears by selection. Rows of a dense A are aligned
//    to four elements.
// 3. The states before the parts may take the place of the b_p.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"

// The argument of a launch: the device twin of kernels/src/cuda/linear/carry.rs.
struct Carry {
  Divisor by_columns, by_heads;          // of the fields of those names
  int columns, heads, sequence_count;    // blocks of columns; states of a sequence
  int parts, key_dim, value_dim;
  int gates, unused;                     // gates of a token: none, one, or key_dim
  States initial, folds, transitions;    // of the sequence; b of each part; dense A of each part, or none
  States before, last;                   // of each part; of the sequence. Data zero: not requested
  Address sums;                          // f64 [sequence][head][part][gates]
};

static_assert(__builtin_offsetof(Carry, columns) == 16 && __builtin_offsetof(Carry, initial) == 48, "");
static_assert(__builtin_offsetof(Carry, sums) == 248 && sizeof(Carry) == 256, "");

namespace carry {

// Rows that are a lane's at a time; of them, rows that it has at once.
constexpr int THREADS = 128, ROWS = 16, AT_ONCE = 8, COLUMNS = 32, MOST_DIMS = 256;

INLINE Address at(const States& s, int number, int head, int part, int row, int column) {
  return s.data + (number * s.sequence + head * s.head + part * s.part + row * s.row + column) * 4;
}

INLINE double sum_of(const Carry& call, int number, int head, int part, int row) {
  const long long first = ((long long)(number * call.heads + head) * call.parts + part) * call.gates;
  const u2 words = load_u2(call.sums + (first + (call.gates > 1 ? row : 0)) * 8);
  return double_of_bits((unsigned long long)words[1] << 32 | words[0]);
}

INLINE void run(SharedBytes state, const Carry& call) {
  const int of_columns = quotient_of(block_index(), call.by_columns);
  const int number = quotient_of(of_columns, call.by_heads), head = of_columns - number * call.heads;
  const int own = thread_index() / 8, x = thread_index() % 8 * 4;
  const int column = (block_index() - of_columns * call.columns) * COLUMNS + x;
  auto read = [&](const States& s, int part, int row) LAMBDA {
    f4 found = zero4();
    if (s.data != 0)
      UNROLL for (int c = 0; c < 4; c++)
        if (column + c < call.value_dim) found[c] = read_f32(at(s, number, head, part, row, column + c));
    return found;
  };
  auto write = [&](const States& s, int part, int row, f4 y) LAMBDA {
    if (s.data != 0)
      UNROLL for (int c = 0; c < 4; c++)
        if (column + c < call.value_dim) write_f32(at(s, number, head, part, row, column + c), y[c]);
  };
  auto place = [&](int row) LAMBDA { return state + (row * COLUMNS + x) * 4; };
  const bool dense = call.transitions.data != 0;

  NO_UNROLL for (int row = own; row < call.key_dim; row += ROWS) store_shared(place(row), read(call.initial, 0, row));
  sync_block();
  NO_UNROLL for (int part = 0; part < call.parts; part++) {
    f4 next[MOST_DIMS / ROWS];
    NO_UNROLL for (int first = own; first < MOST_DIMS; first += AT_ONCE * ROWS) {
      f4 sum[AT_ONCE];
      UNROLL for (int i = 0; i < AT_ONCE; i++) {
        const int row = first + i * ROWS;
        sum[i] = zero4();
        if (row >= call.key_dim) continue;
        const f4 s = load_shared(place(row));
        sum[i] = read(call.folds, part, row);
        write(call.before, part, row, s);
        if (dense) continue;
        double of_part = 0.;
        if (call.gates > 0) of_part = sum_of(call, number, head, part, row);
        const float a = exp_of(of_part);
        UNROLL for (int c = 0; c < 4; c++)
          sum[i][c] = of_part == -__builtin_inf() ? sum[i][c] : __builtin_fmaf(a, s[c], sum[i][c]);
      }
      if (dense && first < call.key_dim) {
        f4 product[AT_ONCE];
        Address a[AT_ONCE];
        UNROLL for (int i = 0; i < AT_ONCE; i++) {
          product[i] = zero4();
          a[i] = at(call.transitions, number, head, part, min_of(first + i * ROWS, call.key_dim - 1), 0);
        }
        NO_UNROLL for (int k = 0; k < call.key_dim; k += 4) {
          f4 weights[AT_ONCE];
          UNROLL for (int i = 0; i < AT_ONCE; i++) weights[i] = load_f4(a[i] + k * 4);
          UNROLL for (int e = 0; e < 4; e++) {
            const bool inside = k + e < call.key_dim;
            f4 y = load_shared(place(inside ? k + e : 0));
            const bool selects = !inside || !is_finite(y);
            UNROLL for (int i = 0; i < AT_ONCE; i++) {
              const float a = weights[i][e];
              UNROLL for (int c = 0; c < 4; c++)
                product[i][c] = __builtin_fmaf(inside ? a : 0.f, selects && (!inside || a == 0.f) ? 0.f : y[c], product[i][c]);
            }
          }
        }
        UNROLL for (int i = 0; i < AT_ONCE; i++) sum[i] = sum[i] + product[i];
      }
      UNROLL for (int o = AT_ONCE; o < MOST_DIMS / ROWS; o++) next[o - AT_ONCE] = next[o];
      UNROLL for (int i = 0; i < AT_ONCE; i++) next[MOST_DIMS / ROWS - AT_ONCE + i] = sum[i];
    }
    sync_block();
    NO_UNROLL for (int i = 0; i < MOST_DIMS / ROWS; i++) {  // the first row becomes the last
      const f4 y = next[0];
      UNROLL for (int o = 1; o < MOST_DIMS / ROWS; o++) next[o - 1] = next[o];
      const int row = own + i * ROWS;
      if (row < call.key_dim) store_shared(place(row), y);
    }
    sync_block();
  }
  NO_UNROLL for (int row = own; row < call.key_dim; row += ROWS) write(call.last, 0, row, load_shared(place(row)));
}

}  // namespace carry
