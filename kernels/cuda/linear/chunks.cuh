// Linear attention with at most one gate per head: all chunks of all heads at once, in three launches.
//
//   terms     P_ij = exp(G_i - G_j - H_i) q_i.k_j  for j <= i,   B = sum_j exp(G_C - G_j - H_C) k_j v_j'
//   states    S_next = exp(G_C) S + exp(H_C) B,  chunk by chunk, for each element of a state
//   answers   o_i = scale exp(H_i) (exp(G_i - H_i) S' q_i + sum_j P_ij v_j)
//
// The naive loop carries a state through the tokens, so that a head occupies as many SMs as its columns fill. Here a
// chunk has C = LONG_CHUNK tokens, and the first and the last launch have blocks for every chunk. Only the second
// launch goes from chunk to chunk, and it does one multiply-add per element and chunk. With FOLD there is no second
// launch: each block of the third one goes through the few chunks before its own, with the same operations.
//
//  1. A block computes a matrix of ROWS rows and COLUMNS columns. A thread has DOWN rows of ACROSS columns (Shape).
//     Each element is a chain over dims or tokens, in order, so its bits do not depend on the shape.
//  2. Operands pass through shared memory, a slab of dims or tokens at a time. The next slab travels through registers
//     while a slab is multiplied. Kernels for few blocks have slabs of 64, because there the waits for memory and at
//     barriers take longest; the others have short ones, so that more blocks have room on an SM.
//  3. G_i is the sum of the logarithms since the last token that clears, in f64, and each token knows how many have
//     cleared before it. Tokens see each other if these numbers are equal.
//  4. H_i is zero unless gates grow: it is the part of the largest G_i - G_j that exceeds MOST_SUM. So no weight is
//     beyond f32 if the recurrence is not, and an underflow in a weight is small compared with the state, which has
//     grown as much.
//  5. exp(G_i - G_j - H_i) is the product of two factors, split at the first of HALF rows. If a factor is too large or
//     too small for this, the exponential is computed per pair.
//  6. P is minus zero for a pair that does not see each other, and never otherwise. A block with a value that is not
//     finite skips these pairs, so that the value reaches no earlier token.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"

namespace chunks {

// Tokens of a chunk. The chunks that a call and its sequences count have as many.
constexpr int LONG_CHUNK = 64;
constexpr int ROWS = 64, COLUMNS = 64, HALF = 32;
static_assert(LONG_CHUNK == ROWS && LONG_CHUNK == 2 * HALF, "rows of P are tokens");
// Bytes per row of a slab with COLUMNS columns.
constexpr int COLUMN_BYTES = COLUMNS * 4;
// The terms of an output head and chunk: P, then for each token the gate of the state in its answer, one over the norm
// of its query, and exp(H). A state is followed by the gate of its chunk and by exp(H_C).
constexpr int TERMS_GATES = LONG_CHUNK * LONG_CHUNK, TERMS_NORMS = TERMS_GATES + LONG_CHUNK;
constexpr int TERMS_GROWTHS = TERMS_NORMS + LONG_CHUNK, TERMS = TERMS_GROWTHS + LONG_CHUNK;
static_assert(TERMS == LONG_CHUNK * (LONG_CHUNK + 3), "LONG_RECORD of args.rs");

// The state after a chunk.
INLINE float after(float gate, float state, float written) {
  if (RARELY(gate < 0.f)) return gate == CLEAR ? written : __builtin_fmaf(gate, gate * state, written);
  return __builtin_fmaf(gate, state, written);
}
INLINE float grown_by(float growth, float x) { return growth < 0.f ? x * growth * growth : x * growth; }
// The same for elements of a row. The chunk has the two gates behind its B.
INLINE f4 after(u2 gates, f4 state, const f4& written) {
  const float gate = float_of_bits(gates[0]), growth = float_of_bits(gates[1]);
  UNROLL for (int i = 0; i < 4; i++) state[i] = after(gate, state[i], grown_by(growth, written[i]));
  return state;
}

// How the threads of a block share its matrix, and the lengths of slabs: SLAB, and DIMS of queries and keys. The lanes of a
// warp are four by eight. All numbers are computed on use: kept, they would cost registers.
template <int DOWN_, int ACROSS_, int SLAB_, int DIMS_> struct Shape {
  enum {
    DOWN = DOWN_,
    ACROSS = ACROSS_,
    SLAB = SLAB_,
    DIMS = DIMS_,
    THREADS = ROWS * COLUMNS / (DOWN * ACROSS),
    WARPS_ACROSS = COLUMNS / (8 * ACROSS),
  };

  static INLINE int thread() { return opaque(thread_index()); }
  // The first row and column of a warp, and the places of a lane in it.
  static INLINE int first_row() { return (thread() >> 5) / WARPS_ACROSS * (4 * DOWN); }
  static INLINE int first_column() { return (thread() >> 5) % WARPS_ACROSS * (8 * ACROSS); }
  static INLINE int lane_row() { return thread() >> 3 & 3; }
  static INLINE int lane_column() { return thread() & 7; }
  // The first column of each quad of a thread.
  static INLINE int column_of(int c) { return first_column() + c * 32 + lane_column() * 4; }

  // The row and the quad of a thread's piece i of a slab with rows of QUADS quads.
  template <int QUADS> static INLINE int line_of(int i) { return (int)((unsigned)thread() / QUADS) + i * (THREADS / QUADS); }
  template <int QUADS> static INLINE int quad_of() { return (int)((unsigned)thread() % QUADS); }
};

// A chunk of a call: the parts that all launches share.
struct Chunk {
  const Linear& call;
  const SharedBytes sm;
  int number, of_all, position, tokens;  // of_all: among the chunks of all sequences; tokens: at most LONG_CHUNK
  Sequence sequence;

