// All chunks at once, with a gate per dim: the first launch. chunks.cuh has the formulas for a gate per head.
//
//   P_ij = sum_d q_id exp(G_id - G_jd) k_jd  for j <= i,   B = sum_j (exp(G_C - G_j) k_j) v_j',   o_i = (exp(G_i) q_i)' S + P v
//
// A factor that depends on i and j cannot be applied to a product. It is divided at tokens between j and i:
//
//  1. A chunk has four runs of RUN tokens. L is the sum of a dim's logarithms since the start of a token's run, and T that of a
//     run. Within a run the factors are exp(L_i) of the query and 1 / exp(L_j) of the key. Between runs they are exp(L_i),
//     exp(T) / exp(L_j) for the run of j, and exp of the sum of T over the runs between the two.
//  2. A warp multiplies RUN queries by RUN keys. Ten pairs of runs see each other; two warps multiply two pairs.
//  3. Sums are in units (exp.cuh). A chunk is marked if a logarithm or a sum L is beyond MOST_RUN in size or NaN, or if a sum of
//     consecutive T exceeds it:
//     a factor might overflow, or be lost although its product with another one is not small. The second launch processes the
//     tokens of a marked chunk one by one and writes their answers; the third one skips it.
#pragma once

#include "run.cuh"
#include "solved.cuh"

namespace chunks {

constexpr int RUN = 16, RUNS = LONG_CHUNK / RUN, HALF_RUN = RUN / 2, HALVES = 2 * RUNS;

// The sums of half runs for COUNT dims, in shared memory.
template <int COUNT> struct Totals {
  enum { BYTES = HALVES * COUNT * 4 };
  const SharedBytes at;

  INLINE void set(int half, int x, int sum) const { store_shared_f(at + (half * COUNT + x) * 4, of_units(sum)); }
  INLINE int half(int half, int x) const { return units_in(load_shared_f(at + (half * COUNT + x) * 4)); }
  INLINE int of(int run, int x) const { return (int)((unsigned)half(2 * run, x) + (unsigned)half(2 * run + 1, x)); }
  // The power of runs from .. to - 1.
  INLINE float power(int from, int to, int x) const {
    long long sum = 0;
    NO_UNROLL for (int run = from; run < to; run++) sum += of(run, x);
    return power_of_units(sum);
  }
  // Whether no sum of consecutive runs is too large.
  INLINE bool is_bounded(int x) const {
    float sum = 0.f;
    bool good = true;
    UNROLL for (int run = 0; run < RUNS; run++) {
      sum = (float)of(run, x) + (sum > 0.f ? sum : 0.f);
      good = good && sum <= (float)MOST_UNITS;
    }
    return good;
  }
};

// P and the gated queries of an output head and chunk, or the products of a state's keys with its keys.
struct DimPairs : Chunk {
  enum {
    THREADS = 256,
    SLAB = 32,
    LINE_BYTES = SLAB * 4 + 16,
    START_AT = ROWS * LINE_BYTES,        // keys with the factors of pairs within a run
    END_AT = 2 * START_AT,               // and between runs
    BETWEEN_AT = 3 * ROWS * LINE_BYTES,  // factors of runs between two others: 1; 1 and 2; 2
    TOTALS_AT = BETWEEN_AT + 3 * SLAB * 4,
    NORMS_AT = 34 * 1024,                // behind what Substitution puts in the place of slabs
    SHARED_BYTES = NORMS_AT + 2 * LONG_CHUNK * 4,
    PAIRS = RUNS * (RUNS + 1) / 2,
    WARPS = THREADS / 32,
    TIMES = (PAIRS + WARPS - 1) / WARPS,
  };
  static_assert(TOTALS_AT + (int)Totals<SLAB>::BYTES <= NORMS_AT, "");
  static_assert(WARPS * HALF_RUN == LONG_CHUNK, "a warp has half of a run");
  const Totals<SLAB> totals;
  float score[TIMES][4][2];

  INLINE DimPairs(SharedBytes sm, const Linear& call) : Chunk(sm, call), totals{sm + TOTALS_AT} {}

  static INLINE int lane() { return opaque(thread_index()) & 31; }
  static INLINE int warp() { return opaque(thread_index()) >> 5; }

  // The runs of rows and of keys of pair n: first those of a run with itself.
  static INLINE int rows_of_pair(int n) { return n < RUNS ? n : n == RUNS ? 1 : n < RUNS + 3 ? 2 : 3; }
  static INLINE int keys_of_pair(int n) { return n < RUNS ? n : n == RUNS ? 0 : n < RUNS + 3 ? n - RUNS - 1 : n - RUNS - 3; }

