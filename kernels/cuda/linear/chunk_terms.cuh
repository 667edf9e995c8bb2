// The first launch for all chunks at once: the terms of every chunk; chunks.cuh has the formulas.
#pragma once

#include "chunks.cuh"

namespace chunks {

// Bounds on the factors of a weight, and on the logarithm of a weight's gates.
constexpr float MOST_FACTOR = 0x1p60f;
constexpr double MOST_SUM = 40.;

// The logarithms of a chunk: for each token, their sum, the number of tokens that have cleared, and H. NORMS and
// FACTORS have room for numbers of each launch.
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
template <class S> struct Pairs : Chunk {
  enum {
    DIMS = S::DIMS,
    QUADS = DIMS / 4,
    LINES = S::THREADS / QUADS,  // rows that the threads of a block bring at once
    EACH = ROWS / LINES,
    LINE_BYTES = DIMS * 4 + 16,
    KEYS_AT = ROWS * LINE_BYTES,
    LOGS_AT = 2 * ROWS * LINE_BYTES,
    SHARED_BYTES = LOGS_AT + LOGS_BYTES,
    SCORES = S::DOWN * S::ACROSS,
    MEASURED = ROWS * 4 / S::THREADS,  // rows whose squares a thread sums
  };
  const Logs logs;
  float score[S::DOWN][S::ACROSS];

  INLINE Pairs(SharedBytes sm, const Linear& call) : Chunk(sm, call), logs{sm + LOGS_AT} {}

  static INLINE int line_of(int i) { return S::template line_of<QUADS>(i); }
  static INLINE int line_quad() { return S::template quad_of<QUADS>(); }

  // Adds the squares of a slab's queries and keys. Four lanes share a row.
  INLINE void add_squares(float (&squares)[2][MEASURED]) const {
    const SharedBytes first = sm + S::thread() / 4 * LINE_BYTES + S::thread() % 4 * 16;
    UNROLL for (int i = 0; i < 2 * MEASURED; i++) {
      float& sum = squares[i / MEASURED][i % MEASURED];
      NO_UNROLL for (int x = 0; x < DIMS; x += 16) {
        const f4 y = load_shared(first + i / MEASURED * KEYS_AT + i % MEASURED * (S::THREADS / 4 * LINE_BYTES) + x * 4);
        UNROLL for (int e = 0; e < 4; e++) sum = __builtin_fmaf(y[e], y[e], sum);
      }
    }
  }

  // Stores the norms of queries, then of keys.
  INLINE void finish_norms(float (&squares)[2][MEASURED]) const {
    UNROLL for (int i = 0; i < 2 * MEASURED; i++) {
      float& sum = squares[i / MEASURED][i % MEASURED];
      UNROLL for (int bit = 1; bit < 4; bit *= 2) sum += shuffle_xor(sum, bit);
      const float norm = has(NORMALIZE) ? 1.f / __builtin_sqrtf(sum + call.epsilon) : 1.f;
      const int row = i / MEASURED * LONG_CHUNK + S::thread() / 4 + i % MEASURED * (S::THREADS / 4);
      if (S::thread() % 4 == 0) logs.set(NORMS_AT, row, norm);
    }
  }

  // Factors of rows, then of keys for the first and for the second half of the rows.
  INLINE void fill_factors() const {
    NO_UNROLL for (int i = thread_index(); i < 3 * LONG_CHUNK; i += S::THREADS) {
      const int t = i % LONG_CHUNK, start = i < LONG_CHUNK ? t / HALF * HALF : (i / LONG_CHUNK - 1) * HALF;
      const double sum = logs.sum(t) - logs.sum(start);
      logs.set(FACTORS_AT, i, exp_of(i < LONG_CHUNK ? sum - logs.excess(t) : -sum));
    }
  }

  // The rows and the keys of this thread's scores. All rows of a warp are in one half.
  static INLINE int row_of(int i) { return S::first_row() + S::lane_row() + i * 4; }
  static INLINE int key_of(int b) { return S::first_column() + S::lane_column() + b * 8; }
  static INLINE int half() { return S::first_row() / HALF; }
  // No row of the first half sees a key of the second: these scores are neither computed nor written.
  static INLINE bool seen() { return S::first_column() / HALF <= half(); }

  // Multiplies scores by the gates between their key and their row.
  INLINE void apply_gates() {
    float after[S::DOWN], before[S::ACROSS];
    UNROLL for (int i = 0; i < S::DOWN; i++) after[i] = logs.number(FACTORS_AT, row_of(i));
    UNROLL for (int b = 0; b < S::ACROSS; b++) before[b] = logs.number(FACTORS_AT, (1 + half()) * LONG_CHUNK + key_of(b));
    auto near = [](float x) LAMBDA { return x <= MOST_FACTOR && x >= 1.f / MOST_FACTOR; };
    unsigned long long beyond = 0;
    UNROLL for (int i = 0; i < S::DOWN; i++)
      UNROLL for (int b = 0; b < S::ACROSS; b++) {
        const bool good = (after[i] <= 1.f && before[b] <= 1.f) || (near(after[i]) && near(before[b]));
        score[i][b] *= good ? after[i] * before[b] : 1.f;
        beyond |= good ? 0ull : 1ull << (i * S::ACROSS + b);
      }
    if (RARELY(beyond != 0))
      NO_UNROLL for (int n = 0; n < SCORES; n++) {  // each step puts the next score in the last place
        const int r = row_of(n / S::ACROSS), j = key_of(n % S::ACROSS);
        float s = score[0][0];
        UNROLL for (int o = 1; o < SCORES; o++)
          score[(o - 1) / S::ACROSS][(o - 1) % S::ACROSS] = score[o / S::ACROSS][o % S::ACROSS];
        if ((beyond >> n & 1) != 0) s *= exp_of(logs.sum(r) - logs.sum(j) - logs.excess(r));
        score[S::DOWN - 1][S::ACROSS - 1] = s;
      }
  }

  // Writes P: minus zero for pairs that do not see each other.
  INLINE void write_scores(Address to) const {
    float clears[S::ACROSS], norms[S::ACROSS];
    UNROLL for (int b = 0; b < S::ACROSS; b++) {
      clears[b] = logs.clears(key_of(b));
      norms[b] = logs.number(NORMS_AT, LONG_CHUNK + key_of(b));
    }
    UNROLL for (int i = 0; i < S::DOWN; i++) {
      const int r = row_of(i);
      const float cleared = logs.clears(r), norm = logs.number(NORMS_AT, r);
      UNROLL for (int b = 0; b < S::ACROSS; b++) {
        const bool sees = key_of(b) <= r && r < tokens && clears[b] == cleared;
        write_f32(to + (r * LONG_CHUNK + key_of(b)) * 4, sees ? score[i][b] * norm * norms[b] + 0.f : -0.f);
      }
    }
  }

  // Adds the products of the slabs.
  INLINE void add_slab() {
    const SharedBytes rows = sm + row_of(0) * LINE_BYTES, columns = sm + KEYS_AT + key_of(0) * LINE_BYTES;
    NO_UNROLL for (int x = 0; x < DIMS; x += 4) {
      f4 k[S::ACROSS];
      UNROLL for (int b = 0; b < S::ACROSS; b++) k[b] = load_shared(columns + b * 8 * LINE_BYTES + x * 4);
      UNROLL for (int some = 0; some < S::DOWN; some += 4) {
        f4 q[4];
        UNROLL for (int i = 0; i < 4; i++) q[i] = load_shared(rows + (some + i) * 4 * LINE_BYTES + x * 4);
        UNROLL for (int e = 0; e < 4; e++)
          UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int b = 0; b < S::ACROSS; b++) {
              float& to = score[some + i][b];
              to = __builtin_fmaf(q[i][e], k[b][e], to);
            }
      }
    }
  }

