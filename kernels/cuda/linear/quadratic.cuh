// The quadratic form of linear attention with a delta rule or a gate per dim: every token with every earlier one, without
// intermediate states.
//
//   u_i = v_i,  or  beta_i (v_i - (E_i k_i)' S_0 - sum_{j < i} (k_i' D_ij k_j) u_j)          the write of token i
//   o_i = scale ((E_i q_i)' S_0 + sum_{j <= i} (q_i' D_ij k_j) u_j)
//   S_n = E_n S_0 + sum_j D_nj k_j u_j',                       D_ij = diag(exp(g_{j+1} + ... + g_i)),  E_i = D_i0 of all tokens
//
// The naive loop computes a score for each pair of tokens, gates it, and adds the earlier one's write. Here a block of threads
// has ROWS tokens, or dims of a state, and COLUMNS columns in registers, and iterates over the keys, KEYS at a time. Three
// kinds of launches follow one another: with a delta rule, one whose blocks find u, row block by row block, each from all
// earlier u in memory (Write); one for the answers (Answer); one for the last state (Last).
//
//  1. Writes cancel: a state of a delta rule stays small while thousands of tokens add to it. Groups of four products are
//     therefore summed separately, over dims as over tokens, and these sums are added by Kahan's rule, which keeps what an
//     addition rounds off. That halves the error at 1,024 tokens of random unit keys (2.5e-7 instead of 5.4e-7, d 64).
//  2. Within ROWS tokens u comes by substitution, with a column per thread: no inverse is formed.
//  3. Keys are visited from the last back to the first. The logarithms between a key and the block's first token then are a
//     running sum, f64, and tokens before the key do not matter.
//  4. D is the product of a factor of the row and one of the key, split at the block's first token. With a gate per dim a
//     thread has a dim, and the factors are applied to the rows and keys in shared memory. If a factor is beyond 2^100, if
//     small and large ones are mixed, or if anything is not finite, each pair of tokens has its own exponential (`exact`). The
//     same holds among the rows themselves if their gates sum to more than 2^100 in either direction.
//  5. A logarithm of -inf clears by selection, for any value, NaN included: bits mark the pairs that see each other. A sum of
//     logarithms that meets a -inf stays there: earlier tokens do not count. A NaN makes all later answers NaN until then.
//  6. The state before all tokens comes last: its rows are values, and the row's elements its scores.
//  7. The rounding error that Kahan's rule keeps of an infinity is NaN. From the first value that is not finite, such sums keep
//     no rounding error, and an infinity stays one.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"

