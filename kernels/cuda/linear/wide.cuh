// Linear attention with keys of many dims, token by token; walk.cuh defines the update of a token.
//
//  1. A block has eight columns of a state in registers: thread t has rows t, t + 128 and so on.
//  2. A product with a key or a query is summed over a thread's own rows, then over the lanes of its warp, by a tree of
//     exchanges that each halve what is left, then over the warps. All threads get the sums.
//  3. The key and the gates of the next token travel through registers while a token is computed.
//  4. A block answers all query heads that read its state: the call's heads are states.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"

template <bool PER_DIM> struct Wide {
  enum {
    THREADS = 128,
    WARPS = THREADS / 32,
    ROWS = 8,     // state rows per thread
    COLUMNS = 8,  // state columns per block
    QUADS = COLUMNS / 4,
    ROOM = WARPS * COLUMNS * 4,
    SHARED_BYTES = 2 * ROOM,
  };

  const Linear& call;
  const SharedBytes sm;
  const int thread, lane;
  int column, number, state_head;
  int turn;  // the half of the shared memory that the next sum uses
  Sequence sequence;
  f4 state[ROWS][QUADS];

  INLINE Wide(SharedBytes sm, const Linear& call)
      : call(call), sm(sm), thread(thread_index()), lane(thread_index() & 31), turn(0) {}

  INLINE bool has(int flag) const { return (call.flags & flag) != 0; }
  INLINE bool is_delta() const { return call.beta.data != 0; }
  INLINE Rows rows(const Tensor& t, int h, int dim, int dtype, int flag) const {
    return rows_of(t, sequence, h, dim, dtype, has(flag), has(REVERSE));
  }

  // Loads this thread's elements of a row of key dims; `other` past the last one.
  INLINE void load(const Rows& from, int position, float other, float (&x)[ROWS]) const {
    const Address row = row_at(from, position);
    const bool wide = from.dtype == TYPE_F32;
    UNROLL for (int i = 0; i < ROWS; i++) {
      const int r = i * THREADS + thread;
      x[i] = other;
      if (r >= call.key_dim) continue;
      if (wide) x[i] = load_f32(row + r * 4);
      else x[i] = widen(load_u16(row + r * 2), from.dtype);
    }
  }

  // Exchanges halves with the partner lane: `bit` of the lane's number selects the value that it keeps, and the other value is
  // sent. Returns the kept value plus the partner's copy of it.
  INLINE float half(float lower, float upper, int bit) const {
    const bool is_upper = (lane & bit) != 0;
    const float kept = is_upper ? upper : lower, sent = is_upper ? lower : upper;
    return kept + shuffle_xor(sent, bit);
  }

  // Sums over all threads, in every thread. One half of the shared memory is written while the other may still be read.
  INLINE void total(f4 (&x)[QUADS]) {
    f4 four;
    f2 two;
    UNROLL for (int c = 0; c < 4; c++) four[c] = half(x[0][c], x[1][c], 16);
    UNROLL for (int c = 0; c < 2; c++) two[c] = half(four[c], four[2 + c], 8);
    float sum = half(two[0], two[1], 4);
    sum += shuffle_xor(sum, 2);
    sum += shuffle_xor(sum, 1);
    const SharedBytes room = sm + turn * ROOM;
    turn ^= 1;
    if ((lane & 3) == 0) store_shared_f(room + ((thread >> 5) * COLUMNS + (lane >> 2)) * 4, sum);
    sync_block();
    UNROLL for (int q = 0; q < QUADS; q++) {
      x[q] = load_shared(room + q * 16);
      UNROLL for (int w = 1; w < WARPS; w++) x[q] = x[q] + load_shared(room + w * (COLUMNS * 4) + q * 16);
    }
  }

  // Divides a row by sqrt(sum of squares + epsilon) if the call requests it.
  INLINE void normalize(float (&x)[ROWS]) {
    if (!has(NORMALIZE)) return;
    f4 squares[QUADS] = {zero4(), zero4()};
    UNROLL for (int i = 0; i < ROWS; i++) squares[0][0] = __builtin_fmaf(x[i], x[i], squares[0][0]);
    total(squares);
    const float factor = 1.f / __builtin_sqrtf(squares[0][0] + call.epsilon);
    UNROLL for (int i = 0; i < ROWS; i++) x[i] *= factor;
  }

  INLINE Address state_at(const States& s, int part, int row, int q) const {
    return s.data + (number * s.sequence + state_head * s.head + part * s.part + row * s.row + column + q * 4) * 4;
  }
  INLINE void read_state(int part) {
    NO_UNROLL for (int i = 0; i < ROWS; i++) {  // each step puts the next row in the last place
      UNROLL for (int o = 1; o < ROWS; o++)
        UNROLL for (int q = 0; q < QUADS; q++) state[o - 1][q] = state[o][q];
      const int row = i * THREADS + thread;
      UNROLL for (int q = 0; q < QUADS; q++) {
        const int first = column + q * 4;
        f4 x = zero4();
        if (call.initial.data != 0 && row < call.key_dim && first < call.value_dim) {
          const Address at = state_at(call.initial, part, row, q);
          if (has(STATE_VEC4)) {
            x = read_f4(at);
          } else {
            UNROLL for (int c = 0; c < 4; c++)
              if (first + c < call.value_dim) x[c] = read_f32(at + c * 4);
          }
        }
        state[ROWS - 1][q] = x;
      }
    }
  }
  INLINE void write_state(int part) {
    NO_UNROLL for (int i = 0; i < ROWS; i++) {  // each step moves the first row to the last place
      const int row = i * THREADS + thread;
      UNROLL for (int q = 0; q < QUADS; q++) {
        const int first = column + q * 4;
        const f4 x = state[0][q];
        UNROLL for (int o = 1; o < ROWS; o++) state[o - 1][q] = state[o][q];
        state[ROWS - 1][q] = x;
        if (row >= call.key_dim || first >= call.value_dim) continue;
        const Address at = state_at(call.last, part, row, q);
        if (has(STATE_VEC4)) {
          write_f4(at, x);
        } else {
          UNROLL for (int c = 0; c < 4; c++)
            if (first + c < call.value_dim) write_f32(at + c * 4, x[c]);
        }
      }
    }
  }

  // Whether a register of the state belongs to a key dim. Others stay zero, because answers would otherwise include their
  // product with zero.
  INLINE bool has_row(int i) const { return i * THREADS + thread < call.key_dim; }

  // Updates the state for a token with this key and these logarithms of gates.
  INLINE void change(int position, float (&k)[ROWS], const float (&gates)[ROWS]) {
    normalize(k);
    float gate = 1.f;
    if (!PER_DIM && call.decay.data != 0) {
      const Rows from = rows(call.decay, state_head, 1, call.gate_dtype, 0);
      gate = gate_of(element(row_at(from, position), 0, from.dtype));
    }
    const Rows values = rows(call.value, state_head, call.value_dim, call.dtype, VALUE_VEC4);
    f4 u[QUADS], held[QUADS];
    UNROLL for (int q = 0; q < QUADS; q++) {
      u[q] = unpacked(values, load_row4(values, row_at(values, position), column + q * 4));
      held[q] = zero4();
    }
    UNROLL for (int i = 0; i < ROWS; i++) {
      if (!has_row(i)) continue;
      const float own = PER_DIM ? gate_of(gates[i]) : gate;
      UNROLL for (int q = 0; q < QUADS; q++) {
        state[i][q] = gated(state[i][q], own);
        if (is_delta()) add_product(held[q], k[i], state[i][q]);
      }
    }
    if (is_delta()) {
      total(held);
      const Rows betas = rows(call.beta, state_head, 1, call.gate_dtype, 0);
      const float rate = element(row_at(betas, position), 0, betas.dtype);
      UNROLL for (int q = 0; q < QUADS; q++)
        UNROLL for (int c = 0; c < 4; c++) u[q][c] = rate * (u[q][c] - held[q][c]);
    }
    UNROLL for (int i = 0; i < ROWS; i++) {
      if (!has_row(i)) continue;
      UNROLL for (int q = 0; q < QUADS; q++) add_product(state[i][q], k[i], u[q]);
    }
  }

  // Writes the answer of a token to a head of the output.
  INLINE void answer(int position, int head) {
    float x[ROWS];
    load(rows(call.query, quotient_of(head, call.by_sharers), call.key_dim, call.dtype, QUERY_VEC4), position, 0.f, x);
    normalize(x);
    f4 sum[QUADS] = {zero4(), zero4()};
    UNROLL for (int i = 0; i < ROWS; i++) {
      if (i * THREADS >= call.key_dim) continue;
      UNROLL for (int q = 0; q < QUADS; q++) add_product(sum[q], x[i], state[i][q]);
    }
    total(sum);
    const int first = column + thread * 4;
    if (thread >= QUADS || first >= call.value_dim) return;
    const f4 own = (thread == 0 ? sum[0] : sum[1]) * call.scale;
    const Rows answers = rows(call.output, head, call.value_dim, call.output_dtype, OUTPUT_VEC4);
    const Rows partials = rows(call.partial, head, call.value_dim, TYPE_F32, PARTIAL_VEC4);
    write_row4(answers, partials, call.partial.data != 0, position, first, own);
  }

  INLINE void run() {
    const int of_columns = quotient_of(block_index(), call.by_columns);
    const int of_parts = quotient_of(of_columns, call.by_parts), part = of_columns - of_parts * call.parts;
    number = quotient_of(of_parts, call.by_heads);
    state_head = of_parts - number * call.heads;
    column = (block_index() - of_columns * call.columns) * COLUMNS;
    sequence = sequence_of(call, number);
    if (sequence.tokens < call.least || sequence.tokens >= call.most) return;
    const int chunks = (sequence.tokens + CHUNK - 1) / CHUNK, first_chunk = min_of(part * sequence.part_chunks, chunks);
    const int first = first_chunk * CHUNK;
    const int stop = min_of(min_of(first_chunk + sequence.part_chunks, chunks) * CHUNK, sequence.tokens);
    const bool reads = has(READ);
    const Rows keys = rows(call.key, quotient_of(state_head, call.by_key_group), call.key_dim, call.dtype, KEY_VEC4);
    const Rows gates = rows(call.decay, state_head, call.key_dim, call.gate_dtype, DECAY_VEC4);
    float next_key[ROWS], next_gates[ROWS];
    UNROLL for (int i = 0; i < ROWS; i++) {
      next_key[i] = next_gates[i] = 0.f;
      UNROLL for (int q = 0; q < QUADS; q++) state[i][q] = zero4();
    }
    read_state(part);
    auto bring = [&](int position) LAMBDA {
      load(keys, position, 0.f, next_key);
      if (PER_DIM) load(gates, position, 0.f, next_gates);
    };
    if (!reads && first < stop) bring(first);
    NO_UNROLL for (int position = first; position < stop; position++) {
      if (!reads) {
        float key[ROWS], own[ROWS];
        UNROLL for (int i = 0; i < ROWS; i++) {
          key[i] = next_key[i];
          own[i] = next_gates[i];
        }
        if (position + 1 < stop) bring(position + 1);
        change(position, key, own);
      }
      if (call.output.data != 0)
        NO_UNROLL for (int reader = 0; reader < call.readers; reader++)
          answer(position, state_head * call.readers + reader);
    }
    if (call.last.data != 0 && !reads) write_state(part);
  }
};

// Parameters: name, gate per dim, blocks per SM.
#define LINEAR_WIDE(name, PER_DIM, BLOCKS)                                                         \
  KERNEL LAUNCH_BOUNDS((Wide<PER_DIM>::THREADS), BLOCKS) void name(const Linear call) {            \
    SHARED(memory, (Wide<PER_DIM>::SHARED_BYTES));                                                 \
    Wide<PER_DIM>(memory, call).run();                                                             \
  }