  // Computes the products of queries with keys, or if `own` of keys with keys, multiplied by the gates between them. Leaves
  // norms and logarithms in shared memory.
  INLINE void multiply(int head, int state_head, bool own) {
    f4 next[2][EACH];
    float squares[2][MEASURED];
    UNROLL for (int i = 0; i < MEASURED; i++) squares[0][i] = squares[1][i] = 0.f;
    UNROLL for (int i = 0; i < EACH; i++) next[0][i] = next[1][i] = zero4();
    UNROLL for (int i = 0; i < S::DOWN; i++)
      UNROLL for (int b = 0; b < S::ACROSS; b++) score[i][b] = 0.f;
    // The first step only fetches: the code of a fetch is long, and there once.
    NO_UNROLL for (int x0 = -DIMS; x0 < call.key_dim; x0 += DIMS) {
      sync_block();
      UNROLL for (int i = 0; i < 2 * EACH; i++) {
        const f4 x = numbers(next[i / EACH][i % EACH], i < EACH && !own ? QUERY_VEC4 : KEY_VEC4, call.dtype);
        store_shared(sm + i / EACH * KEYS_AT + line_of(i % EACH) * LINE_BYTES + line_quad() * 16, x);
      }
      sync_block();
      if (x0 + DIMS < call.key_dim) {
        const int x = x0 + DIMS;
        const bool exist = tokens == LONG_CHUNK && x + DIMS <= call.key_dim;
        // Rows are computed on use: kept, they would cost registers.
        const Rows rows = own ? keys(opaque(state_head)) : queries(opaque(head));
        fetch_rows(next[0], rows, line_of(0), LINES, x + line_quad() * 4, exist);
        fetch_rows(next[1], keys(opaque(state_head)), line_of(0), LINES, x + line_quad() * 4, exist);
      }
      if (x0 < 0) {
        logs.fill(*this, state_head);
        if (call.decay.data != 0) fill_factors();
        continue;
      }
      if (has(NORMALIZE)) add_squares(squares);
      if (seen()) add_slab();
    }
    finish_norms(squares);
    sync_block();
    if (call.decay.data != 0) apply_gates();
  }