  // Computes one over the norms of rows, then of keys.
  INLINE void measure(const Rows& queries, const Rows& keys) const {
    if (!has(NORMALIZE)) {
      if (thread_index() < 2 * LONG_CHUNK) store_shared_f(sm + NORMS_AT + thread_index() * 4, 1.f);
      return;
    }
    NO_UNROLL for (int r = thread_index() / 2; r < 2 * LONG_CHUNK; r += THREADS / 2) {
      const Rows& from = r < LONG_CHUNK ? queries : keys;
      const float norm = norm_of_pair(from, r % LONG_CHUNK);
      if (thread_index() % 2 == 0) store_shared_f(sm + NORMS_AT + r * 4, norm);
    }
  }

  // Stores the rows and keys of a slab of dims with their factors, and leaves gated rows at `to`, unless that is zero: queries, or
  // if `own` the keys of W and of the change of the state for 128 dims from `dim0` on. Returns whether the sums are within their
  // bounds.
  INLINE bool fill(int head, int state_head, bool own, int x0, Address to, int dim0) const {
    const int half = warp(), run = half / 2, x = x0 + lane(), first = half * HALF_RUN;
    float rows[HALF_RUN], keys[HALF_RUN], sums[HALF_RUN];
    load_run(sums, this->rows(call.decay, state_head, call.key_dim, call.gate_dtype, 0), position + first, tokens - first, x);
    load_run(rows, own ? this->keys(state_head) : queries(head), position + first, tokens - first, x);
    load_run(keys, this->keys(state_head), position + first, tokens - first, x);
    bool good = sum_run(sums);
    totals.set(half, lane(), units_in(sums[HALF_RUN - 1]));
    sync_block();
    const int of_run = totals.of(run, lane()), before = half % 2 != 0 ? totals.half(half - 1, lane()) : 0;
    const bool leaves = to != 0 && (!own || (x >= dim0 && x < dim0 + 2 * COLUMNS));
    const float earlier = totals.power(0, run, lane()), later = totals.power(run + 1, RUNS, lane());
    const float power = power_of_units(of_run);
    good = good && totals.is_bounded(lane());
    const int across = own ? Tile::dims(call) * 32 : Tile::dims(call) * 4;  // from a row to the next one, and from one pair to the next
    const int down = own ? Tile::lanes_of_w(call) * 16 : Tile::dims(call) * 8;
    SharedBytes own_rows = sm + first * LINE_BYTES + lane() * 4, norms = sm + NORMS_AT + first * 4;
    Address place = own ? Tile::w(call, to, first, x / 4) + x % 4 * 4 : to + (first * Tile::dims(call) + x) * 4;
    Address key_place = Tile::key(call, to, first, x);
    int wraps = 0;
    NO_UNROLL for (int t0 = 0; t0 < HALF_RUN; t0 += 4) {
      UNROLL for (int t = 0; t < 4; t++) {
        const int sum = units_in(sums[t]), here = (int)((unsigned)before + (unsigned)sum);
        wraps |= (before ^ here) & (sum ^ here);
        good = good && (unsigned)here + (unsigned)MOST_UNITS <= 2u * MOST_UNITS;
        const float row = rows[t] * power_of_units(here), shrunk = power_of_units((int)-(unsigned)here), end = keys[t] * (power * shrunk);
        store_shared_f(own_rows + t * LINE_BYTES, row);
        store_shared_f(own_rows + t * LINE_BYTES + START_AT, keys[t] * shrunk);
        store_shared_f(own_rows + t * LINE_BYTES + END_AT, end);
        if (!leaves) continue;
        const float norm = load_shared_f(norms + t * 4);
        write_f32(place + t % 2 * across + t / 2 * down, row * earlier * norm);
        if (own) write_f32(key_place + t * 4, end * later * norm);
      }
      own_rows = own_rows + 4 * LINE_BYTES, norms = norms + 4 * 4, place += 2 * down, key_place += 4 * 4;
      turn(sums);
      turn(rows);
      turn(keys);
    }
    good = good && wraps >= 0;
    if (own && leaves && half == 0) write_f32(Tile::gate(call, to, x), totals.power(0, RUNS, lane()));
    if (half < 3)
      store_shared_f(sm + BETWEEN_AT + (half * SLAB + lane()) * 4, totals.power(half == 2 ? 2 : 1, half == 0 ? 2 : 3, lane()));
    sync_block();
    return good;
  }