namespace quadratic {

constexpr int THREADS = 128, ROWS = 32, KEYS = 32, COLUMNS = 64, SLAB = 32, OWN = KEYS / (THREADS / 32);
// Dims that may have a gate each: one per thread.
constexpr int MOST_DIMS = THREADS;
// Largest factor of a row or a key, and its logarithm.
constexpr float MOST_GATE = 0x1p100f;
constexpr double MOST_SUM = 69., CLEARED = -__builtin_inf();

// Adds an earlier logarithm to a sum, or a later one: nothing before a logarithm that clears counts.
INLINE double and_before(double sum, double g) { return sum == CLEARED ? sum : sum + g; }
INLINE double and_after(double sum, double g) { return g == CLEARED || (sum == CLEARED && g == g) ? CLEARED : sum + g; }

// Kahan's sum: `rest` is the negated rounding error of the last addition.
template <class V> INLINE void add_to(V& sum, V& rest, const V& x) {
  const V y = x - rest, z = sum + y;
  rest = (z - sum) - y;
  sum = z;
}

// Like add_to, but a sum that is not finite keeps no rounding error.
INLINE void add_any_to(f4& sum, f4& rest, const f4& x) {
  add_to(sum, rest, x);
  UNROLL for (int c = 0; c < 4; c++) rest[c] = is_finite(sum[c]) ? rest[c] : 0.f;
}

template <bool PER_DIM> struct Pairs {
  enum {
    // Bytes per row of keys or queries, of scores, and of values.
    ROW_BYTES = (PER_DIM ? MOST_DIMS : SLAB) * 4 + 16,
    SCORE_BYTES = KEYS * 4 + 16,
    VALUE_BYTES = COLUMNS * 4,
    KEYS_AT = ROWS * ROW_BYTES,
    SCORES_AT = KEYS_AT + KEYS * ROW_BYTES,
    VALUES_AT = SCORES_AT + ROWS * SCORE_BYTES,
    // f64 sums of logarithms: of rows, then of the tokens after each key. With a gate per dim: of the tokens between key and
    // rows.
    SUMS_AT = VALUES_AT + KEYS * VALUE_BYTES,
    // For each row: the number of logarithms that clear. For each row, then for each key: its gate, and one over its norm.
    CLEARS_AT = SUMS_AT + (PER_DIM ? MOST_DIMS : ROWS + KEYS) * 8,
    GATES_AT = CLEARS_AT + (PER_DIM ? 0 : ROWS * 4),
    NORMS_AT = GATES_AT + (PER_DIM ? 0 : (ROWS + KEYS) * 4),
    RATES_AT = NORMS_AT + (ROWS + KEYS) * 4,
    // A bit for each key that a row sees. Each warp has a word per row, in which only the bits of its OWN keys count.
    SEEN_AT = RATES_AT + ROWS * 4,
    SHARED_BYTES = SEEN_AT + ROWS * 4 * (KEYS / OWN),
  };
  static_assert(int(SCORE_BYTES) <= int(ROW_BYTES), "gates of the state take the place of keys");
  static_assert(SHARED_BYTES <= 49152 && ROWS == 32 && KEYS == 32 && SLAB == KEYS, "");

  const Linear& call;
  const SharedBytes sm;
  const int lane, warp;
  int state_head, number, column0;
  Sequence sequence;
  Rows keys, gates;
  f4 answer[4], rest[4];  // rows thread / 16 + 8 i, columns thread % 16 * 4 ..
  double between;         // logarithms of the tokens between keys and rows; with a gate per dim those of the thread's dim
  bool hidden;            // whether a gate hides all earlier tokens from the rows
  bool tainted;           // whether a value that was not finite has been added to answers
  bool high, low, above;  // for the thread's dim: whether gates of rows are beyond 2^100, below 2^-100, above one

  INLINE Pairs(SharedBytes sm, const Linear& call)
      : call(call), sm(sm), lane(thread_index() & 31), warp(thread_index() >> 5) {}

  INLINE bool has(int flag) const { return (call.flags & flag) != 0; }
  INLINE Rows rows(const Tensor& t, int h, int dim, int dtype, int flag) const {
    return rows_of(t, sequence, h, dim, dtype, has(flag), has(REVERSE));
  }
  INLINE float number_at(int at, int i) const { return load_shared_f(sm + at + i * 4); }
  INLINE void set(int at, int i, float x) const { store_shared_f(sm + at + i * 4, x); }
  INLINE double sum_of(int i) const {
    const SharedBytes p = sm + SUMS_AT + i * 8;
    return double_of_bits((unsigned long long)bits_of(load_shared_f(p + 4)) << 32 | bits_of(load_shared_f(p)));
  }
  INLINE void set_sum(int i, double x) const {
    const unsigned long long bits = bits_of_double(x);
    store_shared_f(sm + SUMS_AT + i * 8, float_of_bits((unsigned)bits));
    store_shared_f(sm + SUMS_AT + i * 8 + 4, float_of_bits((unsigned)(bits >> 32)));
  }
  INLINE bool sees(int r, int j) const { return (bits_of(number_at(SEEN_AT, j / OWN * ROWS + r)) >> j & 1) != 0; }
  // Sets the word of row `lane` for the keys of this warp.
  INLINE void set_seen(unsigned bits) const { set(SEEN_AT, warp * ROWS + lane, float_of_bits(bits)); }

  // Element x of a token's row, and the logarithm of its gate of dim x; zero if absent.
  INLINE float element_of(const Rows& from, int position, int x) const {
    return position < sequence.tokens && x < from.dim ? element(row_at(from, position), x, from.dtype) : 0.f;
  }
  INLINE double logarithm(int position, int x) const {
    return call.decay.data == 0 ? 0. : (double)element_of(gates, position, x);
  }

  // Sets the block's place: `of_parts` counts states, or output heads, of all sequences.
  INLINE void take(int of_parts) {
    number = quotient_of(of_parts, call.by_heads);
    state_head = quotient_of(of_parts - number * call.heads, call.by_readers);
    sequence = sequence_of(call, number);
    keys = rows(call.key, quotient_of(state_head, call.by_key_group), call.key_dim, call.dtype, KEY_VEC4);
    gates = rows(call.decay, state_head, has(DIM_GATES) ? call.key_dim : 1, call.gate_dtype, 0);
  }
  INLINE Rows values() const {
    return rows(call.value, state_head, call.value_dim, has(VALUE_F32) ? TYPE_F32 : call.dtype, VALUE_VEC4);
  }

  // Stores one over the norm for each of 32 rows, or one if rows are not normalised.
  INLINE void measure(const Rows& from, int position, int first) const {
    if (!has(NORMALIZE)) {
      if (warp == 0) set(NORMS_AT, first + lane, 1.f);
      return;
    }
    NO_UNROLL for (int r = warp * OWN; r < warp * OWN + OWN; r++) {
      float sum = 0.f;
      NO_UNROLL for (int x = lane; x < call.key_dim; x += 32) {
        const float y = element_of(from, position + r, x);
        sum = __builtin_fmaf(y, y, sum);
      }
      UNROLL for (int bit = 1; bit < 32; bit *= 2) sum += shuffle_xor(sum, bit);
      // The factor of an absent token is one, so that its row of zeros stays zero.
      if (lane == 0) set(NORMS_AT, first + r, position + r < sequence.tokens ? 1.f / __builtin_sqrtf(sum + call.epsilon) : 1.f);
    }
  }

  INLINE void clear_answers() {
    UNROLL for (int i = 0; i < 4; i++) answer[i] = rest[i] = zero4();
    tainted = false;
  }

  // Prepares the block for the rows from `row0` on.
  INLINE void begin(const Rows& vectors, int row0) {
    sync_block();  // the data of other rows is no longer needed
    clear_answers();
    between = 0.;
    hidden = high = low = above = false;
    measure(vectors, row0, 0);
    if (PER_DIM) {
      const int x = thread_index();
      double sum = 0.;
      NO_UNROLL for (int r = 0; r < ROWS; r++) {
        sum = and_after(sum, logarithm(row0 + r, x));
        high = high || !(sum <= MOST_SUM);
        low = low || !(sum >= -MOST_SUM);
        above = above || sum > 0.;
        const float y = element_of(vectors, row0 + r, x);
        store_shared_f(sm + r * ROW_BYTES + x * 4, sum == CLEARED ? 0.f : y * exp_of(sum));
      }
    } else if (thread_index() < ROWS) {
      double sum = 0.;
      int count = 0;
      NO_UNROLL for (int t = 0; t <= thread_index(); t++) {
        const double g = logarithm(row0 + t, 0);
        count += g == CLEARED ? 1 : 0;
        sum = g == CLEARED ? 0. : sum + g;  // a logarithm that clears leaves only the later rows
      }
      set_sum(thread_index(), sum);
      set(CLEARS_AT, thread_index(), (float)count);
      set(GATES_AT, thread_index(), exp_of(sum));
    }
    sync_block();
  }

  // The keys of a tile that the rows see by position alone.
  INLINE unsigned places(bool among, bool strict) const {
    const unsigned own = 1u << lane;
    return !among ? ~0u : strict ? own - 1 : own - 1 + own;
  }

  // Finds, with a gate per head, the factors of a tile's keys, which of them the rows see, and `between` before the tile.
  INLINE void gate_keys(int key0, bool among, bool strict) {
    const double g = logarithm(key0 + lane, 0), own = g == CLEARED ? 0. : g;
    const unsigned clearing = ballot(g == CLEARED);
    unsigned seen = places(among, strict);
    if (among) {
      if (clearing != 0)
        NO_UNROLL for (int j = warp * OWN; j < warp * OWN + OWN; j++)
          if (number_at(CLEARS_AT, j) != number_at(CLEARS_AT, lane)) seen &= ~(1u << j);
    } else {
      double after = between;
      NO_UNROLL for (int t = KEYS - 1; t >= 0; t--) {
        const unsigned long long bits = bits_of_double(own);
        const unsigned high = shuffle_from((unsigned)(bits >> 32), t), low = shuffle_from((unsigned)bits, t);
        const double other = double_of_bits((unsigned long long)high << 32 | low);
        between += other;
        after += t > lane ? other : 0.;
      }
      if (warp == 0) {
        set(GATES_AT, ROWS + lane, exp_of(after));
        set_sum(ROWS + lane, after);
      }
      if (clearing != 0) seen &= ~0u << (31 - __builtin_clz(clearing));
      if (number_at(CLEARS_AT, lane) != 0.f) seen = 0;
      hidden = clearing != 0;
    }
    set_seen(seen);
  }

  // With a gate per dim: loads the keys of a tile with their factors. Returns whether pairs need their own exponentials.
  INLINE bool bring_gated_keys(int key0, bool among) {
    const int x = thread_index();
    bool needs = high, up = false, down = false;
    double run = among ? 0. : between;
    NO_UNROLL for (int n = 0; n < KEYS; n++) {
      const int j = among ? n : KEYS - 1 - n;
      const double g = logarithm(key0 + j, x);
      if (among) run = and_after(run, g);
      const double sum = among ? -run : run;
      needs = needs || !(sum <= MOST_SUM);
      up = up || sum > 0.;
      down = down || sum < -MOST_SUM;
      const float y = sum == CLEARED ? 0.f : element_of(keys, key0 + j, x) * exp_of(sum);
      needs = needs || !is_finite(y);
      store_shared_f(sm + KEYS_AT + j * ROW_BYTES + x * 4, y);
      if (!among) run = and_before(run, g);
    }
    if (!among) {
      needs = needs || (low && up) || (above && down);
      set_sum(x, between);
      between = run;
    }
    return needs;
  }

  // Computes every pair of a tile with its own exponential per dim: row `lane`, and the keys of this warp.
  INLINE void exact(const Rows& vectors, int row0, int key0, bool strict) {
    const bool among = key0 == row0;
    const int first = warp * OWN, top = among ? lane : KEYS - 1;
    const unsigned may = places(among, strict);
    unsigned seen = 0;
    float sum[OWN], carry[OWN];
    UNROLL for (int e = 0; e < OWN; e++) sum[e] = carry[e] = 0.f;
    NO_UNROLL for (int x = 0; x < call.key_dim; x++) {
      double run = 0.;
      if (!among) {
        NO_UNROLL for (int t = lane; t >= 0; t--) run = and_before(run, logarithm(row0 + t, x));
        run = and_before(run, sum_of(x));
      }
      NO_UNROLL for (int j = top; j >= first + OWN; j--) run = and_before(run, logarithm(key0 + j, x));
      const float own = element_of(vectors, row0 + lane, x);
      NO_UNROLL for (int j = first + OWN - 1; j >= first; j--) {  // each step moves the last sum to the first place
        float s = sum[OWN - 1], c = carry[OWN - 1];
        if (j <= top) {
          if ((may >> j & 1) != 0 && run != CLEARED) {
            seen |= 1u << j;
            add_to(s, c, grown(run, own * element_of(keys, key0 + j, x), 0.f));
          }
          run = and_before(run, logarithm(key0 + j, x));
        }
        UNROLL for (int o = OWN - 1; o > 0; o--) {
          sum[o] = sum[o - 1];
          carry[o] = carry[o - 1];
        }
        sum[0] = s;
        carry[0] = c;
      }
    }
    NO_UNROLL for (int j = first; j < first + OWN; j++) {  // each step moves the next sum to the first place
      store_shared_f(sm + SCORES_AT + lane * SCORE_BYTES + j * 4,
                     sum[0] * number_at(NORMS_AT, lane) * number_at(NORMS_AT, ROWS + j));
      UNROLL for (int o = 1; o < OWN; o++) sum[o - 1] = sum[o];
    }
    if (strict && among && lane / OWN == warp) set(SCORES_AT, lane * (SCORE_BYTES / 4) + lane, __builtin_nanf(""));
    set_seen(seen);
  }

  // Stores dims x0 .. of 32 rows in shared memory.
  INLINE void bring(int at, const Rows& from, int first, int x0) const {
    const int x = x0 + thread_index() % 8 * 4;
    UNROLL for (int i = 0; i < 2; i++) {
      const int r = thread_index() / 8 + i * 16, position = first + r;
      f4 y = zero4();
      if (position < sequence.tokens) y = unpacked(from, load_row4(from, row_at(from, position), x));
      store_shared(sm + at + r * ROW_BYTES + thread_index() % 8 * 16, y);
    }
  }

  // Adds products of rows thread / 8 + 16 a and keys thread % 8 + 8 b, over the first `to` dims in shared memory.
  INLINE void multiply(int to, float (&sum)[2][4], float (&carry)[2][4]) const {
    const int row = thread_index() / 8, key = thread_index() % 8;
    NO_UNROLL for (int x = 0; x < to; x += 4) {
      f4 q[2], k[4];
      UNROLL for (int a = 0; a < 2; a++) q[a] = load_shared(sm + (row + a * 16) * ROW_BYTES + x * 4);
      UNROLL for (int b = 0; b < 4; b++) k[b] = load_shared(sm + KEYS_AT + (key + b * 8) * ROW_BYTES + x * 4);
      UNROLL for (int a = 0; a < 2; a++)
        UNROLL for (int b = 0; b < 4; b++) {
          float four = 0.f;
          UNROLL for (int e = 0; e < 4; e++) four = __builtin_fmaf(q[a][e], k[b][e], four);
          add_to(sum[a][b], carry[a][b], four);
        }
    }
  }

  // A score times the gates of a row and a key, with a gate per head.
  INLINE float gated_score(float s, int r, int j, bool among) const {
    if (among) return grown(sum_of(r) - sum_of(j), s, 0.f);
    const float a = number_at(GATES_AT, r), b = number_at(GATES_AT, ROWS + j);
    const bool good = a <= MOST_GATE && b <= MOST_GATE && (a >= 1.f / MOST_GATE || b <= 1.f) && (b >= 1.f / MOST_GATE || a <= 1.f);
    return RARELY(!good) ? grown(sum_of(r) + sum_of(ROWS + j), s, 0.f) : s * (a * b);
  }

  // Computes scores of the rows with a tile of keys. All threads call it: `finite` says whether this thread's values are finite,
  // and the result whether those of all threads are.
  INLINE bool score(const Rows& vectors, int row0, int key0, bool strict, bool finite) {
    const bool among = key0 == row0;
    measure(keys, key0, ROWS);
    float sum[2][4], carry[2][4];
    UNROLL for (int a = 0; a < 2; a++)
      UNROLL for (int b = 0; b < 4; b++) sum[a][b] = carry[a][b] = 0.f;
    if (PER_DIM) {
      const bool needs = bring_gated_keys(key0, among);
      const bool all_finite = !any_of_block(!finite), by_pairs = any_of_block(needs);
      if (!among) hidden = !any_of_block(between != CLEARED && thread_index() < call.key_dim);
      if (RARELY(by_pairs || !all_finite)) {
        exact(vectors, row0, key0, strict);
        sync_block();
        return all_finite;
      }
      set_seen(places(among, strict));
      multiply(call.key_dim, sum, carry);
      sync_block();
    } else {
      gate_keys(key0, among, strict);
      NO_UNROLL for (int x0 = 0; x0 < call.key_dim; x0 += SLAB) {
        bring(0, vectors, row0, x0);
        bring(KEYS_AT, keys, key0, x0);
        sync_block();
        multiply(SLAB, sum, carry);
        sync_block();
      }
    }
    const int row = thread_index() / 8, key = thread_index() % 8;
    NO_UNROLL for (int n = 0; n < 8; n++) {  // each step puts the next score in the last place
      const int r = row + n / 4 * 16, j = key + n % 4 * 8;
      const float s = sum[0][0] * number_at(NORMS_AT, r) * number_at(NORMS_AT, ROWS + j);
      UNROLL for (int o = 1; o < 8; o++) sum[(o - 1) / 4][(o - 1) % 4] = sum[o / 4][o % 4];
      const float gated = PER_DIM ? s : gated_score(s, r, j, among);
      // A token that reads the earlier ones leaves the square of its key, which solve() inspects.
      const float other = strict && among && r == j ? s : 0.f;
      store_shared_f(sm + SCORES_AT + r * SCORE_BYTES + j * 4, sees(r, j) ? gated : other);
    }
    return !any_of_block(!finite);
  }

  // Stores four columns of KEYS rows in shared memory. Returns whether this thread's values are finite.
  template <class Load> INLINE bool bring_values(Load load) const {
    bool finite = true;
    UNROLL for (int i = 0; i < KEYS / 8; i++) {
      const int j = thread_index() / 16 + 8 * i;
      const f4 v = load(j, column0 + thread_index() % 16 * 4);
      finite = finite && is_finite(v);
      store_shared(sm + VALUES_AT + j * VALUE_BYTES + thread_index() % 16 * 16, v);
    }
    return finite;
  }

  // Adds scores times values. Unless all values are and were `finite`, pairs that do not see each other are skipped, and with
  // AGAIN values are multiplied twice by the pair's factor, which is stored in place of the keys.
  template <bool AGAIN = false> INLINE void add(bool finite) {
    const int group = thread_index() / 16;
    const SharedBytes values = sm + VALUES_AT + thread_index() % 16 * 16;
    tainted = tainted || !finite;
    if (RARELY(tainted)) {
      NO_UNROLL for (int j = 0; j < KEYS; j++) {
        const f4 v = load_shared(values + j * VALUE_BYTES);
        UNROLL for (int i = 0; i < 4; i++) {
          const int r = group + 8 * i;
          if (!sees(r, j)) continue;
          f4 one = zero4(), own = v;
          if (AGAIN) {
            const float gate = load_shared_f(sm + KEYS_AT + r * SCORE_BYTES + j * 4);
            own = own * gate * gate;
          }
          add_product(one, load_shared_f(sm + SCORES_AT + r * SCORE_BYTES + j * 4), own);
          add_any_to(answer[i], rest[i], one);
        }
      }
      return;
    }
    NO_UNROLL for (int j = 0; j < KEYS; j += 4) {
      f4 four[4];
      UNROLL for (int i = 0; i < 4; i++) four[i] = zero4();
      f4 v[4];
      UNROLL for (int e = 0; e < 4; e++) v[e] = load_shared(values + (j + e) * VALUE_BYTES);
      UNROLL for (int i = 0; i < 4; i++) {
        const f4 scores = load_shared(sm + SCORES_AT + (group + 8 * i) * SCORE_BYTES + j * 4);
        UNROLL for (int e = 0; e < 4; e++) add_product(four[i], scores[e], v[e]);
        add_to(answer[i], rest[i], four[i]);
      }
    }
  }

  // Row x of the state before all tokens, four columns.
  INLINE f4 past_row(int x, int column) const {
    const States& s = call.initial;
    f4 v = zero4();
    if (s.data == 0 || x >= call.key_dim) return v;
    const Address at = s.data + (number * s.sequence + state_head * s.head + x * s.row + column) * 4;
    UNROLL for (int c = 0; c < 4; c++)
      if (column + c < call.value_dim) v[c] = read_f32(at + c * 4);
    return v;
  }

  // Adds the rows' readings of the state before all tokens; after a NaN gate also without such a state.
  INLINE void add_past(const Rows& vectors, int row0) {
    if (hidden || (call.initial.data == 0 && call.decay.data == 0)) return;
    sync_block();
    if (PER_DIM) set_sum(thread_index(), between);
    else if (thread_index() < ROWS) set(GATES_AT, thread_index(), gate_of_sum(sum_of(thread_index()) + between));
    bool beyond = false;  // whether a gate that is beyond f32 is applied to the state
    NO_UNROLL for (int x0 = 0; x0 < call.key_dim; x0 += KEYS) {
      sync_block();
      const int x = x0 + lane;
      double sum = 0.;
      NO_UNROLL for (int r = PER_DIM ? 0 : warp * OWN; r < warp * OWN + OWN; r++) {
        if (PER_DIM) sum = and_after(sum, logarithm(row0 + r, x));
        if (r < warp * OWN) continue;
        const bool seen = PER_DIM ? and_before(sum, sum_of(x)) != CLEARED : number_at(CLEARS_AT, r) == 0.f;
        float gate = PER_DIM ? gate_of_sum(and_before(sum, sum_of(x))) : number_at(GATES_AT, r);
        const bool twice = gate < 0.f && seen;
        store_shared_f(sm + KEYS_AT + r * SCORE_BYTES + lane * 4, twice ? -gate : 1.f);
        beyond = beyond || twice;
        if (twice) gate = 1.f;
        const float y = element_of(vectors, row0 + r, x) * number_at(NORMS_AT, r) * gate;
        store_shared_f(sm + SCORES_AT + r * SCORE_BYTES + lane * 4, seen && x < call.key_dim ? y : 0.f);
        const unsigned bits = ballot(seen && x < call.key_dim);
        if (lane < KEYS / OWN) set(SEEN_AT, lane * ROWS + r, float_of_bits(bits));
      }
      const bool finite = bring_values([&](int j, int column) LAMBDA { return past_row(x0 + j, column); });
      const bool all_finite = !any_of_block(!finite || beyond);
      add<true>(all_finite);
    }
  }
};

// The writes of tokens under a delta rule: a block has some columns of a state, and all its tokens. The call's heads are
// states, and its output is u, f32, with rows whose starts and ends are aligned to four elements.
template <bool PER_DIM> struct Write : Pairs<PER_DIM> {
  typedef Pairs<PER_DIM> P;
  using P::answer, P::call, P::column0, P::keys, P::sequence, P::sm, P::state_head;

  INLINE Write(SharedBytes sm, const Linear& call) : P(sm, call) {}

  // Computes u of the rows from row0 on; `answer` is the reading of the state before them for their keys.
  INLINE void solve(int row0, const Rows& written) {
    const Rows from = this->values();
    const int column = column0 + thread_index() % 16 * 4;
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = thread_index() / 16 + 8 * i;
      f4 v = zero4();
      if (row0 + r < sequence.tokens) v = unpacked(from, load_row4(from, row_at(from, row0 + r), column));
      store_shared(sm + P::VALUES_AT + r * P::VALUE_BYTES + thread_index() % 16 * 16, v - answer[i]);
    }
    if (thread_index() < ROWS) {
      const Rows rates = this->rows(call.beta, state_head, 1, call.gate_dtype, 0);
      const int r = thread_index();
      float rate = this->element_of(rates, row0 + r, 0);
      // A key that is not finite makes even a state of zeros NaN.
      if (RARELY(!is_finite(load_shared_f(sm + P::SCORES_AT + r * P::SCORE_BYTES + r * 4))))
        NO_UNROLL for (int x = 0; x < call.key_dim; x++)
          rate = is_finite(this->element_of(keys, row0 + r, x)) ? rate : __builtin_nanf("");
      this->set(P::RATES_AT, r, rate);
    }
    sync_block();
    if (thread_index() < COLUMNS) {
      const SharedBytes own = sm + P::VALUES_AT + thread_index() * 4;
      NO_UNROLL for (int r = 0; r < ROWS; r++) {
        float sum = 0.f, carry = 0.f;
        NO_UNROLL for (int j = 0; j < r; j += 4) {
          const f4 scores = load_shared(sm + P::SCORES_AT + r * P::SCORE_BYTES + j * 4);
          float four = 0.f;
          UNROLL for (int e = 0; e < 4; e++)
            if (this->sees(r, j + e)) four = __builtin_fmaf(scores[e], load_shared_f(own + (j + e) * P::VALUE_BYTES), four);
          add_to(sum, carry, four);
        }
        const SharedBytes at = own + r * P::VALUE_BYTES;
        store_shared_f(at, this->number_at(P::RATES_AT, r) * (load_shared_f(at) - sum));
      }
    }
    sync_block();
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = thread_index() / 16 + 8 * i;
      if (row0 + r >= sequence.tokens || column >= call.value_dim) continue;
      write_f4(row_at(written, row0 + r) + column * 4, load_shared(sm + P::VALUES_AT + r * P::VALUE_BYTES + thread_index() % 16 * 16));
    }
  }

  INLINE void run() {
    const int of_columns = quotient_of(block_index(), call.by_columns);
    column0 = (block_index() - of_columns * call.columns) * COLUMNS;
    this->take(of_columns);
    const Rows written = this->rows(call.output, state_head, call.value_dim, TYPE_F32, OUTPUT_VEC4);
    NO_UNROLL for (int row0 = 0; row0 < sequence.tokens; row0 += ROWS) {
      this->begin(keys, row0);
      NO_UNROLL for (int key0 = row0 - KEYS;; key0 -= KEYS) {
        const bool over = key0 < 0 || this->hidden;  // only the rows themselves are left
        if (over) this->add_past(keys, row0);
        sync_block();  // the data of the previous tile is no longer needed, and earlier writes are visible
        bool finite = true;
        if (!over)
          finite = this->bring_values([&](int j, int column) LAMBDA {
            return column < call.value_dim ? read_f4(row_at(written, key0 + j) + column * 4) : zero4();
          });
        const bool all_finite = this->score(keys, row0, over ? row0 : key0, true, finite);
        if (over) break;
        this->add(all_finite);
      }
      solve(row0, written);
    }
  }
};

