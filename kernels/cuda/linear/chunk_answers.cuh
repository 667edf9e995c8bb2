// The third launch for all chunks at once: the answers of every chunk; chunks.cuh has the formulas.
#pragma once

#include "solved.cuh"

namespace chunks {

// The answers of an output head and chunk, for some columns. ALL: the kernel has the code for FOLD, for values that tokens write
// under a delta rule, and for gates per dim.
template <class S, bool ALL> struct Answers : Chunk {
  // The numbers of the tokens (chunks.cuh) have a place of their own: a thread that read them from memory when it
  // needs them would wait each time.
  enum {
    SLAB = S::SLAB,
    ROW_BYTES = SLAB * 4 + 16,
    ROW_QUADS = SLAB / 4,
    COLUMN_QUADS = COLUMNS / 4,
    ROW_LINES = S::THREADS / ROW_QUADS,
    COLUMN_LINES = S::THREADS / COLUMN_QUADS,
    EACH_ROW = ROWS / ROW_LINES,
    EACH_COLUMN = SLAB / COLUMN_LINES,
    COLUMNS_AT = ROWS * ROW_BYTES,
    NUMBERS_AT = COLUMNS_AT + SLAB * COLUMN_BYTES,
    SHARED_BYTES = NUMBERS_AT + 3 * ROWS * 4,
    QUADS = S::ACROSS / 4,
  };
  int column0;
  f4 sum[S::DOWN][QUADS];

  INLINE Answers(SharedBytes sm, const Linear& call) : Chunk(sm, call) {}

  // This thread's rows are 4 i apart. All rows of a warp are in one half.
  static INLINE int row_of(int i) { return S::first_row() + S::lane_row() + i * 4; }

  // The gate of the state in the answer of this thread's row i, one over the norm of its query, or exp(H).
  INLINE float number_of(int which, int i) const { return load_shared_f(sm + NUMBERS_AT + (which * ROWS + row_of(i)) * 4); }

  // The rows that are multiplied by the state: queries, or gated queries.
  INLINE Rows past_rows(int head) const {
    if (!ALL || !has(DIM_GATES)) return queries(head);
    const int bytes = Tile::dims(call) * 4;
    return Rows{Tile::queries(call, head, of_all) - position * (long long)bytes, bytes, call.key_dim, TYPE_F32, true};
  }

  // Quads of rows r, r + COLUMN_LINES, .. of the state before the chunk, from the terms of earlier chunks.
  INLINE void fold(f4 (&to)[EACH_COLUMN], int state_head, int r, int column) const {
    constexpr int AHEAD = 2;  // chunks whose terms are loaded together
    const int width = (int)call.boundaries.row, before = of_all - sequence.chunk0;
    const long long step = call.boundaries.part * 4;
    const Address first = call.boundaries.data + state_head * call.boundaries.head * 4 + sequence.chunk0 * step;
    const Address own = first + (r * width + column) * 4ll, gates = first + call.key_dim * width * 4;
    auto is_row = [&](int i) LAMBDA { return r + i * COLUMN_LINES < call.key_dim; };
    UNROLL for (int i = 0; i < EACH_COLUMN; i++) {
      to[i] = zero4();
      if (call.initial.data != 0 && is_row(i)) {
        const States& s = call.initial;
        const Address at = s.data + (number * s.sequence + state_head * s.head + (r + i * COLUMN_LINES) * s.row + column) * 4;
        UNROLL for (int e = 0; e < 4; e++)
          if (column + e < call.value_dim) to[i][e] = load_f32(at + e * 4);
      }
    }
    NO_UNROLL for (int chunk = 0; chunk < before; chunk += AHEAD) {
      f4 written[AHEAD][EACH_COLUMN];
      u2 gate[AHEAD];
      UNROLL for (int n = 0; n < AHEAD; n++) {
        const long long at = min_of(chunk + n, before - 1) * step;
        gate[n] = load_u2(gates + at);
        UNROLL for (int i = 0; i < EACH_COLUMN; i++) {
          written[n][i] = zero4();
          if (is_row(i) && column < width) written[n][i] = load_f4(own + at + i * COLUMN_LINES * width * 4ll);
        }
      }
      UNROLL for (int n = 0; n < AHEAD; n++)
        if (chunk + n < before)
          UNROLL for (int i = 0; i < EACH_COLUMN; i++) to[i] = after(gate[n], to[i], written[n][i]);
    }
  }

  // Adds the product of the first `length` dims or tokens of the slabs. Unless all values are `finite`, pairs that do not see
  // each other are skipped.
  INLINE void add_slab(int length, bool finite) {
    const SharedBytes rows = sm + row_of(0) * ROW_BYTES, columns = sm + COLUMNS_AT + S::column_of(0) * 4;
    if (RARELY(!finite)) {
      NO_UNROLL for (int t = 0; t < length; t++)
        UNROLL for (int c = 0; c < QUADS; c++) {
          const f4 x = load_shared(columns + t * COLUMN_BYTES + c * 128);
          UNROLL for (int i = 0; i < S::DOWN; i++) {
            const float weight = load_shared_f(rows + i * 4 * ROW_BYTES + t * 4);
            if (bits_of(weight) != 0x80000000u) add_product(sum[i][c], weight, x);
          }
        }
      return;
    }
    NO_UNROLL for (int t = 0; t < length; t += 4) {
      f4 x[4][QUADS];
      UNROLL for (int e = 0; e < 4; e++)
        UNROLL for (int c = 0; c < QUADS; c++) x[e][c] = load_shared(columns + (t + e) * COLUMN_BYTES + c * 128);
      UNROLL for (int some = 0; some < S::DOWN; some += 4) {
        f4 weights[4];
        UNROLL for (int i = 0; i < 4; i++) weights[i] = load_shared(rows + (some + i) * 4 * ROW_BYTES + t * 4);
        UNROLL for (int e = 0; e < 4; e++)
          UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int c = 0; c < QUADS; c++) add_product(sum[some + i][c], weights[i][e], x[e][c]);
      }
    }
  }

