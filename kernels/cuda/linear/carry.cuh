// The scan over parts: computes the states after each part from the maps of the parts, S -> A S + b.
//
//   (A_1, b_1) + (A_2, b_2) = (A_2 A_1, A_2 b_1 + b_2),  earlier first;  the first part folds to a state, without A
//
// The order is that of core/src/scan/blelloch.rs, inclusive: an up-sweep over the tree that splits the parts at multiples of
// powers of two, then a down-sweep. A node of a step combines two items and writes the later one:
//
//   up     items[last] <- items[mid] + items[last]
//   down   items[mid] <- items[start - 1] + items[mid]  where start > 0;  items[start - 1] is a state by then
//
// 1. With a delta rule A is dense, and a launch handles the nodes of one step. A block has some rows of a node's result, which
//    replace the same rows of its later item: row r of A_2 A_1 and of A_2 b_1 needs row r of A_2, which the block keeps in
//    shared memory, and the earlier item, which nothing writes during the launch.
// 2. Otherwise A is diagonal, elements of a state are independent, and a launch does the whole scan. A thread has four elements
//    of a row. The gates of a run of parts come from the sum of their logarithms, f64, so no A is written.
// 3. A zero gate from a sum of -inf clears by selection. So does a dense A, in which the columns of cleared rows are zero. At the
//    next token a delta rule spreads a value that is not finite from one row to all rows of its column. Except in parts without
//    tokens, a single nonzero element in a column of A therefore means that no gate has cleared. A block sees ROWS rows of it:
//    with more dims other blocks may mistake zeros of keys and underflows for gates that clear.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"

// The argument of a launch: the device twin of kernels/src/cuda/linear/carry.rs.
struct Carry {
  Divisor by_blocks, by_nodes, by_heads;  // precomputed divisions by the fields of these names
  int blocks, nodes, heads;               // blocks per node; nodes of the step, or one; states per sequence
  int items, key_dim, value_dim;          // parts per state, except the last; rows of a state; its columns
  int gates, step, down, unused;          // gates per token: zero, one, or key_dim; in a dense scan, the step and its sweep
  Address states;                         // b, then states: f32 [sequence][head][item][key_dim][value_dim]
  Address transitions;                    // dense A: f32 [sequence][head][item][key_dim][key_dim], or zero
  Address sums;                           // f64 [sequence][head][item][gates]
};

static_assert(__builtin_offsetof(Carry, blocks) == 24 && __builtin_offsetof(Carry, states) == 64, "");
static_assert(sizeof(Carry) == 88, "");

namespace carry {

// Rows per block of a dense scan, and per warp. Rows start at multiples of four elements.
constexpr int THREADS = 128, ROWS = 32, EACH = ROWS / (THREADS / 32), MOST_DIMS = 256;

INLINE int padded(int n) { return (n + 3) / 4 * 4; }

// A node of a step: its first item, the last item of its earlier half, and its last item.
struct Node {
  int start, mid, last;
};
INLINE Node node_of(int items, int step, int m) {
  const int half = 1 << step, start = m * 2 * half;
  return Node{start, start + half - 1, min_of(items, start + 2 * half) - 1};
}

struct Dense {
  const Carry& call;
  const SharedBytes sm;
  const int lane, row0;  // row0: first row of this warp, within the block

  INLINE SharedBytes factor_at(int row) const { return sm + row * (padded(call.key_dim) * 4); }

  // Whether any row of the block uses an element of row k, other than through the identity of a part without tokens.
  INLINE bool spreads(int first, int k) const {
    bool found = false;
    NO_UNROLL for (int r = 0; r < ROWS; r++) {
      const float weight = load_shared_f(factor_at(r) + k * 4);
      found = found || (weight != 0.f && (first + r != k || weight != 1.f));
    }
    return found;
  }

  // Multiplies rows first .. of A by a matrix of `columns` columns, into the same rows of `to`, or adds to them.
  INLINE void multiply(Address from, Address to, int first, int columns, bool adds) const {
    const int size = padded(columns) * 4;
    NO_UNROLL for (int x = lane * 4; x < columns; x += 128) {
      f4 sum[EACH];
      UNROLL for (int i = 0; i < EACH; i++) sum[i] = zero4();
      NO_UNROLL for (int k = 0; k < call.key_dim; k += 4) {
        f4 weights[EACH];
        UNROLL for (int i = 0; i < EACH; i++) weights[i] = load_shared(factor_at(row0 + i) + k * 4);
        UNROLL for (int e = 0; e < 4; e++) {
          f4 y = zero4();
          if (k + e < call.key_dim) y = load_f4(from + (long long)(k + e) * size + x * 4);
          if (RARELY(!is_finite(y))) {
            const bool all = spreads(first, k + e);
            UNROLL for (int i = 0; i < EACH; i++)
              if (all || weights[i][e] != 0.f) add_product(sum[i], weights[i][e], y);
          } else {
            UNROLL for (int i = 0; i < EACH; i++) add_product(sum[i], weights[i][e], y);
          }
        }
      }
      UNROLL for (int i = 0; i < EACH; i++) {
        const Address at = to + (long long)(first + row0 + i) * size + x * 4;
        if (first + row0 + i >= call.key_dim) continue;
        write_f4(at, adds ? read_f4(at) + sum[i] : sum[i]);
      }
    }
  }