  INLINE Chunk(SharedBytes sm, const Linear& call) : call(call), sm(sm) {}

  INLINE bool has(int flag) const { return (call.flags & flag) != 0; }
  INLINE Rows rows(const Tensor& t, int h, int dim, int dtype, int flag) const {
    return rows_of(t, sequence, h, dim, dtype, has(flag), has(REVERSE));
  }
  INLINE Rows keys(int state_head) const {
    return rows(call.key, quotient_of(state_head, call.by_key_group), call.key_dim, call.dtype, KEY_VEC4);
  }
  INLINE Rows queries(int head) const {
    return rows(call.query, quotient_of(head, call.by_sharers), call.key_dim, call.dtype, QUERY_VEC4);
  }
  INLINE int value_type() const { return has(VALUE_F32) ? TYPE_F32 : call.dtype; }
  INLINE Rows values(int state_head) const { return rows(call.value, state_head, call.value_dim, value_type(), VALUE_VEC4); }

  INLINE void take(int chunk) {
    of_all = chunk;
    number = sequence_of_chunk(call, chunk);
    sequence = sequence_of(call, number);
    position = (chunk - sequence.chunk0) * LONG_CHUNK;
    tokens = min_of(sequence.tokens - position, LONG_CHUNK);
  }

  // A raw quad of queries, keys or values as numbers; `flag` is that of their rows.
  INLINE f4 numbers(f4 x, int flag, int dtype) const {
    return has(flag) && dtype != TYPE_F32 ? to_f32(u2{bits_of(x[0]), bits_of(x[1])}, dtype) : x;
  }

  // Raw quad of a token's row, zero past the last token and the last dim.
  INLINE f4 row_quad(const Rows& from, int token, int first) const {
    return token < tokens ? load_row4(from, row_at(from, position + token), first) : zero4();
  }

  // One over the norm of a token's row, computed by two adjacent lanes.
  INLINE float norm_of_pair(const Rows& from, int token) const {
    float squares = 0.f;
    NO_UNROLL for (int x = thread_index() % 2 * 4; x < call.key_dim; x += 8) {
      const f4 y = unpacked(from, row_quad(from, token, x));
      UNROLL for (int e = 0; e < 4; e++) squares = __builtin_fmaf(y[e], y[e], squares);
    }
    squares += shuffle_xor(squares, 1);
    return 1.f / __builtin_sqrtf(squares + call.epsilon);
  }

  // Raw quads of the rows of tokens that are `apart`, zero past the last token and the last dim. `exist`: no quad of
  // the block is past them.
  template <int COUNT>
  INLINE void fetch_rows(f4 (&to)[COUNT], const Rows& from, int token, int apart, int first, bool exist) const {
    const bool wide = from.dtype == TYPE_F32;
    const Address at = row_at(from, position + token) + first * element_size(from.dtype);
    const long long across = apart * from.step;
    if (exist && from.vec4) {
      if (wide) {
        UNROLL for (int i = 0; i < COUNT; i++) to[i] = load_f4(at + i * across);
      } else {
        UNROLL for (int i = 0; i < COUNT; i++) load_words(to[i], at + i * across);
      }
      return;
    }
    const int left = first < from.dim ? tokens - token : 0;
    UNROLL for (int i = 0; i < COUNT; i++) to[i] = zero4();
    if (!from.vec4) {
      NO_UNROLL for (int i = 0; i < COUNT; i++) {  // each step puts the next row in the last place
        UNROLL for (int o = 1; o < COUNT; o++) to[o - 1] = to[o];
        to[COUNT - 1] = row_quad(from, token + i * apart, first);
      }
    } else if (wide) {
      UNROLL for (int i = 0; i < COUNT; i++)
        if (i * apart < left) to[i] = load_f4(at + i * across);
    } else {
      UNROLL for (int i = 0; i < COUNT; i++)
        if (i * apart < left) load_words(to[i], at + i * across);
    }
  }

  // Whether nothing reads the state after the chunk.
  INLINE bool is_unread() const { return call.last.data == 0 && position + LONG_CHUNK >= sequence.tokens; }

  INLINE Address terms(int head) const { return call.records + ((long long)head * call.chunks + of_all) * (TERMS * 4); }
  INLINE Address state(int state_head) const {
    return call.boundaries.data + (state_head * call.boundaries.head + of_all * call.boundaries.part) * 4;
  }
};

typedef Shape<8, 4, 32, 16> Many;
typedef Shape<4, 4, 64, 64> Few;

}  // namespace chunks
