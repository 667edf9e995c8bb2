// Linear attention with at most one gate per head: all chunks of all heads at once, in three launches.
//
//   terms     P_ij = exp(G_i - G_j - H_i) q_i.k_j  for j <= i,   B = sum_j exp(G_C - G_j - H_C) k_j v_j'
//   states    S_next = exp(G_C) S + exp(H_C) B,  chunk by chunk, for each element of a state
//   answers   o_i = scale exp(H_i) (exp(G_i - H_i) S' q_i + sum_j P_ij v_j)
//
// The naive loop carries a state through the tokens, so that a head occupies as many SMs as its columns fill. Here a chunk has
// C = LONG_CHUNK tokens, and the first and the last launch have blocks for every chunk. Only the second launch goes from chunk to
// chunk, and it does one multiply-add per element and chunk.
//
//  1. A block computes a matrix of ROWS rows. A thread has eight rows of four columns, or of eight if the values have many dims.
//     Each element is a chain over dims or tokens, in order, so its bits do not depend on the number of columns.
//  2. Operands pass through shared memory, SLAB dims or tokens at a time. The next slab travels through registers meanwhile.
//  3. G_i is the sum of the logarithms since the last token that clears, in f64, and each token knows how many have cleared before
//     it. Tokens see each other if these numbers are equal.
//  4. H_i is zero unless gates grow: it is the part of the largest G_i - G_j beyond MOST_SUM. So no weight is beyond f32 if the
//     recurrence is not, and what underflows in a weight is small beside the state that has grown as much.
//  5. exp(G_i - G_j - H_i) is the product of two factors, split at the first of HALF rows. If a factor is too large or too small
//     for this, the exponential is computed per pair.
//  6. P is minus zero for a pair that does not see each other, and never otherwise. A block with a value that is not finite skips
//     these pairs, so that the value reaches no earlier token.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"

namespace chunks {

constexpr int LONG_CHUNK = 64;
constexpr int THREADS = 128, ROWS = 64, SLAB = 32, HALF = 32;
static_assert(LONG_CHUNK == ROWS && LONG_CHUNK == 2 * HALF, "rows of P are tokens");
// Bytes per row of a slab of queries, of keys or of P.
constexpr int ROW_BYTES = SLAB * 4 + 16;
// The terms of an output head and chunk: P, then for each token the gate of the state in its answer, one over the norm of its query,
// and exp(H). A state is followed by the gate of its chunk and by exp(H_C).
constexpr int TERMS_GATES = LONG_CHUNK * LONG_CHUNK, TERMS_NORMS = TERMS_GATES + LONG_CHUNK;
constexpr int TERMS_GROWTHS = TERMS_NORMS + LONG_CHUNK, TERMS = TERMS_GROWTHS + LONG_CHUNK;
constexpr float MOST_FACTOR = 0x1p60f;
constexpr double MOST_SUM = 40.;

constexpr int max_size(int a, int b) { return a > b ? a : b; }

// The place of a thread among the results of its block. Warps are two by two, and lanes are four by eight.
struct Place {
  int rows, lane_row, columns, lane_column;
};
INLINE Place place_of() {
  const int lane = thread_index() & 31, warp = thread_index() >> 5;
  return Place{warp >> 1, lane >> 3, warp & 1, lane & 7};
}

// The row and the quad of this thread's piece i of a slab with rows of SLAB elements. They are computed on use: kept, they would
// cost registers.
INLINE int line_of(int i) { return (int)((unsigned)opaque(thread_index()) / 8) + i * 16; }
INLINE int line_quad() { return (int)((unsigned)opaque(thread_index()) % 8); }

// A chunk of a call: the parts that all launches share.
struct Chunk {
  const Linear& call;
  const SharedBytes sm;
  const Place own;
  int number, of_all, position, tokens;  // of_all: among the chunks of all sequences; tokens: at most LONG_CHUNK
  Sequence sequence;

  INLINE Chunk(SharedBytes sm, const Linear& call) : call(call), sm(sm), own(place_of()) {}

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
  INLINE Rows values(int state_head) const { return rows(call.value, state_head, call.value_dim, call.dtype, VALUE_VEC4); }

  INLINE void take(int chunk) {
    of_all = chunk;
    number = sequence_of_chunk(call, chunk);
    sequence = sequence_of(call, number);
    position = (chunk - sequence.chunk0) * LONG_CHUNK;
    tokens = min_of(sequence.tokens - position, LONG_CHUNK);
  }