  INLINE void run(int head) {
    multiply(head, quotient_of(head, call.by_readers), false);
    write(head);
  }

  // Writes P and the numbers of tokens.
  INLINE void write(int head) const {
    const Address to = terms(opaque(head));
    if (seen()) write_scores(to);
    if (thread_index() < LONG_CHUNK) {
      const int t = thread_index();
      write_f32(to + (TERMS_GATES + t) * 4, logs.clears(t) > 0.f ? CLEAR : gate_of_sum(logs.sum(t) - logs.excess(t)));
      write_f32(to + (TERMS_NORMS + t) * 4, logs.number(NORMS_AT, t));
      write_f32(to + (TERMS_GROWTHS + t) * 4, gate_of_sum(logs.excess(t)));
    }
  }
};

// B of a state and chunk: rows row0 .. of it, for some columns.
template <class S> struct Writes : Chunk {
  enum {
    SLAB = S::SLAB,
    QUADS = COLUMNS / 4,
    LINES = S::THREADS / QUADS,
    EACH = SLAB / LINES,
    VALUES_AT = SLAB * COLUMN_BYTES,
    LOGS_AT = 2 * SLAB * COLUMN_BYTES,
    SHARED_BYTES = LOGS_AT + LOGS_BYTES,
  };
  static_assert(ROWS == COLUMNS, "slabs of keys and of values have the same places");
  const Logs logs;
  int column0;

  INLINE Writes(SharedBytes sm, const Linear& call) : Chunk(sm, call), logs{sm + LOGS_AT} {}

  static INLINE int line_of(int i) { return S::template line_of<QUADS>(i); }
  static INLINE int line_quad() { return S::template quad_of<QUADS>(); }

  // The gate of a token's write in the state after the chunk.
  INLINE float weight(int t) const { return logs.number(FACTORS_AT, t); }

  // Computes one over the norm of each key.
  INLINE void measure(const Rows& from) const {
    NO_UNROLL for (int t = thread_index() / 2; t < LONG_CHUNK; t += S::THREADS / 2) {
      const float norm = norm_of_pair(from, t);
      if (thread_index() % 2 == 0) logs.set(NORMS_AT, t, norm);
    }
  }

  INLINE void run(int state_head, int row0) {
    f4 key[EACH], value[EACH], sum[S::DOWN][S::ACROSS / 4];
    UNROLL for (int i = 0; i < S::DOWN; i++)
      UNROLL for (int c = 0; c < S::ACROSS / 4; c++) sum[i][c] = zero4();
    const int end = LONG_CHUNK - 1;
    // The first step only fetches, as above.
    NO_UNROLL for (int from = -SLAB; from < tokens; from += SLAB) {
      sync_block();
      if (from >= 0) {
        const SharedBytes first = sm + line_of(0) * COLUMN_BYTES + line_quad() * 16;
        UNROLL for (int i = 0; i < EACH; i++) {
          const int t = from + line_of(i);
          const SharedBytes to = first + i * LINES * COLUMN_BYTES;
          f4 x = numbers(key[i], KEY_VEC4, call.dtype);
          if (has(NORMALIZE)) x = x * logs.number(NORMS_AT, t);
          store_shared(to, weight(t) == CLEAR ? zero4() : x * weight(t));
          store_shared(to + VALUES_AT, weight(t) == CLEAR ? zero4() : numbers(value[i], VALUE_VEC4, call.dtype));
        }
      }
      sync_block();
      if (from + SLAB < tokens) {
        const int token = from + SLAB + line_of(0), row = row0 + line_quad() * 4, column = column0 + line_quad() * 4;
        const bool exist = from + 2 * SLAB <= tokens;
        fetch_rows(key, keys(opaque(state_head)), token, LINES, row, exist && row0 + ROWS <= call.key_dim);
        fetch_rows(value, values(opaque(state_head)), token, LINES, column, exist && column0 + COLUMNS <= call.value_dim);
      }
      if (from < 0) {
        logs.fill(*this, state_head);
        if (thread_index() < LONG_CHUNK) {
          const int t = thread_index();
          const bool stays = t < tokens && logs.clears(t) == logs.clears(end);
          logs.set(FACTORS_AT, t, stays ? exp_of(logs.sum(end) - logs.sum(t) - logs.excess(end)) : CLEAR);
        }
        if (has(NORMALIZE)) measure(keys(state_head));
        continue;
      }
      const SharedBytes rows = sm + (S::first_row() + S::lane_row() * 4) * 4, columns = sm + VALUES_AT + S::column_of(0) * 4;
      NO_UNROLL for (int t = 0; t < SLAB; t += 2)
        UNROLL for (int e = 0; e < 2; e++) {
          f4 weights[S::DOWN / 4];
          UNROLL for (int i = 0; i < S::DOWN / 4; i++) weights[i] = load_shared(rows + (t + e) * COLUMN_BYTES + i * 64);
          UNROLL for (int c = 0; c < S::ACROSS / 4; c++) {
            const f4 x = load_shared(columns + (t + e) * COLUMN_BYTES + c * 128);
            UNROLL for (int i = 0; i < S::DOWN; i++) add_product(sum[i][c], weights[i / 4][i % 4], x);
          }
        }
    }
    const Address to = state(state_head);
    const int width = (int)call.boundaries.row;
    UNROLL for (int i = 0; i < S::DOWN; i++) {
      const int row = row0 + S::first_row() + S::lane_row() * 4 + i / 4 * 16 + i % 4;
      UNROLL for (int c = 0; c < S::ACROSS / 4; c++) {
        const int column = column0 + S::column_of(c);
        if (row < call.key_dim && column < width) write_f4(to + (row * width + column) * 4ll, sum[i][c]);
      }
    }
    if (row0 == 0 && column0 == 0 && thread_index() == 0)
      write_f2(to + call.key_dim * width * 4ll,
               f2{logs.clears(end) > 0.f ? CLEAR : gate_of_sum(logs.sum(end)), gate_of_sum(logs.excess(end))});
  }
};