  INLINE void run() const {
    const int of_blocks = quotient_of(block_index(), call.by_blocks), block = block_index() - of_blocks * call.blocks;
    const int of_nodes = quotient_of(of_blocks, call.by_nodes), m = of_blocks - of_nodes * call.nodes;
    const long long item0 = (long long)of_nodes * call.items;
    const Node node = node_of(call.items, call.step, call.down != 0 ? m + 1 : m);
    const int earlier = call.down != 0 ? node.start - 1 : node.mid, at = call.down != 0 ? node.mid : node.last;
    const int of_row = padded(call.key_dim) * 4, first = block * ROWS;
    const long long a_bytes = (long long)call.key_dim * of_row;
    const long long s_bytes = (long long)call.key_dim * (padded(call.value_dim) * 4);
    const Address a = call.transitions + (item0 + at) * a_bytes;
    NO_UNROLL for (int i = thread_index() * 4; i < ROWS * padded(call.key_dim); i += THREADS * 4) {
      const int row = i / padded(call.key_dim), x = i % padded(call.key_dim);
      f4 found = zero4();
      if (first + row < call.key_dim) found = read_f4(a + (long long)(first + row) * of_row + x * 4);
      UNROLL for (int e = 0; e < 4; e++) found[e] = x + e < call.key_dim ? found[e] : 0.f;
      store_shared(sm + i * 4, found);
    }
    sync_block();
    multiply(call.states + (item0 + earlier) * s_bytes, call.states + (item0 + at) * s_bytes, first, call.value_dim, true);
    // A fold from the start of the sequence is a state, which has no transition.
    if (call.down == 0 && node.start > 0)
      multiply(call.transitions + (item0 + earlier) * a_bytes, a, first, call.key_dim, false);
  }
};

struct Diagonal {
  const Carry& call;
  const int row, of_state;
  const long long item0;
  const Address quad;  // address of this thread's elements in the first item

  // items[at] <- items[earlier] + items[at], with the gates of parts from .. at.
  INLINE void combine(int earlier, int from, int at) const {
    double sum = 0.;
    if (call.gates > 0)
      NO_UNROLL for (int p = from; p <= at; p++) {
        const long long place = (item0 + p) * call.gates + (call.gates > 1 ? row : 0);
        const u2 words = load_u2(call.sums + place * 8);
        sum = sum_of_logs(sum, double_of_bits((unsigned long long)words[1] << 32 | words[0]));
      }
    if (sum == -__builtin_inf()) return;
    const f4 s = read_f4(quad + (long long)earlier * of_state);
    f4 b = read_f4(quad + (long long)at * of_state);
    UNROLL for (int c = 0; c < 4; c++) b[c] = grown(sum, s[c], b[c]);
    write_f4(quad + (long long)at * of_state, b);
  }

  INLINE void run() const {
    NO_UNROLL for (int step = 0; 1 << step < call.items; step++)
      NO_UNROLL for (int m = 0; node_of(call.items, step, m).mid + 1 < call.items; m++) {
        const Node node = node_of(call.items, step, m);
        combine(node.mid, node.mid + 1, node.last);
      }
    NO_UNROLL for (int step = 30; step >= 0; step--)
      NO_UNROLL for (int m = 1; 1 << step < call.items && node_of(call.items, step, m).mid + 1 < call.items; m++) {
        const Node node = node_of(call.items, step, m);
        combine(node.start - 1, node.start, node.mid);
      }
  }
};

INLINE void run(SharedBytes sm, const Carry& call) {
  if (call.transitions != 0) return Dense{call, sm, thread_index() & 31, (thread_index() >> 5) * EACH}.run();
  const int of_blocks = quotient_of(block_index(), call.by_blocks), block = block_index() - of_blocks * call.blocks;
  const int quads = padded(call.value_dim) / 4, index = block * THREADS + thread_index();
  const int row = index / quads, x = index % quads * 16;
  if (row >= call.key_dim) return;
  const int of_row = quads * 16, of_state = call.key_dim * of_row;
  const long long item0 = (long long)of_blocks * call.items;
  Diagonal{call, row, of_state, item0, call.states + item0 * of_state + row * of_row + x}.run();
}

}  // namespace carry