  // Raw quad of a token's row, zero past the last token and the last dim.
  INLINE f4 row_quad(const Rows& from, int token, int first) const {
    return token < tokens ? load_row4(from, row_at(from, position + token), first) : zero4();
  }

  INLINE Address terms(int head) const { return call.records + ((long long)head * call.chunks + of_all) * (TERMS * 4); }
  INLINE Address state(int state_head) const {
    return call.boundaries.data + (state_head * call.boundaries.head + of_all * call.boundaries.part) * 4;
  }
};

// The logarithms of a chunk: for each token, their sum, the number of tokens that have cleared, and H. NORMS and FACTORS have room
// for numbers of each launch.
constexpr int SUMS_AT = 0, CLEARS_AT = SUMS_AT + LONG_CHUNK * 8, EXCESS_AT = CLEARS_AT + LONG_CHUNK * 4;
constexpr int NORMS_AT = EXCESS_AT + LONG_CHUNK * 4;
constexpr int FACTORS_AT = NORMS_AT + 2 * LONG_CHUNK * 4, LOGS_BYTES = FACTORS_AT + 3 * LONG_CHUNK * 4;

struct Logs {
  const SharedBytes at;

  INLINE float number(int which, int i) const { return load_shared_f(at + which + i * 4); }
  INLINE void set(int which, int i, float x) const { store_shared_f(at + which + i * 4, x); }
  INLINE double sum(int i) const {
    const SharedBytes p = at + SUMS_AT + i * 8;
    return double_of_bits((unsigned long long)bits_of(load_shared_f(p + 4)) << 32 | bits_of(load_shared_f(p)));
  }
  INLINE void set_sum(int i, double x) const {
    const unsigned long long bits = bits_of_double(x);
    store_shared_f(at + SUMS_AT + i * 8, float_of_bits((unsigned)bits));
    store_shared_f(at + SUMS_AT + i * 8 + 4, float_of_bits((unsigned)(bits >> 32)));
  }
  INLINE float clears(int i) const { return number(CLEARS_AT, i); }
  INLINE double excess(int i) const { return (double)number(EXCESS_AT, i); }

  static INLINE double from_lane(double x, int lane) {
    const unsigned long long bits = bits_of_double(x);
    const unsigned high = shuffle_from((unsigned)(bits >> 32), lane), low = shuffle_from((unsigned)bits, lane);
    return double_of_bits((unsigned long long)high << 32 | low);
  }

  // Sums the logarithms: a scan over the lanes of two warps, then over both.
  INLINE void fill(const Chunk& chunk, int state_head) const {
    const Linear& call = chunk.call;
    const int t = thread_index(), lane = t & 31;
    double sum = 0.;
    unsigned clears = 0;
    bool grows = false;
    if (t < LONG_CHUNK && call.decay.data != 0) {
      const Rows gates = chunk.rows(call.decay, state_head, 1, call.gate_dtype, 0);
      if (t < chunk.tokens) {
        const float g = element(row_at(gates, chunk.position + t), 0, gates.dtype);
        clears = g == NEG_INF ? 1 : 0;
        sum = g == NEG_INF ? 0. : (double)g;
        grows = g > 0.f;
      }
      UNROLL for (int step = 1; step < 32; step *= 2) {
        const int from = lane < step ? lane : lane - step;
        const double before = from_lane(sum, from);
        const unsigned cleared = shuffle_from(clears, from);
        if (lane >= step) {
          sum = clears > 0 ? sum : before + sum;
          clears += cleared;
        }
      }
    }
    if (t < LONG_CHUNK) {
      set_sum(t, sum);
      set(CLEARS_AT, t, (float)clears);
      set(EXCESS_AT, t, 0.f);
    }
    const bool any_grows = any_of_block(grows);
    const double before = this->sum(31);
    const float cleared = this->clears(31);
    sync_block();
    if (t >= 32 && t < LONG_CHUNK) {
      if (clears == 0) set_sum(t, before + sum);
      set(CLEARS_AT, t, (float)clears + cleared);
    }
    sync_block();
    if (RARELY(any_grows)) {
      if (t < LONG_CHUNK) {
        double most = 0.;
        NO_UNROLL for (int j = 0; j < t; j++) {
          const double growth = this->sum(t) - this->sum(j);
          if (this->clears(j) == this->clears(t) && growth > most) most = growth;
        }
        if (most > MOST_SUM) set(EXCESS_AT, t, (float)(most - MOST_SUM));
      }
      sync_block();
    }
  }
};

// P of an output head and chunk.
struct Pairs : Chunk {
  enum { KEYS_AT = ROWS * ROW_BYTES, LOGS_AT = 2 * ROWS * ROW_BYTES, SHARED_BYTES = LOGS_AT + LOGS_BYTES };
  const Logs logs;