// The first launch: P of every output head if the call has answers, and B of every state.
template <class S> struct Terms {
  typedef Pairs<S> P;
  typedef Writes<S> W;
  enum { SHARED_BYTES = (int)P::SHARED_BYTES > (int)W::SHARED_BYTES ? (int)P::SHARED_BYTES : (int)W::SHARED_BYTES };

  static INLINE void run(SharedBytes sm, const Linear& call) {
    const int pairs = call.output.data != 0 ? call.heads * call.chunks : 0;
    if (block_index() < pairs) {
      P block(sm, call);
      const int head = block_index() / call.chunks;
      block.take(block_index() - head * call.chunks);
      return block.run(head);
    }
    W block(sm, call);
    const int index = block_index() - pairs, tiles = (call.key_dim + ROWS - 1) / ROWS;
    const int of_columns = quotient_of(index, call.by_columns), of_tiles = of_columns / tiles;
    const int state_head = of_tiles / call.chunks;
    block.take(of_tiles - state_head * call.chunks);
    if (block.is_unread()) return;
    block.column0 = (index - of_columns * call.columns) * COLUMNS;
    block.run(state_head, (of_columns - of_tiles * tiles) * ROWS);
  }
};

}  // namespace chunks

// Parameters: name, shape, blocks per SM.
#define LINEAR_TERMS(name, SHAPE, BLOCKS)                                       \
  KERNEL LAUNCH_BOUNDS(SHAPE::THREADS, BLOCKS) void name(const Linear call) {   \
    SHARED(memory, chunks::Terms<SHAPE>::SHARED_BYTES);                         \
    chunks::Terms<SHAPE>::run(memory, call);                                    \
  }