// Answers: a block has ROWS tokens of an output head, which are a part of the call.
template <bool PER_DIM> struct Answer : Pairs<PER_DIM> {
  typedef Pairs<PER_DIM> P;
  using P::answer, P::call, P::column0, P::sequence;

  INLINE Answer(SharedBytes sm, const Linear& call) : P(sm, call) {}

  INLINE void run() {
    const int of_columns = quotient_of(block_index(), call.by_columns), of_parts = quotient_of(of_columns, call.by_parts);
    column0 = (block_index() - of_columns * call.columns) * COLUMNS;
    this->take(of_parts);
    // Blocks with the most keys come first.
    const int row0 = (of_parts * call.parts + call.parts - 1 - of_columns) * ROWS;
    if (row0 >= sequence.tokens) return;
    const int head = of_parts - this->number * call.heads;
    const Rows queries = this->rows(call.query, quotient_of(head, call.by_sharers), call.key_dim, call.dtype, QUERY_VEC4);
    const Rows values = this->values();
    this->begin(queries, row0);
    NO_UNROLL for (int key0 = row0; key0 >= 0 && !this->hidden; key0 -= KEYS) {
      sync_block();  // the data of the previous tile is no longer needed
      const bool finite = this->bring_values([&](int j, int column) LAMBDA {
        if (key0 + j >= sequence.tokens) return zero4();
        return unpacked(values, load_row4(values, row_at(values, key0 + j), column));
      });
      const bool all_finite = this->score(queries, row0, key0, false, finite);
      this->add(all_finite);
    }
    this->add_past(queries, row0);
    const Rows answers = this->rows(call.output, head, call.value_dim, call.output_dtype, OUTPUT_VEC4);
    const Rows partials = this->rows(call.partial, head, call.value_dim, TYPE_F32, PARTIAL_VEC4);
    NO_UNROLL for (int i = 0; i < 4; i++) {  // each step moves the next row to the first place
      const int position = row0 + thread_index() / 16 + 8 * i, column = column0 + thread_index() % 16 * 4;
      const f4 x = answer[0] * call.scale;
      UNROLL for (int o = 1; o < 4; o++) answer[o - 1] = answer[o];
      if (position < sequence.tokens && column < call.value_dim)
        write_row4(answers, partials, call.partial.data != 0, position, column, x);
    }
  }
};

}  // namespace quadratic

// Parameters: name, task of a block, blocks per SM.
#define LINEAR_QUADRATIC(name, KIND, BLOCKS)                                                       \
  KERNEL LAUNCH_BOUNDS(quadratic::THREADS, BLOCKS) void name(const Linear call) {                  \
    SHARED(memory, quadratic::KIND::SHARED_BYTES);                                                 \
    quadratic::KIND(memory, call).run();                                                           \
  }