  INLINE Pairs(SharedBytes sm, const Linear& call) : Chunk(sm, call), logs{sm + LOGS_AT} {}

  // Stores the norms of the rows whose squares eight lanes have summed.
  INLINE void finish_norms(int first, float (&squares)[4]) const {
    UNROLL for (int i = 0; i < 4; i++) {
      UNROLL for (int bit = 1; bit < 8; bit *= 2) squares[i] += shuffle_xor(squares[i], bit);
      const float norm = has(NORMALIZE) ? 1.f / __builtin_sqrtf(squares[i] + call.epsilon) : 1.f;
      if (thread_index() % 8 == 0) logs.set(NORMS_AT, first + thread_index() / 8 + i * 16, norm);
    }
  }

  // Factors of rows, then of keys for the first and for the second half of the rows.
  INLINE void fill_factors() const {
    NO_UNROLL for (int i = thread_index(); i < 3 * LONG_CHUNK; i += THREADS) {
      const int t = i % LONG_CHUNK, start = i < LONG_CHUNK ? t / HALF * HALF : (i / LONG_CHUNK - 1) * HALF;
      const double sum = logs.sum(t) - logs.sum(start);
      logs.set(FACTORS_AT, i, exp_of(i < LONG_CHUNK ? sum - logs.excess(t) : -sum));
    }
  }

  // A score times the gates between a key and a row.
  INLINE float gated_score(float s, int r, int j) const {
    const float a = logs.number(FACTORS_AT, r), b = logs.number(FACTORS_AT, (1 + r / HALF) * LONG_CHUNK + j);
    const bool small = a <= 1.f && b <= 1.f;
    const bool near = a <= MOST_FACTOR && b <= MOST_FACTOR && a >= 1.f / MOST_FACTOR && b >= 1.f / MOST_FACTOR;
    return s * (RARELY(!small && !near) ? exp_of(logs.sum(r) - logs.sum(j) - logs.excess(r)) : a * b);
  }