  INLINE void run(int head) {
    const int state_head = quotient_of(head, call.by_readers);
    const int of_state = (call.key_dim + SLAB - 1) / SLAB, slabs = of_state + (tokens + SLAB - 1) / SLAB;
    f4 row[EACH_ROW], next[EACH_COLUMN];
    UNROLL for (int i = 0; i < EACH_ROW; i++) row[i] = zero4();
    UNROLL for (int i = 0; i < EACH_COLUMN; i++) next[i] = zero4();
    UNROLL for (int i = 0; i < S::DOWN; i++)
      UNROLL for (int c = 0; c < QUADS; c++) sum[i][c] = zero4();
    // First come slabs of queries and of the state before the chunk, then those of P and of values. Rows are computed
    // on use: kept, they would cost registers.
    auto fetch = [&](int slab) LAMBDA {
      const bool past = slab < of_state;
      const int from = (past ? slab : slab - of_state) * SLAB, first = from + S::template quad_of<ROW_QUADS>() * 4;
      const int line = S::template line_of<ROW_QUADS>(0), r = from + S::template line_of<COLUMN_QUADS>(0);
      const int column = column0 + S::template quad_of<COLUMN_QUADS>() * 4;
      if (past) {
        fetch_rows(row, past_rows(opaque(head)), line, ROW_LINES, first, tokens == LONG_CHUNK && from + SLAB <= call.key_dim);
        if (ALL && has(FOLD)) return fold(next, opaque(state_head), r, column);
        const int width = (int)call.boundaries.row;
        const Address at = state(opaque(state_head)) + (r * width + column) * 4ll;
        UNROLL for (int i = 0; i < EACH_COLUMN; i++) {
          next[i] = zero4();
          if (r + i * COLUMN_LINES < call.key_dim && column < width) next[i] = load_f4(at + i * COLUMN_LINES * width * 4ll);
        }
      } else {
        const Address at = terms(opaque(head)) + (line * LONG_CHUNK + first) * 4;
        UNROLL for (int i = 0; i < EACH_ROW; i++)
          if (first < HALF || line + i * ROW_LINES >= HALF) row[i] = load_f4(at + i * (ROW_LINES * LONG_CHUNK * 4));
        const bool exist = from + SLAB <= tokens && column0 + COLUMNS <= call.value_dim;
        fetch_rows(next, values(opaque(state_head)), r, COLUMN_LINES, column, exist);
      }
    };
    // The first step only fetches: the code of a fetch is long, and there once.
    NO_UNROLL for (int slab = -1; slab < slabs; slab++) {
      const bool past = slab < of_state;
      if (slab == of_state) {
        UNROLL for (int i = 0; i < S::DOWN; i++) {
          const float gate = number_of(0, i), norm = number_of(1, i);
          UNROLL for (int c = 0; c < QUADS; c++) sum[i][c] = gated(sum[i][c] * norm, gate);
        }
      }
      sync_block();
      const SharedBytes first_row = sm + S::template line_of<ROW_QUADS>(0) * ROW_BYTES + S::template quad_of<ROW_QUADS>() * 16;
      UNROLL for (int i = 0; i < EACH_ROW; i++) {
        const SharedBytes to = first_row + i * ROW_LINES * ROW_BYTES;
        store_shared(to, past && !(ALL && has(DIM_GATES)) ? numbers(row[i], QUERY_VEC4, call.dtype) : row[i]);
      }
      const SharedBytes first_line = sm + COLUMNS_AT + S::template line_of<COLUMN_QUADS>(0) * COLUMN_BYTES;
      bool finite = true;
      UNROLL for (int i = 0; i < EACH_COLUMN; i++) {
        const SharedBytes to = first_line + i * COLUMN_LINES * COLUMN_BYTES;
        const f4 x = past ? next[i] : numbers(next[i], VALUE_VEC4, ALL ? value_type() : call.dtype);
        finite = finite && (past || is_finite(x));
        store_shared(to + S::template quad_of<COLUMN_QUADS>() * 16, x);
      }
      const bool all_finite = !any_of_block(!finite);
      if (slab + 1 < slabs) fetch(slab + 1);
      if (slab < 0) {
        NO_UNROLL for (int at = thread_index(); at < 3 * ROWS; at += S::THREADS)
          store_shared_f(sm + NUMBERS_AT + at * 4, load_f32(terms(opaque(head)) + (TERMS_GATES + at) * 4));
        continue;
      }
      // The first half of the rows sees no token of the second.
      const int seen = past || S::first_row() >= HALF ? SLAB : HALF - (slab - of_state) * SLAB;
      if (seen > 0) add_slab(min_of(seen, SLAB), all_finite);
    }
    const Rows answers = rows(call.output, head, call.value_dim, call.output_dtype, OUTPUT_VEC4);
    const Rows partials = rows(call.partial, head, call.value_dim, TYPE_F32, PARTIAL_VEC4);
    NO_UNROLL for (int i = 0; i < S::DOWN; i++) {  // each step moves the next row to the first place
      const float growth = number_of(2, i);
      UNROLL for (int c = 0; c < QUADS; c++) {
        const int column = column0 + S::column_of(c);
        const f4 x = gated(sum[0][c], growth) * call.scale;
        UNROLL for (int o = 1; o < S::DOWN; o++) sum[o - 1][c] = sum[o][c];
        if (row_of(i) < tokens && column < call.value_dim)
          write_row4(answers, partials, call.partial.data != 0, position + row_of(i), column, x);
      }
    }
  }

  static INLINE void run_all(SharedBytes sm, const Linear& call) {
    Answers block(sm, call);
    const int of_columns = quotient_of(block_index(), call.by_columns), head = of_columns / call.chunks;
    block.take(of_columns - head * call.chunks);
    // The second launch has written the answers of marked chunks.
    const bool may_be_marked = ALL && (Tile::has_w(call) || block.has(DIM_GATES));
    if (may_be_marked && Tile::is_marked(Tile::fetch_mark(call, Tile::of(call, quotient_of(head, call.by_readers), block.of_all)))) return;
    block.column0 = (block_index() - of_columns * call.columns) * COLUMNS;
    block.run(head);
  }
};

}  // namespace chunks

// Parameters: name, shape, whether it has the code for all calls, blocks per SM.
#define LINEAR_ANSWERS(name, SHAPE, ALL, BLOCKS)                                \
  KERNEL LAUNCH_BOUNDS(SHAPE::THREADS, BLOCKS) void name(const Linear call) {   \
    typedef chunks::Answers<SHAPE, ALL> A;                                      \
    SHARED(memory, A::SHARED_BYTES);                                            \
    A::run_all(memory, call);                                                   \
  }
