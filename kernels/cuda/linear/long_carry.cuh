// All chunks at once, under a delta rule or with a gate per dim: the second launch, which carries states through the chunks.
// chunk_solve.cuh and chunk_dims.cuh have the formulas.
//
// A block has columns of a state. Under a delta rule it multiplies W by the state, and the keys by the values that the tokens write. Both
// matrices have rows for all threads of the block, and both panels have four columns:
//
//  1. A thread has DEEP elements of two rows, which the first launch has stored for it, and all columns, so that it reads an element
//     of a panel once for both rows. The operands of the next chunk travel through registers while a chunk is computed; with LATE
//     they replace used operands.
//  2. Lanes that share two rows add their sums by exchanges, and each then has one of the rows. A thread keeps four elements of a row
//     of the state in registers, as its twins do, and all threads read the state from shared memory.
//  3. Each panel has four words between groups of four rows, so that lanes of different parts of a row read without conflicts.
//  4. Without a delta rule, the terms of chunks do not depend on the state. Twins then have different columns, and a thread reads
//     AHEAD chunks at once.
//  5. A marked chunk is processed token by token: a thread has the same elements of the state, and sums over rows go through
//     the block.
#pragma once

#include "solved.cuh"

namespace chunks {

template <int DIMS> struct Carry : Chunk {
  enum {
    THREADS = 2 * DIMS,
    WARPS = THREADS / 32,
    QUADS = Tile::DEEP / 4,
    LANES = DIMS / Tile::DEEP,  // threads of two rows of W
    OWN = Tile::LANES_OF_KEYS,  // and of the keys
    TWINS = OWN / 2,            // threads that have the same row after the exchanges
    LATE = DIMS > 64,           // whether there are registers for the operands of one chunk only
    AHEAD = 8,
    MARKS = 2 * LONG_CHUNK * DIMS + DIMS,
    GROUP_BYTES = 4 * 16 + 16,
    WRITTEN_AT = DIMS / 4 * GROUP_BYTES,
    SUMS_AT = WRITTEN_AT + LONG_CHUNK / 4 * GROUP_BYTES,
    SHARED_BYTES = SUMS_AT + WARPS * TWINS * 16,
  };
  static_assert(2 * THREADS == LANES * LONG_CHUNK && 2 * THREADS == OWN * DIMS, "each thread has parts of two rows of both matrices");

  // The operands of a chunk under a delta rule. `added` is four elements of U.
  struct Operands {
    f4 w[2][QUADS], keys[2][QUADS], added;
    float gate, mark;
  };

  // This thread's part of a chunk under a delta rule: the tile, its elements of the state and of U, and how many tokens there are
  // from its own on.
  struct Part {
    Address tile, state, write;
    int left;
  };

  const Tensor& written;
  int state_head, column0;
  f4 state;  // four columns of row()
  Part at;
  int tile_bytes, blocks;
  long long write_bytes;  // from a chunk to the next one

  INLINE Carry(SharedBytes sm, const Long& args) : Chunk(sm, args.call), written(args.written) {}

  // This thread has a part of two rows of W and of the keys. After the exchanges it has those of token() and row(). The numbers are
  // computed on use: kept, they would cost registers.
  static INLINE int thread() { return opaque(thread_index()); }
  static INLINE int part() { return thread() % LANES; }
  static INLINE int token() { return thread() / LANES * 2 + (thread() & 1); }
  static INLINE int row() { return thread() / OWN * 2 + (thread() & 1); }
  static INLINE int twin() { return thread() % OWN / 2; }
  // Whether no other thread with the same elements writes them.
  INLINE bool writes_state() const { return !Tile::has_w(call) || twin() == 0; }
  INLINE bool writes_token() const { return part() < 2; }

  // Place of a row of a panel.
  static INLINE int place(int r) { return r / 4 * GROUP_BYTES + r % 4 * 16; }
  // The first of this thread's columns of a row of the state.
  INLINE int column() const { return column0 + (Tile::has_w(call) ? 0 : twin() * 4); }

  INLINE Address tile(int chunk) const { return Tile::of(call, state_head, sequence.chunk0 + chunk); }
  static INLINE void fetch_quads(f4 (&to)[2][QUADS], Address from) {
    UNROLL for (int i = 0; i < 2 * QUADS; i++) to[i % 2][i / 2] = load_f4(from + (i * THREADS + thread_index()) * 16);
  }
  INLINE bool has_row() const { return row() < call.key_dim && column() < (int)call.boundaries.row; }
  // This thread's elements of the state before a chunk, or of its B.
  INLINE Address state_at(int chunk) const {
    const long long at = state_head * call.boundaries.head + (sequence.chunk0 + chunk) * call.boundaries.part;
    return call.boundaries.data + (at + row() * call.boundaries.row + column()) * 4;
  }
  // Goes to chunk 0 of a delta rule.
  INLINE void begin() {
    const Rows to = rows(written, state_head, (int)call.boundaries.row, TYPE_F32, 0);
    at.tile = tile(0);
    at.state = state_at(0);
    at.write = row_at(to, token()) + column0 * 4;
    at.left = column0 < to.dim ? sequence.tokens - token() : 0;
    tile_bytes = Tile::floats(call) * 4;
    blocks = Tile::blocks(call);
    write_bytes = to.step * LONG_CHUNK;
  }
  INLINE void advance() {
    at.tile += tile_bytes;
    at.state += call.boundaries.part * 4;
    at.write += write_bytes;
    at.left -= LONG_CHUNK;
  }
  // Fetches of the chunk that follows this one after `chunks`, 0 or 1.
  INLINE void fetch_w(Operands& to, int chunks) const {
    fetch_quads(to.w, at.tile + chunks * tile_bytes);
    to.added = read_f4(at.left > chunks * LONG_CHUNK ? at.write + chunks * write_bytes : at.tile);  // any number past the last token
  }
  INLINE void fetch_keys(Operands& to, int chunks) const {
    const Address from = at.tile + chunks * tile_bytes;
    const int lane = thread_index() & 31;
    fetch_quads(to.keys, from + LONG_CHUNK * DIMS * 4);
    to.gate = load_f32(from + (2 * LONG_CHUNK * DIMS + row()) * 4);
    to.mark = lane < blocks ? load_f32(from + (MARKS + lane) * 4) : 0.f;
  }
  INLINE void fetch(Operands& to, int chunks) const {
    fetch_w(to, chunks);
    fetch_keys(to, chunks);
  }

  // The product of a row with a panel: of the first of this thread's rows if its number is even, else of the second. COUNT lanes
  // share the rows; `lane` is the number of this one.
  template <int COUNT> static INLINE f4 product(const f4 (&x)[2][QUADS], SharedBytes panel, int lane) {
    f4 sum[2] = {zero4(), zero4()};
    UNROLL for (int i = 0; i < QUADS; i++) {
      const SharedBytes group = panel + (i * COUNT + lane) * GROUP_BYTES;
      UNROLL for (int e = 0; e < 4; e++) {
        const f4 y = load_shared(group + e * 16);
        UNROLL for (int r = 0; r < 2; r++) add_product(sum[r], x[r][i][e], y);
      }
    }
    const bool first = (thread() & 1) == 0;
    f4 own;
    UNROLL for (int c = 0; c < 4; c++) {
      own[c] = (first ? sum[0][c] : sum[1][c]) + shuffle_xor(first ? sum[1][c] : sum[0][c], 1);
      UNROLL for (int bit = 2; bit < COUNT; bit *= 2) own[c] += shuffle_xor(own[c], bit);
    }
    return own;
  }

  INLINE void store_state() const {
    if (writes_state()) store_shared(sm + place(row()), state);
  }

  INLINE bool exists(int chunk) const { return chunk * LONG_CHUNK < sequence.tokens; }

  // Processes a chunk by products, and goes on to the next one. With LATE, fetches its operands if there are `more`.
  INLINE void products(Operands& of, bool more) {
    f4 u = of.added - product<LANES>(of.w, sm, part());
    if (LATE && more) fetch_w(of, 1);
    if (at.left <= 0) u = zero4();
    if (writes_token()) {
      store_shared(sm + WRITTEN_AT + place(token()), u);
      if (at.left > 0) write_f4(at.write, u);
    }
    sync_block();
    const f4 change = product<OWN>(of.keys, sm + WRITTEN_AT, thread() % OWN);
    UNROLL for (int c = 0; c < 4; c++) state[c] = __builtin_fmaf(of.gate, state[c], change[c]);
    if (LATE && more) fetch_keys(of, 1);
    // Rows past the last dim stay zero: their products with values that are not finite would be NaN.
    if (row() >= call.key_dim) state = zero4();
    store_state();
    sync_block();
    advance();
  }

  INLINE void keep(int chunk) const {
    if (has_row() && writes_state()) write_f4(state_at(chunk), state);
  }

  // Processes a chunk unless it is marked, and fetches the operands of the next one. Returns whether it has. The test comes first: a
  // thread that waits for an operand while others are fetched waits for all of them.
  INLINE bool process(Operands& now, Operands& next, int chunk) {
    const bool more = exists(chunk + 1);
    if (has_row() && writes_state()) write_f4(LATE ? state_at(chunk) : at.state, state);
    float mark = now.mark;
    NO_UNROLL for (int block = 32 + (thread_index() & 31); block < blocks; block += 32) mark += load_f32(at.tile + (MARKS + block) * 4);
    if (RARELY(Tile::is_marked(mark))) return false;
    if (!LATE && more) fetch(next, 1);
    products(now, more);
    return true;
  }

  // Carries the state through chunks under a delta rule, from `chunk` on. Returns the first that is marked, or their number. Two
  // chunks a step: copies of operands would take as long as a tenth of the products.
  INLINE int carry_delta(int chunk) {
    Operands even, odd;
    if (!exists(chunk)) return chunk;
    fetch(even, 0);
    sync_block();
    NO_UNROLL for (;;) {
      if (!process(even, odd, chunk) || !exists(++chunk)) return chunk;
      if (LATE) continue;
      if (!process(odd, even, chunk) || !exists(++chunk)) return chunk;
    }
  }

  // The same without a delta rule: the state after a chunk is the gated state before it plus B.
  INLINE int carry_plain(int chunk) {
    const int last = (sequence.tokens + LONG_CHUNK - 1) / LONG_CHUNK - 1;
    NO_UNROLL while (chunk <= last) {
      f4 added[AHEAD];
      float gate[AHEAD], mark[AHEAD];
      UNROLL for (int i = 0; i < AHEAD; i++) {
        const int next = min_of(chunk + i, last);
        added[i] = has_row() ? read_f4(state_at(next)) : zero4();
        gate[i] = load_f32(Tile::gate(call, tile(next), row()));
        mark[i] = Tile::fetch_mark(call, tile(next));
      }
      UNROLL for (int i = 0; i < AHEAD; i++) {
        if (chunk > last) break;
        keep(chunk);
        if (RARELY(Tile::is_marked(mark[i]))) return chunk;
        step(gate[i], added[i]);
        chunk++;
      }
    }
    return chunk;
  }
  INLINE void step(float gate, f4 b) {
    UNROLL for (int c = 0; c < 4; c++) state[c] = __builtin_fmaf(gate, state[c], b[c]);
    if (row() >= call.key_dim) state = zero4();
  }

  // The sum over all rows of the state, for the columns of this thread. Twins have the same row.
  INLINE f4 over_rows(f4 x) const {
    UNROLL for (int bit = 1; bit < 32; bit *= bit == 1 ? OWN : 2)
      UNROLL for (int c = 0; c < 4; c++) x[c] += shuffle_xor(x[c], bit);
    sync_block();
    const int warp = thread_index() >> 5;
    if ((thread_index() & 31) == 2 * twin()) store_shared(sm + SUMS_AT + (warp * TWINS + twin()) * 16, x);
    sync_block();
    f4 sum = zero4();
    NO_UNROLL for (int w = 0; w < WARPS; w++) sum = sum + load_shared(sm + SUMS_AT + (w * TWINS + twin()) * 16);
    return sum;
  }

  // Element row() of a token's row, normalised if the call normalises.
  INLINE float normal(const Rows& from, int position) const {
    const float x = row() < from.dim ? element(row_at(from, position), row(), from.dtype) : 0.f;
    if (!has(NORMALIZE)) return x;
    return x * (1.f / __builtin_sqrtf(over_rows(f4{x * x, 0.f, 0.f, 0.f})[0] + call.epsilon));
  }

  // Processes a chunk token by token, and writes its answers.
  INLINE void steps(int chunk) {
    const int end = min_of(sequence.tokens, (chunk + 1) * LONG_CHUNK);
    NO_UNROLL for (int t = chunk * LONG_CHUNK; t < end; t++) {
      if (call.decay.data != 0) {
        const int gate = has(DIM_GATES) ? min_of(row(), call.key_dim - 1) : 0;
        const Rows gates = rows(call.decay, state_head, has(DIM_GATES) ? call.key_dim : 1, call.gate_dtype, 0);
        state = gated(state, gate_of(element(row_at(gates, t), gate, gates.dtype)));
      }
      const float k = normal(keys(state_head), t);
      f4 v;
      load_row(v, values(state_head), row_at(values(state_head), t), column());
      if (Tile::has_w(call)) {
        const Rows betas = rows(call.beta, state_head, 1, call.gate_dtype, 0);
        v = (v - over_rows(state * k)) * element(row_at(betas, t), 0, betas.dtype);
      }
      add_product(state, k, v);
      if (row() >= call.key_dim) state = zero4();
      if (call.output.data == 0) continue;
      NO_UNROLL for (int reader = 0; reader < call.readers; reader++) {
        const int head = state_head * call.readers + reader;
        const f4 answer = over_rows(state * normal(queries(head), t)) * call.scale;
        const Rows answers = rows(call.output, head, call.value_dim, call.output_dtype, OUTPUT_VEC4);
        const Rows partials = rows(call.partial, head, call.value_dim, TYPE_F32, PARTIAL_VEC4);
        if (row() == 0 && writes_state() && column() < call.value_dim)
          write_row4(answers, partials, call.partial.data != 0, t, column(), answer);
      }
    }
    if (!Tile::has_w(call)) return;
    store_state();
    sync_block();
  }

  INLINE Address place_of(const States& s) const {
    return s.data + (number * s.sequence + state_head * s.head + row() * s.row + column()) * 4;
  }

  INLINE void run() {
    const int of_columns = quotient_of(block_index(), call.by_columns);
    number = quotient_of(of_columns, call.by_heads);
    state_head = of_columns - number * call.heads;
    column0 = (block_index() - of_columns * call.columns) * (Tile::has_w(call) ? 4 : 4 * TWINS);
    sequence = sequence_of(call, number);
    if (sequence.tokens < call.least || sequence.tokens >= call.most) return;
    state = zero4();
    if (call.initial.data != 0 && row() < call.key_dim)
      UNROLL for (int c = 0; c < 4; c++)
        if (column() + c < call.value_dim) state[c] = read_f32(place_of(call.initial) + c * 4);
    begin();
    if (Tile::has_w(call)) store_state();
    NO_UNROLL for (int chunk = 0;; chunk++) {
      chunk = Tile::has_w(call) ? carry_delta(chunk) : carry_plain(chunk);
      if (!exists(chunk)) break;
      steps(chunk);
      advance();
    }
    if (call.last.data == 0 || row() >= call.key_dim || !writes_state()) return;
    UNROLL for (int c = 0; c < 4; c++)
      if (column() + c < call.value_dim) write_f32(place_of(call.last) + c * 4, state[c]);
  }
};

}  // namespace chunks

// Parameters: name, dims.
#define LINEAR_LONG_CARRY(name, DIMS)                                                   \
  KERNEL LAUNCH_BOUNDS(chunks::Carry<DIMS>::THREADS, 1) void name(const Long args) {    \
    typedef chunks::Carry<DIMS> C;                                                      \
    SHARED(memory, C::SHARED_BYTES);                                                    \
    C(memory, args).run();                                                              \
  }
