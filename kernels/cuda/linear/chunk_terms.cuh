// The first launch for all chunks at once: the terms of every chunk; chunks.cuh has the formulas.
#pragma once

#include "chunks.cuh"

namespace chunks {

// Bounds on the factors of a weight, and on the logarithm of a weight's gates.
constexpr float MOST_FACTOR = 0x1p60f;
constexpr double MOST_SUM = 40.;

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

  // The rows and the keys of this thread's scores.
  INLINE int row_of(int i) const { return own.rows * HALF + own.lane_row + i * 4; }
  INLINE int key_of(int b) const { return own.columns * HALF + own.lane_column + b * 8; }

  // Multiplies scores by the gates between their key and their row.
  INLINE void apply_gates(float (&score)[8][4]) const {
    float after[8], before[4];
    UNROLL for (int i = 0; i < 8; i++) after[i] = logs.number(FACTORS_AT, row_of(i));
    UNROLL for (int b = 0; b < 4; b++) before[b] = logs.number(FACTORS_AT, (1 + own.rows) * LONG_CHUNK + key_of(b));
    auto near = [](float x) LAMBDA { return x <= MOST_FACTOR && x >= 1.f / MOST_FACTOR; };
    unsigned beyond = 0;
    UNROLL for (int i = 0; i < 8; i++)
      UNROLL for (int b = 0; b < 4; b++) {
        const bool good = (after[i] <= 1.f && before[b] <= 1.f) || (near(after[i]) && near(before[b]));
        score[i][b] *= good ? after[i] * before[b] : 1.f;
        beyond |= good ? 0 : 1u << (i * 4 + b);
      }
    if (RARELY(beyond != 0))
      NO_UNROLL for (int n = 0; n < 32; n++) {  // each step puts the next score in the last place
        const int r = row_of(n / 4), j = key_of(n % 4);
        float s = score[0][0];
        UNROLL for (int o = 1; o < 32; o++) score[(o - 1) / 4][(o - 1) % 4] = score[o / 4][o % 4];
        if ((beyond >> n & 1) != 0) s *= exp_of(logs.sum(r) - logs.sum(j) - logs.excess(r));
        score[7][3] = s;
      }
  }

  // Writes P: minus zero for pairs that do not see each other.
  INLINE void write_scores(const float (&score)[8][4], Address to) const {
    float clears[4], norms[4];
    UNROLL for (int b = 0; b < 4; b++) {
      clears[b] = logs.clears(key_of(b));
      norms[b] = logs.number(NORMS_AT, LONG_CHUNK + key_of(b));
    }
    UNROLL for (int i = 0; i < 8; i++) {
      const int r = row_of(i);
      const float cleared = logs.clears(r), norm = logs.number(NORMS_AT, r);
      UNROLL for (int b = 0; b < 4; b++) {
        const bool sees = key_of(b) <= r && r < tokens && clears[b] == cleared;
        write_f32(to + (r * LONG_CHUNK + key_of(b)) * 4, sees ? score[i][b] * norm * norms[b] + 0.f : -0.f);
      }
    }
  }

  INLINE void run(int head) {
    const int state_head = quotient_of(head, call.by_readers);
    const Rows from[2] = {queries(head), keys(state_head)};
    f4 next[2][4];
    float squares[2][4], score[8][4];
    UNROLL for (int i = 0; i < 4; i++) squares[0][i] = squares[1][i] = 0.f;
    UNROLL for (int i = 0; i < 8; i++)
      UNROLL for (int b = 0; b < 4; b++) score[i][b] = 0.f;
    auto fetch = [&](int x0) LAMBDA {
      const bool exist = tokens == LONG_CHUNK && x0 + SLAB <= call.key_dim;
      UNROLL for (int t = 0; t < 2; t++) fetch_rows(next[t], from[t], line_of(0), 16, x0 + line_quad() * 4, exist);
    };
    fetch(0);
    logs.fill(*this, state_head);
    if (call.decay.data != 0) fill_factors();
    // No row of the first half sees a key of the second.
    const bool seen = own.columns <= own.rows;
    NO_UNROLL for (int x0 = 0; x0 < call.key_dim; x0 += SLAB) {
      sync_block();
      UNROLL for (int i = 0; i < 8; i++) {
        const f4 x = unpacked(from[i / 4], next[i / 4][i % 4]);
        float& sum = squares[i / 4][i % 4];
        UNROLL for (int e = 0; e < 4; e++) sum = __builtin_fmaf(x[e], x[e], sum);
        store_shared(sm + i / 4 * KEYS_AT + line_of(i % 4) * ROW_BYTES + line_quad() * 16, x);
      }
      sync_block();
      if (x0 + SLAB < call.key_dim) fetch(x0 + SLAB);
      const SharedBytes rows = sm + row_of(0) * ROW_BYTES, columns = sm + KEYS_AT + key_of(0) * ROW_BYTES;
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
    if (call.decay.data != 0) apply_gates(score);
    write_scores(score, to);
    if (thread_index() < LONG_CHUNK) {
      const int t = thread_index();
      write_f32(to + (TERMS_GATES + t) * 4, logs.clears(t) > 0.f ? CLEAR : gate_of_sum(logs.sum(t) - logs.excess(t)));
      write_f32(to + (TERMS_NORMS + t) * 4, logs.number(NORMS_AT, t));
      write_f32(to + (TERMS_GROWTHS + t) * 4, gate_of_sum(logs.excess(t)));
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
      const bool exist = from + SLAB <= tokens;
      const int first = row0 + thread_index() % 16 * 4;
      fetch_rows(key, from_keys, from + thread_index() / 16, 8, first, exist && row0 + ROWS <= call.key_dim);
      fetch_rows(next, from_values, from + slab_row(0), APART, slab_column(), exist && column0 + COLUMNS <= call.value_dim);
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

constexpr int max_size(int a, int b) { return a > b ? a : b; }
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

}  // namespace chunks