  // Adds the products of a slab for pair n.
  INLINE void add_slab(float (&to)[4][2], int n) const {
    const int own = rows_of_pair(n), other = keys_of_pair(n);
    const SharedBytes of_rows = sm + (own * RUN + (lane() >> 3)) * LINE_BYTES;
    const SharedBytes of_keys = sm + (own == other ? START_AT : END_AT) + (other * RUN + (lane() & 7)) * LINE_BYTES;
    const bool apart = own - other > 1;
    const SharedBytes between = sm + BETWEEN_AT + (other == 1 ? 2 : own - other - 2) * (SLAB * 4);
    NO_UNROLL for (int x = 0; x < SLAB; x += 4) {
      f4 q[4], k[2];
      UNROLL for (int i = 0; i < 4; i++) q[i] = load_shared(of_rows + i * 4 * LINE_BYTES + x * 4);
      UNROLL for (int b = 0; b < 2; b++) k[b] = load_shared(of_keys + b * 8 * LINE_BYTES + x * 4);
      if (apart) {
        const f4 factor = load_shared(between + x * 4);
        UNROLL for (int b = 0; b < 2; b++) k[b] = k[b] * factor;
      }
      UNROLL for (int e = 0; e < 4; e++)
        UNROLL for (int i = 0; i < 4; i++)
          UNROLL for (int b = 0; b < 2; b++) to[i][b] = __builtin_fmaf(q[i][e], k[b][e], to[i][b]);
    }
  }

  // Calls `each(row, key, score)` for the scores of this thread; they are not yet normalised.
  template <class Each> INLINE void for_each(Each each) const {
    UNROLL for (int time = 0; time < TIMES; time++) {
      const int n = warp() + time * WARPS;
      if (n >= PAIRS) break;
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int b = 0; b < 2; b++)
          each(rows_of_pair(n) * RUN + (lane() >> 3) + i * 4, keys_of_pair(n) * RUN + (lane() & 7) + b * 8, score[time][i][b]);
    }
  }
  INLINE float norm(int row) const { return load_shared_f(sm + NORMS_AT + row * 4); }

  // Computes the scores of all dims, and leaves gated rows as `fill` does. Returns whether the sums of logarithms are within their
  // bounds.
  INLINE bool multiply(int head, int state_head, bool own, Address to, int dim0) {
    UNROLL for (int i = 0; i < TIMES * 8; i++) score[i / 8][i / 2 % 4][i % 2] = 0.f;
    measure(own ? keys(state_head) : queries(head), keys(state_head));
    bool good = true;
    NO_UNROLL for (int x0 = 0; x0 < Tile::dims(call); x0 += SLAB) {
      sync_block();
      good = fill(head, state_head, own, x0, to, dim0) && good;
      UNROLL for (int time = 0; time < TIMES; time++)
        if (warp() + time * WARPS < PAIRS) add_slab(score[time], warp() + time * WARPS);
    }
    sync_block();
    return good;
  }

  // Writes P: minus zero for pairs that do not see each other.
  INLINE void write(int head) const {
    const Address to = terms(head);
    for_each([&](int r, int j, float s) LAMBDA {
      write_f32(to + (r * LONG_CHUNK + j) * 4, j <= r && r < tokens ? s * norm(r) * norm(LONG_CHUNK + j) + 0.f : -0.f);
    });
    // The earlier run of a half does not see the later one.
    NO_UNROLL for (int i = thread_index(); i < 2 * RUN * RUN; i += THREADS) {
      const int half = i / (RUN * RUN) * HALF, r = i / RUN % RUN, j = i % RUN;
      write_f32(to + ((half + r) * LONG_CHUNK + half + RUN + j) * 4, -0.f);
    }
    if (thread_index() < 3 * LONG_CHUNK) write_f32(to + (TERMS_GATES + thread_index()) * 4, 1.f);
  }
};