  INLINE void run(int head) {
    const int state_head = quotient_of(head, call.by_readers);
    const Rows from[2] = {queries(head), keys(state_head)};
    f4 next[8];
    float squares[2][4], score[8][4];
    UNROLL for (int i = 0; i < 4; i++) squares[0][i] = squares[1][i] = 0.f;
    UNROLL for (int i = 0; i < 8; i++)
      UNROLL for (int b = 0; b < 4; b++) score[i][b] = 0.f;
    auto fetch = [&](int x0) LAMBDA {
      UNROLL for (int i = 0; i < 8; i++) next[i] = row_quad(from[i / 4], line_of(i % 4), x0 + line_quad() * 4);
    };
    fetch(0);
    logs.fill(*this, state_head);
    fill_factors();
    // No row of the first half sees a key of the second.
    const bool seen = own.columns <= own.rows;
    NO_UNROLL for (int x0 = 0; x0 < call.key_dim; x0 += SLAB) {
      sync_block();
      UNROLL for (int i = 0; i < 8; i++) {
        const f4 x = unpacked(from[i / 4], next[i]);
        float& sum = squares[i / 4][i % 4];
        UNROLL for (int e = 0; e < 4; e++) sum = __builtin_fmaf(x[e], x[e], sum);
        store_shared(sm + i / 4 * KEYS_AT + line_of(i % 4) * ROW_BYTES + line_quad() * 16, x);
      }
      sync_block();
      if (x0 + SLAB < call.key_dim) fetch(x0 + SLAB);
      const SharedBytes rows = sm + (own.rows * HALF + own.lane_row) * ROW_BYTES;
      const SharedBytes columns = sm + KEYS_AT + (own.columns * HALF + own.lane_column) * ROW_BYTES;
      if (seen)
        NO_UNROLL for (int x = 0; x < SLAB; x += 4) {
          f4 q[8], k[4];
          UNROLL for (int i = 0; i < 8; i++) q[i] = load_shared(rows + i * 4 * ROW_BYTES + x * 4);
          UNROLL for (int b = 0; b < 4; b++) k[b] = load_shared(columns + b * 8 * ROW_BYTES + x * 4);
          UNROLL for (int e = 0; e < 4; e++)
            UNROLL for (int i = 0; i < 8; i++)
              UNROLL for (int b = 0; b < 4; b++) score[i][b] = __builtin_fmaf(q[i][e], k[b][e], score[i][b]);
        }
    }
    finish_norms(0, squares[0]);
    finish_norms(LONG_CHUNK, squares[1]);
    sync_block();
    const Address to = terms(head);
    const bool gates = call.decay.data != 0;
    NO_UNROLL for (int n = 0; n < 32; n++) {  // each step moves the next score to the first place
      const int r = own.rows * HALF + own.lane_row + n / 4 * 4, j = own.columns * HALF + own.lane_column + n % 4 * 8;
      float s = score[0][0];
      UNROLL for (int o = 1; o < 32; o++) score[(o - 1) / 4][(o - 1) % 4] = score[o / 4][o % 4];
      if (has(NORMALIZE)) s = s * logs.number(NORMS_AT, r) * logs.number(NORMS_AT, LONG_CHUNK + j);
      if (gates) s = gated_score(s, r, j);
      const bool sees = j <= r && r < tokens && logs.clears(r) == logs.clears(j);
      write_f32(to + (r * LONG_CHUNK + j) * 4, sees ? s + 0.f : -0.f);
    }
    if (thread_index() < LONG_CHUNK) {
      const int t = thread_index();
      write_f32(to + (TERMS_GATES + t) * 4, logs.clears(t) > 0.f ? CLEAR : gate_of_sum(logs.sum(t) - logs.excess(t)));
      write_f32(to + (TERMS_NORMS + t) * 4, logs.number(NORMS_AT, t));
      write_f32(to + (TERMS_GROWTHS + t) * 4, gate_of_sum(logs.excess(t)));
    }
  }
};

// A matrix of ROWS rows and COLUMNS columns per block, with eight rows and EACH columns per thread.
template <int EACH> struct Matrix : Chunk {
  enum {
    QUADS = EACH / 4,         // quads of columns per thread
    COLUMNS = EACH * 16,
    COLUMN_BYTES = COLUMNS * 4,
    OF_COLUMNS = COLUMNS / 4,  // quads per row of a slab
    APART = THREADS / OF_COLUMNS,  // distance between the rows of a slab that a thread brings
  };
  int column0;
  f4 sum[8][QUADS];
  f4 next[EACH];

  INLINE Matrix(SharedBytes sm, const Linear& call) : Chunk(sm, call) {
    UNROLL for (int i = 0; i < 8; i++)
      UNROLL for (int c = 0; c < QUADS; c++) sum[i][c] = zero4();
  }

  // The row of a slab and the column of this thread's piece i. They are computed on use: kept, they would cost registers.
  static INLINE int slab_row(int i) { return (int)((unsigned)opaque(thread_index()) / OF_COLUMNS) + i * APART; }
  static INLINE int slab_quad() { return (int)((unsigned)opaque(thread_index()) % OF_COLUMNS); }
  INLINE int slab_column() const { return column0 + slab_quad() * 4; }
  static INLINE SharedBytes piece(SharedBytes slab, int i) { return slab + slab_row(i) * COLUMN_BYTES + slab_quad() * 16; }

  // This thread's first column of each quad within the block.
  INLINE int column_of(int c) const { return own.columns * (COLUMNS / 2) + c * 32 + own.lane_column * 4; }

  // Adds the product of the weights of a token or dim, one per row, and its row of columns.
  INLINE void add(const f4 (&weights)[2], SharedBytes row) {
    UNROLL for (int c = 0; c < QUADS; c++) {
      const f4 x = load_shared(row + column_of(c) * 4);
      UNROLL for (int i = 0; i < 8; i++) add_product(sum[i][c], weights[i / 4][i % 4], x);
    }
  }
};

// B of a state and chunk: rows row0 .. of it, for some columns.
struct Writes : Matrix<4> {
  typedef Matrix<4> M;
  enum {
    KEY_BYTES = ROWS * 4,
    VALUES_AT = SLAB * KEY_BYTES,
    LOGS_AT = VALUES_AT + SLAB * M::COLUMN_BYTES,
    SHARED_BYTES = LOGS_AT + LOGS_BYTES,
  };
  const Logs logs;

  INLINE Writes(SharedBytes sm, const Linear& call) : M(sm, call), logs{sm + LOGS_AT} {}

  // The gate of a token's write in the state after the chunk.
  INLINE float weight(int t) const { return logs.number(FACTORS_AT, t); }

