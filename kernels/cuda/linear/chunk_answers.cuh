// The third launch for all chunks at once: the answers of every chunk; chunks.cuh has the formulas.
#pragma once

#include "chunks.cuh"

namespace chunks {

// The answers of an output head and chunk, for some columns.
template <int EACH> struct Answers : Matrix<EACH> {
  typedef Matrix<EACH> M;
  using M::call, M::has, M::own, M::sm, M::tokens, M::next, M::sum;
  enum { COLUMNS_AT = ROWS * ROW_BYTES, SHARED_BYTES = COLUMNS_AT + SLAB * M::COLUMN_BYTES };

  INLINE Answers(SharedBytes sm, const Linear& call) : M(sm, call) {}

  // This thread's rows are 4 i apart.
  INLINE int row_of(int i) const { return own.rows * HALF + own.lane_row + i * 4; }

  // Adds the product of the slabs. Unless all values are `finite`, pairs that do not see each other are skipped.
  INLINE void add_slab(bool finite) {
    const SharedBytes rows = sm + row_of(0) * ROW_BYTES, columns = sm + COLUMNS_AT;
    if (RARELY(!finite)) {
      NO_UNROLL for (int t = 0; t < SLAB; t++)
        UNROLL for (int c = 0; c < M::QUADS; c++) {
          const f4 x = load_shared(columns + t * M::COLUMN_BYTES + this->column_of(c) * 4);
          UNROLL for (int i = 0; i < 8; i++) {
            const float weight = load_shared_f(rows + i * 4 * ROW_BYTES + t * 4);
            if (bits_of(weight) != 0x80000000u) add_product(sum[i][c], weight, x);
          }
        }
      return;
    }
    NO_UNROLL for (int t = 0; t < SLAB; t += 4) {
      f4 weights[8];
      UNROLL for (int i = 0; i < 8; i++) weights[i] = load_shared(rows + i * 4 * ROW_BYTES + t * 4);
      UNROLL for (int e = 0; e < 4; e++) {
        const f4 some[2] = {f4{weights[0][e], weights[1][e], weights[2][e], weights[3][e]},
                            f4{weights[4][e], weights[5][e], weights[6][e], weights[7][e]}};
        this->add(some, columns + (t + e) * M::COLUMN_BYTES);
      }
    }
  }

  INLINE void run(int head) {
    const int state_head = quotient_of(head, call.by_readers);
    const Address terms = this->terms(head), state = this->state(state_head);
    const int width = (int)call.boundaries.row, of_state = (call.key_dim + SLAB - 1) / SLAB;
    const int slabs = of_state + (tokens + SLAB - 1) / SLAB;
    f4 row[4];
    // First come slabs of queries and of the state before the chunk, then those of P and of values. Rows are computed on use: kept,
    // they would cost registers.
    auto fetch = [&](int slab) LAMBDA {
      const bool past = slab < of_state;
      const int from = (past ? slab : slab - of_state) * SLAB, first = from + line_quad() * 4;
      const int r = from + M::slab_row(0), column = this->slab_column();
      if (past) {
        const Rows queries = this->queries(opaque(head));
        this->fetch_rows(row, queries, line_of(0), 16, first, tokens == LONG_CHUNK && from + SLAB <= call.key_dim);
        const Address at = state + (r * width + column) * 4;
        UNROLL for (int i = 0; i < EACH; i++) {
          next[i] = zero4();
          if (r + i * M::APART < call.key_dim && column < width) next[i] = load_f4(at + i * M::APART * width * 4);
        }
      } else {
        const Address at = terms + (line_of(0) * LONG_CHUNK + first) * 4;
        UNROLL for (int i = 0; i < 4; i++) row[i] = load_f4(at + i * (16 * LONG_CHUNK * 4));
        const bool exist = from + SLAB <= tokens && this->column0 + M::COLUMNS <= call.value_dim;
        this->fetch_rows(next, this->values(opaque(state_head)), r, M::APART, column, exist);
      }
    };
    fetch(0);
    NO_UNROLL for (int slab = 0; slab < slabs; slab++) {
      const bool past = slab < of_state;
      if (slab == of_state) {
        UNROLL for (int i = 0; i < 8; i++) {
          const float gate = load_f32(terms + (TERMS_GATES + row_of(i)) * 4), norm = load_f32(terms + (TERMS_NORMS + row_of(i)) * 4);
          UNROLL for (int c = 0; c < M::QUADS; c++) sum[i][c] = gated(sum[i][c] * norm, gate);
        }
      }
      sync_block();
      UNROLL for (int i = 0; i < 4; i++)
        store_shared(sm + line_of(i) * ROW_BYTES + line_quad() * 16, past ? this->numbers(row[i], QUERY_VEC4) : row[i]);
      bool finite = true;
      UNROLL for (int i = 0; i < EACH; i++) {
        const f4 x = past ? next[i] : this->numbers(next[i], VALUE_VEC4);
        finite = finite && (past || is_finite(x));
        store_shared(M::piece(sm + COLUMNS_AT, i), x);
      }
      const bool all_finite = !any_of_block(!finite);
      if (slab + 1 < slabs) fetch(slab + 1);
      // The first half of the rows sees no token of the second.
      if (slab <= of_state || own.rows > 0) add_slab(all_finite);
    }
    const Rows answers = this->rows(call.output, head, call.value_dim, call.output_dtype, OUTPUT_VEC4);
    const Rows partials = this->rows(call.partial, head, call.value_dim, TYPE_F32, PARTIAL_VEC4);
    NO_UNROLL for (int i = 0; i < 8; i++) {  // each step moves the next row to the first place
      const float growth = load_f32(terms + (TERMS_GROWTHS + row_of(i)) * 4);
      UNROLL for (int c = 0; c < M::QUADS; c++) {
        const int column = this->column0 + this->column_of(c);
        const f4 x = gated(sum[0][c], growth) * call.scale;
        UNROLL for (int o = 1; o < 8; o++) sum[o - 1][c] = sum[o][c];
        if (row_of(i) < tokens && column < call.value_dim)
          write_row4(answers, partials, call.partial.data != 0, this->position + row_of(i), column, x);
      }
    }
  }
};

template <int EACH> INLINE void run_answers(SharedBytes sm, const Linear& call) {
  Answers<EACH> block(sm, call);
  const int of_columns = quotient_of(block_index(), call.by_columns), head = of_columns / call.chunks;
  block.take(of_columns - head * call.chunks);
  block.column0 = (block_index() - of_columns * call.columns) * Answers<EACH>::COLUMNS;
  block.run(head);
}

}  // namespace chunks

// Parameters: name, columns per thread, blocks per SM.
#define LINEAR_ANSWERS(name, EACH, BLOCKS)                                                         \
  KERNEL LAUNCH_BOUNDS(chunks::THREADS, BLOCKS) void name(const Linear call) {                     \
    SHARED(memory, chunks::Answers<EACH>::SHARED_BYTES);                                           \
    chunks::run_answers<EACH>(memory, call);                                                       \
  }