// B of a state and chunk: rows row0 .. of it, for some columns.
template <class S> struct DimWrites : Chunk {
  enum {
    QUADS = COLUMNS / 4,
    LINES = S::THREADS / QUADS,
    EACH = LONG_CHUNK / LINES,
    VALUES_AT = LONG_CHUNK * COLUMN_BYTES,
    TOTALS_AT = 2 * LONG_CHUNK * COLUMN_BYTES,
    NORMS_AT = TOTALS_AT + (int)Totals<ROWS>::BYTES,
    SHARED_BYTES = NORMS_AT + LONG_CHUNK * 4,
  };
  static_assert(S::THREADS == RUNS * ROWS && ROWS == COLUMNS, "a thread has a run of a dim");
  const Totals<ROWS> totals;

  INLINE DimWrites(SharedBytes sm, const Linear& call) : Chunk(sm, call), totals{sm + TOTALS_AT} {}

  static INLINE int line_of(int i) { return S::template line_of<QUADS>(i); }
  static INLINE int line_quad() { return S::template quad_of<QUADS>(); }

  // Computes one over the norm of each key.
  INLINE void measure(const Rows& from) const {
    if (!has(NORMALIZE)) {
      if (thread_index() < LONG_CHUNK) store_shared_f(sm + NORMS_AT + thread_index() * 4, 1.f);
      return;
    }
    NO_UNROLL for (int t = thread_index() / 2; t < LONG_CHUNK; t += S::THREADS / 2) {
      const float norm = norm_of_pair(from, t);
      if (thread_index() % 2 == 0) store_shared_f(sm + NORMS_AT + t * 4, norm);
    }
  }

  // Stores the gated keys of a slab, and returns whether the chunk is not marked.
  INLINE bool fill(int state_head, Address tile, int row0) const {
    const int d = thread_index() % ROWS, run = thread_index() / ROWS, x = row0 + d, first = run * RUN;
    float sums[RUN], key[RUN];
    load_run(sums, rows(call.decay, state_head, call.key_dim, call.gate_dtype, 0), position + first, tokens - first, x);
    load_run(key, keys(state_head), position + first, tokens - first, x);
    const bool good = sum_run(sums);
    const int total = units_in(sums[RUN - 1]), early = units_in(sums[HALF_RUN - 1]);
    totals.set(2 * run, d, early);
    totals.set(2 * run + 1, d, (int)((unsigned)total - (unsigned)early));
    sync_block();
    long long later = total;
    NO_UNROLL for (int r = run + 1; r < RUNS; r++) later += totals.of(r, d);
    NO_UNROLL for (int t0 = 0; t0 < RUN; t0 += 4) {
      UNROLL for (int t = 0; t < 4; t++)
        store_shared_f(sm + (first + t0 + t) * COLUMN_BYTES + d * 4,
                       key[t] * power_of_units(later - units_in(sums[t])) * load_shared_f(sm + NORMS_AT + (first + t0 + t) * 4));
      turn(sums);
      turn(key);
    }
    if (run == 0) write_f32(Tile::gate(call, tile, x), power_of_units(later));
    return totals.is_bounded(d) && good;
  }

  INLINE void run(int state_head, int block) {
    const int tile_row = block / Tile::column_blocks(call), row0 = tile_row * ROWS;
    const int column0 = (block - tile_row * Tile::column_blocks(call)) * COLUMNS;
    const Address tile = Tile::of(call, state_head, of_all);
    f4 value[EACH], sum[S::DOWN][S::ACROSS / 4];
    fetch_rows(value, values(state_head), line_of(0), LINES, column0 + line_quad() * 4,
               tokens == LONG_CHUNK && column0 + COLUMNS <= call.value_dim);
    UNROLL for (int i = 0; i < EACH; i++)
      store_shared(sm + VALUES_AT + line_of(i) * COLUMN_BYTES + line_quad() * 16, numbers(value[i], VALUE_VEC4, value_type()));
    measure(keys(state_head));
    sync_block();
    const bool good = fill(state_head, tile, row0);
    sync_block();
    UNROLL for (int i = 0; i < S::DOWN; i++)
      UNROLL for (int c = 0; c < S::ACROSS / 4; c++) sum[i][c] = zero4();
    const SharedBytes rows = sm + (S::first_row() + S::lane_row() * 4) * 4, columns = sm + VALUES_AT + S::column_of(0) * 4;
    // Rows of a run past the last token are zero.
    NO_UNROLL for (int first = 0; first < tokens; first += 4)
      UNROLL for (int t = first; t < first + 4; t++) {
        f4 weights[S::DOWN / 4];
        UNROLL for (int i = 0; i < S::DOWN / 4; i++) weights[i] = load_shared(rows + t * COLUMN_BYTES + i * 64);
        UNROLL for (int c = 0; c < S::ACROSS / 4; c++) {
          const f4 x = load_shared(columns + t * COLUMN_BYTES + c * 128);
          UNROLL for (int i = 0; i < S::DOWN; i++) add_product(sum[i][c], weights[i / 4][i % 4], x);
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
    const bool marked = any_of_block(!good);
    if (thread_index() == 0) write_f32(Tile::mark(call, tile, block), marked ? 1.f : 0.f);
  }
};

}  // namespace chunks