  // Computes one over the norm of each key.
  INLINE void measure(const Rows& from) const {
    const int t = thread_index() / 2;
    float squares = 0.f;
    NO_UNROLL for (int x = thread_index() % 2 * 4; x < call.key_dim; x += 8) {
      const f4 k = unpacked(from, row_quad(from, t, x));
      UNROLL for (int e = 0; e < 4; e++) squares = __builtin_fmaf(k[e], k[e], squares);
    }
    squares += shuffle_xor(squares, 1);
    if (thread_index() % 2 == 0) logs.set(NORMS_AT, t, 1.f / __builtin_sqrtf(squares + call.epsilon));
  }

  INLINE void run(int state_head, int row0) {
    const Rows from_keys = keys(state_head), from_values = values(state_head);
    f4 key[4];
    auto fetch = [&](int from) LAMBDA {
      UNROLL for (int i = 0; i < 4; i++)
        key[i] = row_quad(from_keys, from + thread_index() / 16 + i * 8, row0 + thread_index() % 16 * 4);
      UNROLL for (int i = 0; i < 4; i++) next[i] = row_quad(from_values, from + M::slab_row(i), slab_column());
    };
    fetch(0);
    logs.fill(*this, state_head);
    const double all = logs.sum(LONG_CHUNK - 1), excess = logs.excess(LONG_CHUNK - 1);
    const float clears = logs.clears(LONG_CHUNK - 1);
    if (thread_index() < LONG_CHUNK) {
      const int t = thread_index();
      logs.set(FACTORS_AT, t, t < tokens && logs.clears(t) == clears ? exp_of(all - logs.sum(t) - excess) : CLEAR);
    }
    if (has(NORMALIZE)) measure(from_keys);
    NO_UNROLL for (int from = 0; from < tokens; from += SLAB) {
      sync_block();
      UNROLL for (int i = 0; i < 4; i++) {
        const int r = thread_index() / 16 + i * 8;
        f4 x = unpacked(from_keys, key[i]);
        if (has(NORMALIZE)) x = x * logs.number(NORMS_AT, from + r);
        const float w = weight(from + r);
        store_shared(sm + r * KEY_BYTES + thread_index() % 16 * 16, w == CLEAR ? zero4() : x * w);
      }
      UNROLL for (int i = 0; i < 4; i++) {
        const f4 x = unpacked(from_values, next[i]);
        store_shared(M::piece(sm + VALUES_AT, i), weight(from + M::slab_row(i)) == CLEAR ? zero4() : x);
      }
      sync_block();
      if (from + SLAB < tokens) fetch(from + SLAB);
      const SharedBytes rows = sm + (own.rows * HALF + own.lane_row * 4) * 4;
      NO_UNROLL for (int t = 0; t < SLAB; t += 4)
        UNROLL for (int e = 0; e < 4; e++) {
          const f4 weights[2] = {load_shared(rows + (t + e) * KEY_BYTES), load_shared(rows + (t + e) * KEY_BYTES + 64)};
          add(weights, sm + VALUES_AT + (t + e) * M::COLUMN_BYTES);
        }
    }
    const Address to = state(state_head);
    const long long across = call.boundaries.row;
    UNROLL for (int i = 0; i < 8; i++) {
      const int row = row0 + own.rows * HALF + own.lane_row * 4 + i / 4 * 16 + i % 4;
      UNROLL for (int c = 0; c < M::QUADS; c++) {
        const int column = column0 + column_of(c);
        if (row < call.key_dim && column < across) write_f4(to + (row * across + column) * 4, sum[i][c]);
      }
    }
    if (row0 == 0 && column0 == 0 && thread_index() == 0)
      write_f2(to + call.key_dim * across * 4, f2{clears > 0.f ? CLEAR : gate_of_sum(all), gate_of_sum(excess)});
  }
};

constexpr int TERMS_SHARED_BYTES = max_size(Pairs::SHARED_BYTES, Writes::SHARED_BYTES);

// The first launch: P of every output head if the call has answers, and B of every state.
INLINE void run_terms(SharedBytes sm, const Linear& call) {
  const int pairs = call.output.data != 0 ? call.heads * call.chunks : 0;
  if (block_index() < pairs) {
    Pairs block(sm, call);
    const int head = block_index() / call.chunks;
    block.take(block_index() - head * call.chunks);
    return block.run(head);
  }
  Writes block(sm, call);
  const int index = block_index() - pairs, tiles = (call.key_dim + ROWS - 1) / ROWS;
  const int of_columns = quotient_of(index, call.by_columns), of_tiles = of_columns / tiles;
  const int state_head = of_tiles / call.chunks;
  block.take(of_tiles - state_head * call.chunks);
  block.column0 = (index - of_columns * call.columns) * Writes::COLUMNS;
  block.run(state_head, (of_columns - of_tiles * tiles) * ROWS);
}

// The state after a chunk.
INLINE float after(float gate, float state, float written) {
  if (RARELY(gate < 0.f)) return gate == CLEAR ? written : __builtin_fmaf(gate, gate * state, written);
  return __builtin_fmaf(gate, state, written);
}
INLINE float grown_by(float growth, float x) { return growth < 0.f ? x * growth * growth : x * growth; }

// The second launch replaces B of each chunk by the state before it. A thread has an element of a state; the call's heads are states.
INLINE void run_states(const Linear& call) {
  constexpr int AHEAD = 16;
  const int of_columns = quotient_of(block_index(), call.by_columns), number = quotient_of(of_columns, call.by_heads);
  const int state_head = of_columns - number * call.heads, width = (int)call.boundaries.row;
  const int index = (block_index() - of_columns * call.columns) * THREADS + thread_index();
  const int row = index / width, column = index - row * width;
  const Sequence sequence = sequence_of(call, number);
  if (row >= call.key_dim || sequence.tokens < call.least || sequence.tokens >= call.most) return;
  const long long step = call.boundaries.part * 4;
  const Address first = call.boundaries.data + state_head * call.boundaries.head * 4 + sequence.chunk0 * step;
  const Address own = first + index * 4, gates = first + call.key_dim * width * 4;
  auto place = [&](const States& s) LAMBDA {
    return s.data + (number * s.sequence + state_head * s.head + row * s.row + column) * 4;
  };
  float state = 0.f;
  if (call.initial.data != 0 && column < call.value_dim) state = read_f32(place(call.initial));
  const int chunks = (sequence.tokens + LONG_CHUNK - 1) / LONG_CHUNK;
  NO_UNROLL for (int chunk = 0; chunk < chunks; chunk += AHEAD) {
    float written[AHEAD];
    u2 gate[AHEAD];
    UNROLL for (int i = 0; i < AHEAD; i++) {
      written[i] = 0.f;
      gate[i] = u2{0, 0};
      if (chunk + i < chunks) {
        written[i] = read_f32(own + (chunk + i) * step);
        gate[i] = load_u2(gates + (chunk + i) * step);
      }
    }
    UNROLL for (int i = 0; i < AHEAD; i++)
      if (chunk + i < chunks) {
        write_f32(own + (chunk + i) * step, state);
        state = after(float_of_bits(gate[i][0]), state, grown_by(float_of_bits(gate[i][1]), written[i]));
      }
  }
  if (call.last.data != 0 && column < call.value_dim) write_f32(place(call.last), state);
}

// The third launch: the answers of an output head and chunk, for some columns.
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
    const Rows queries = this->queries(head), values = this->values(state_head);
    const Address terms = this->terms(head), state = this->state(state_head);
    const int width = (int)call.boundaries.row, of_state = (call.key_dim + SLAB - 1) / SLAB;
    const int slabs = of_state + (tokens + SLAB - 1) / SLAB;
    f4 row[4];
    // First come slabs of queries and of the state before the chunk, then those of P and of values.
    auto fetch = [&](int slab) LAMBDA {
      const bool past = slab < of_state;
      const int from = (past ? slab : slab - of_state) * SLAB;
      const int quad = line_quad();
      UNROLL for (int i = 0; i < 4; i++) {
        const int r = line_of(i);
        row[i] = past ? this->row_quad(queries, r, from + quad * 4) : load_f4(terms + (r * LONG_CHUNK + from + quad * 4) * 4);
      }
      UNROLL for (int i = 0; i < EACH; i++) {
        const int r = from + M::slab_row(i), column = this->slab_column();
        const bool exists = r < call.key_dim && column < width;
        if (!past) next[i] = this->row_quad(values, r, column);
        else next[i] = exists ? load_f4(state + (r * width + column) * 4) : zero4();
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
        store_shared(sm + line_of(i) * ROW_BYTES + line_quad() * 16, past ? unpacked(queries, row[i]) : row[i]);
      bool finite = true;
      UNROLL for (int i = 0; i < EACH; i++) {
        const f4 x = past ? next[i] : unpacked(values, next[i]);
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
