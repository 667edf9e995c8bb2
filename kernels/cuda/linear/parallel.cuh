// The quadratic form of linear attention: every token with every earlier one, without intermediate states.
//
//   o_i = scale (exp(G_i) q_i' S_0 + sum_{j <= i} D_ij (q_i.k_j) v_j),   D_ij = exp(g_{j+1} + ... + g_i)
//
// The naive loop computes a score for each pair of tokens, multiplies it by D, and adds the value. Here a block of
// threads has ROWS tokens and COLUMNS columns of their answers in registers, and iterates over tiles of KEYS keys. It
// has few rows, so that a short sequence has as many blocks as possible.
//
//  1. The last tile ends with the block's own tokens. Tiles are visited from the last back to the first. The
//     logarithms between a key and the block's first token then are a running sum, f64, and tokens before the key do
//     not matter.
//  2. A tile takes some steps: the scores over SLAB dims of queries and keys at a time, so that a head may have any
//     number of dims, then HALF values at a time. The operands of the next step travel through registers while a step
//     is computed. The norms of rows to be normalised are summed alongside, and multiply the finished scores.
//  3. D is the product of a factor of the row and one of the key, split at the block's first token. The latter is the
//     key's factor in the state before the block, the former the state's in the answer, so that both stay in range if
//     the recurrence does. If a key is among the rows, or a factor is beyond 2^100 in either direction, D is computed
//     per pair, and is applied to the score in steps if it is beyond f32.
//  4. A logarithm of -inf clears by selection: a pair with one between its tokens has no weight, for any value, and no
//     earlier tile is visited. Logarithms of -inf are counted, not summed. A NaN makes all later answers NaN.
//  5. The state before all tokens comes last: rows of queries are its scores, and its rows are the values.
//  6. Values that are not finite must not reach tokens that do not see them: a block that encounters one selects.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"

namespace parallel {

constexpr int THREADS = 128, ROWS = 16, KEYS = 64, COLUMNS = 64, SLAB = 32, HALF = KEYS / 2;
// Bytes per row of a slab, of scores, and of values, which take the place of keys.
constexpr int LINE_BYTES = SLAB * 4 + 16, SCORE_BYTES = KEYS * 4 + 16, VALUE_BYTES = COLUMNS * 4;
constexpr int KEYS_AT = ROWS * LINE_BYTES, VALUES_AT = KEYS_AT, SCORES_AT = KEYS_AT + KEYS * LINE_BYTES;
static_assert(HALF * VALUE_BYTES <= KEYS * LINE_BYTES, "");
// For each row, then for each key: the sum of logarithms in two words, the number that clear, the gate, and one over
// the norm. Rows have a second gate. The last word is one if a logarithm of the tile clears.
constexpr int SUMS_AT = SCORES_AT + ROWS * SCORE_BYTES, CLEARS_AT = SUMS_AT + (ROWS + KEYS) * 8;
constexpr int GATES_AT = CLEARS_AT + (ROWS + KEYS) * 4, NORMS_AT = GATES_AT + (ROWS + KEYS) * 4;
constexpr int AGAIN_AT = NORMS_AT + (ROWS + KEYS) * 4, CLEARED_AT = AGAIN_AT + ROWS * 4, SHARED_BYTES = CLEARED_AT + 16;
// Largest factor of a row or a key.
constexpr float MOST_GATE = 0x1p100f;

struct Block {
  const Linear& call;
  const SharedBytes sm;
  int head, state_head, number, row0, column0;
  Sequence sequence;
  f4 answer[2];  // rows group() + 8 i, columns quad() * 4 ..

  INLINE Block(SharedBytes sm, const Linear& call) : call(call), sm(sm) {}

  static INLINE int group() { return thread_index() / 16; }
  static INLINE int quad() { return thread_index() % 16; }
  INLINE bool has(int flag) const { return (call.flags & flag) != 0; }
  INLINE Rows rows(const Tensor& t, int h, int dim, int dtype, int flag) const {
    return rows_of(t, sequence, h, dim, dtype, has(flag), has(REVERSE));
  }
  INLINE Rows queries() const {
    return rows(call.query, quotient_of(head, call.by_sharers), call.key_dim, call.dtype, QUERY_VEC4);
  }
  INLINE Rows keys() const {
    return rows(call.key, quotient_of(state_head, call.by_key_group), call.key_dim, call.dtype, KEY_VEC4);
  }
  INLINE Rows values() const { return rows(call.value, state_head, call.value_dim, call.dtype, VALUE_VEC4); }
  // A raw quad of queries, keys or values as numbers; `flag` is that of their rows.
  INLINE f4 numbers(f4 x, int flag) const {
    return has(flag) && call.dtype != TYPE_F32 ? to_f32(u2{bits_of(x[0]), bits_of(x[1])}, call.dtype) : x;
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
  static INLINE double from_lane(double x, int lane) {
    const unsigned long long bits = bits_of_double(x);
    const unsigned high = shuffle_from((unsigned)(bits >> 32), lane), low = shuffle_from((unsigned)bits, lane);
    return double_of_bits((unsigned long long)high << 32 | low);
  }

  // The logarithm of a token, zero for an absent one.
  INLINE float logarithm(int position) const {
    if (call.decay.data == 0 || position < 0 || position >= sequence.tokens) return 0.f;
    const Rows gates = rows(call.decay, state_head, 1, call.gate_dtype, 0);
    return element(row_at(gates, position), 0, gates.dtype);
  }

  // Raw quads of the rows of tokens that are `apart`, zero for absent tokens and past the last dim.
  template <int COUNT> INLINE void fetch_rows(f4 (&to)[COUNT], const Rows& from, int position, int apart, int first) const {
    const Address at = row_at(from, position) + first * element_size(from.dtype);
    const long long across = apart * from.step;
    auto exists = [&](int i) LAMBDA { return position + i * apart >= 0 && position + i * apart < sequence.tokens; };
    const bool inside = first < from.dim, wide = from.dtype == TYPE_F32;
    if (!from.vec4) {
      NO_UNROLL for (int i = 0; i < COUNT; i++) {  // each step puts the next row in the last place
        UNROLL for (int o = 1; o < COUNT; o++) to[o - 1] = to[o];
        to[COUNT - 1] = inside && exists(i) ? load_elements(from, row_at(from, position + i * apart), first) : zero4();
      }
      return;
    }
    UNROLL for (int i = 0; i < COUNT; i++) {
      to[i] = zero4();
      if (!inside || !exists(i)) continue;
      if (wide) to[i] = load_f4(at + i * across);
      else load_words(to[i], at + i * across);
    }
  }

  // Fills in the sums of the rows: a scan over the lanes of the first warp.
  INLINE void sum_rows() const {
    const int lane = thread_index();
    if (lane >= 32) return;
    const float g = lane < ROWS ? logarithm(row0 + lane) : 0.f;
    unsigned count = g == NEG_INF ? 1 : 0;
    double sum = g == NEG_INF ? 0. : (double)g;
    UNROLL for (int step = 1; step < ROWS; step *= 2) {
      const int from = lane < step ? lane : lane - step;
      const double before = from_lane(sum, from);
      const unsigned cleared = shuffle_from(count, from);
      if (lane >= step) {
        sum = count > 0 ? sum : before + sum;  // a logarithm that clears leaves only the later rows
        count += cleared;
      }
    }
    if (lane >= ROWS) return;
    set_sum(lane, sum);
    set(CLEARS_AT, lane, (float)count);
    set(GATES_AT, lane, exp_of(sum));
  }

  // The first warp fills in the sums of the keys of a tile, whose logarithms are `early` and `late`. `between` is the
  // sum of the logarithms from the end of the tile to the first row, and becomes that from its start.
  INLINE void sum_keys(float early, float late, double& between) const {
    const int lane = thread_index();
    const unsigned clear[2] = {ballot(early == NEG_INF), ballot(late == NEG_INF)};
    double total = between;
    UNROLL for (int half = 1; half >= 0; half--) {
      const float g = half == 0 ? early : late;
      double sum = g == NEG_INF ? 0. : (double)g;
      UNROLL for (int step = 1; step < 32; step *= 2) {
        const double other = from_lane(sum, lane + step < 32 ? lane + step : lane);
        if (lane + step < 32) sum = sum + other;
      }
      const double later = from_lane(sum, lane < 31 ? lane + 1 : lane), after = lane < 31 ? later + total : total;
      const unsigned clears = lane < 31 ? clear[half] >> (lane + 1) : 0;
      const int j = ROWS + half * 32 + lane;
      set_sum(j, after);
      set(GATES_AT, j, exp_of(after));
      set(CLEARS_AT, j, clears != 0 || (half == 0 && clear[1] != 0) ? 1.f : 0.f);
      total = from_lane(sum, 0) + total;
    }
    between = total;
    if (lane == 0) set(CLEARED_AT, 0, (clear[0] | clear[1]) != 0 ? 1.f : 0.f);
  }

  // A score times the gates of a row and of a key before the rows.
  INLINE float gated_score(float s, int r, int j) const {
    const float a = number_at(GATES_AT, r), b = number_at(GATES_AT, ROWS + j);
    const bool good = a <= MOST_GATE && b <= MOST_GATE && (a >= 1.f / MOST_GATE || b <= 1.f) &&
                      (b >= 1.f / MOST_GATE || a <= 1.f);
    return RARELY(!good) ? grown(sum_of(r) + sum_of(ROWS + j), s, 0.f) : s * (a * b);
  }

  // Whether a row sees a key of a tile. The first key has position `tile`.
  INLINE bool sees(int tile, int r, int j) const {
    const float clears = number_at(CLEARS_AT, r);
    const int among = tile + j - row0;
    if (among >= 0) return among <= r && clears == number_at(CLEARS_AT, among);
    return tile + j >= 0 && clears == 0.f && number_at(CLEARS_AT, ROWS + j) == 0.f;
  }

  // Adds scores times HALF values. Unless all values are `finite`, pairs that do not see each other are skipped, and
  // each value is multiplied twice by the row's `again`.
  template <class Sees, class Again> INLINE void add(int half, bool finite, Sees sees, Again again) {
    const SharedBytes own = sm + VALUES_AT + quad() * 16, scores = sm + SCORES_AT + group() * SCORE_BYTES + half * HALF * 4;
    if (RARELY(!finite)) {
      NO_UNROLL for (int j = 0; j < HALF; j++) {
        const f4 v = load_shared(own + j * VALUE_BYTES);
        UNROLL for (int i = 0; i < 2; i++) {
          const int r = group() + 8 * i;
          if (sees(r, half * HALF + j))
            add_product(answer[i], load_shared_f(scores + i * 8 * SCORE_BYTES + j * 4), v * again(r) * again(r));
        }
      }
      return;
    }
    NO_UNROLL for (int j = 0; j < HALF; j += 4) {
      f4 score[2], v[4];
      UNROLL for (int i = 0; i < 2; i++) score[i] = load_shared(scores + i * 8 * SCORE_BYTES + j * 4);
      UNROLL for (int e = 0; e < 4; e++) v[e] = load_shared(own + (j + e) * VALUE_BYTES);
      UNROLL for (int e = 0; e < 4; e++)
        UNROLL for (int i = 0; i < 2; i++) add_product(answer[i], score[i][e], v[e]);
    }
  }

  // Multiplies the scores of a tile by norms and gates, and stores them.
  INLINE void finish_scores(int tile, float (&score)[2][4]) const {
    NO_UNROLL for (int n = 0; n < 8; n++) {  // each step puts the next score in the last place
      const int r = group() + n / 4 * 8, j = quad() + n % 4 * 16, among = tile + j - row0;
      float s = score[0][0];
      UNROLL for (int o = 1; o < 8; o++) score[(o - 1) / 4][(o - 1) % 4] = score[o / 4][o % 4];
      score[1][3] = 0.f;
      if (has(NORMALIZE)) s = s * number_at(NORMS_AT, r) * number_at(NORMS_AT, ROWS + j);
      const bool seen = sees(tile, r, j);
      if (call.decay.data != 0 && seen) s = among >= 0 ? grown(sum_of(r) - sum_of(among), s, 0.f) : gated_score(s, r, j);
      store_shared_f(sm + SCORES_AT + r * SCORE_BYTES + j * 4, seen ? s : 0.f);
    }
  }

  // The answers from the tokens up to the block's own. Returns whether no logarithm clears; `between` is the sum of
  // all before the block.
  INLINE bool add_tokens(double& between) {
    const int slabs = (call.key_dim + SLAB - 1) / SLAB, steps = slabs + 2;
    const int line = thread_index() / 8, line_quad = thread_index() % 8;
    f4 query[1] = {zero4()}, next[4];
    float early = 0.f, late = 0.f, of_query = 0.f, of_keys[4], score[2][4];
    auto fetch = [&](int tile, int step) LAMBDA {
      if (step == 0 && thread_index() < 32) {
        early = tile + thread_index() < row0 ? logarithm(tile + thread_index()) : 0.f;
        late = tile + 32 + thread_index() < row0 ? logarithm(tile + 32 + thread_index()) : 0.f;
      }
      if (step < slabs) {
        const int x = step * SLAB + line_quad * 4;
        fetch_rows(query, queries(), row0 + line, 0, x);
        fetch_rows(next, keys(), tile + line, 16, x);
      } else {
        const int first = tile + (step - slabs) * HALF + group();
        fetch_rows(next, values(), first, 8, column0 + quad() * 4);
      }
    };
    UNROLL for (int i = 0; i < 4; i++) {
      of_keys[i] = score[0][i] = score[1][i] = 0.f;
      next[i] = zero4();
    }
    bool clears = false;
    // The first step only fetches.
    int tile = row0 + ROWS - KEYS, step = -1;
    NO_UNROLL while (true) {
      sync_block();  // the data of the previous step is no longer needed
      bool finite = true;
      if (step >= 0 && step < slabs) {
        const f4 q = numbers(query[0], QUERY_VEC4);
        store_shared(sm + line * LINE_BYTES + line_quad * 16, q);
        UNROLL for (int e = 0; e < 4; e++) of_query = __builtin_fmaf(q[e], q[e], of_query);
        UNROLL for (int i = 0; i < 4; i++) {
          const f4 k = numbers(next[i], KEY_VEC4);
          store_shared(sm + KEYS_AT + (line + i * 16) * LINE_BYTES + line_quad * 16, k);
          UNROLL for (int e = 0; e < 4; e++) of_keys[i] = __builtin_fmaf(k[e], k[e], of_keys[i]);
        }
      } else if (step >= slabs) {
        UNROLL for (int i = 0; i < 4; i++) {
          const f4 v = numbers(next[i], VALUE_VEC4);
          finite = finite && is_finite(v);
          store_shared(sm + VALUES_AT + (group() + i * 8) * VALUE_BYTES + quad() * 16, v);
        }
      }
      const bool all_finite = !any_of_block(!finite);
      const int of_tile = tile, of_step = step;
      step++;
      if (step == steps) {
        step = 0;
        tile -= KEYS;
      }
      const bool more = tile + KEYS > 0 && (step > 0 || !clears);
      if (of_step == 0 && thread_index() < 32) sum_keys(early, late, between);
      if (more) fetch(tile, step);
      if (of_step >= slabs) {
        auto seen = [&](int r, int j) LAMBDA { return sees(of_tile, r, j); };
        add(of_step - slabs, all_finite, seen, [](int) LAMBDA { return 1.f; });
        if (!more) return !clears;
        continue;
      }
      if (of_step < 0) continue;
      NO_UNROLL for (int x = 0; x < SLAB; x += 4) {
        f4 q[2], k[4];
        UNROLL for (int a = 0; a < 2; a++) q[a] = load_shared(sm + (group() + a * 8) * LINE_BYTES + x * 4);
        UNROLL for (int b = 0; b < 4; b++) k[b] = load_shared(sm + KEYS_AT + (quad() + b * 16) * LINE_BYTES + x * 4);
        UNROLL for (int e = 0; e < 4; e++)
          UNROLL for (int a = 0; a < 2; a++)
            UNROLL for (int b = 0; b < 4; b++) score[a][b] = __builtin_fmaf(q[a][e], k[b][e], score[a][b]);
      }
      if (of_step + 1 < slabs) continue;
      if (has(NORMALIZE)) {
        UNROLL for (int bit = 1; bit < 8; bit *= 2) {
          of_query += shuffle_xor(of_query, bit);
          UNROLL for (int i = 0; i < 4; i++) of_keys[i] += shuffle_xor(of_keys[i], bit);
        }
        if (line_quad == 0) {
          set(NORMS_AT, line, 1.f / __builtin_sqrtf(of_query + call.epsilon));
          UNROLL for (int i = 0; i < 4; i++)
            set(NORMS_AT, ROWS + line + i * 16, 1.f / __builtin_sqrtf(of_keys[i] + call.epsilon));
        }
      }
      sync_block();  // norms and sums are complete
      clears = number_at(CLEARED_AT, 0) != 0.f;
      finish_scores(of_tile, score);
      of_query = 0.f;
      UNROLL for (int i = 0; i < 4; i++) of_keys[i] = score[0][i] = score[1][i] = 0.f;
    }
  }

  // Adds the answers from the state before all tokens. `between` is the sum of the logarithms before the block.
  INLINE void add_past(double between) {
    sync_block();
    // From here on the gate of a row is that of all tokens up to it. A gate beyond f32 is replaced by the gate of half
    // the logarithm, which is applied to the state twice.
    bool beyond = false;
    if (thread_index() < ROWS) {
      const float gate = gate_of_sum(sum_of(thread_index()) + between);
      beyond = gate < 0.f;
      set(GATES_AT, thread_index(), beyond ? 1.f : gate);
      set(AGAIN_AT, thread_index(), beyond ? -gate : 1.f);
    }
    const bool any_beyond = any_of_block(beyond);
    auto sees = [&](int r, int) LAMBDA { return number_at(CLEARS_AT, r) == 0.f; };
    const States& s = call.initial;
    if (s.data == 0) {
      UNROLL for (int i = 0; i < 2; i++) {
        const float gate = number_at(GATES_AT, group() + 8 * i);
        if (sees(group() + 8 * i, 0) && gate != gate) answer[i] = answer[i] + f4{gate, gate, gate, gate};
      }
      return;
    }
    const Address state = s.data + (number * s.sequence + state_head * s.head + column0 + quad() * 4) * 4;
    NO_UNROLL for (int x0 = 0; x0 < call.key_dim; x0 += HALF) {
      sync_block();
      // A slab of queries is the first half of the scores.
      const int line = thread_index() / 8, x = thread_index() % 8 * 4;
      f4 from[1];
      fetch_rows(from, queries(), row0 + line, 0, x0 + x);
      f4 q = numbers(from[0], QUERY_VEC4);
      if (has(NORMALIZE)) q = q * number_at(NORMS_AT, line);
      store_shared(sm + SCORES_AT + line * SCORE_BYTES + x * 4, sees(line, 0) ? q * number_at(GATES_AT, line) : zero4());
      bool finite = true;
      UNROLL for (int i = 0; i < 4; i++) {
        const int row = x0 + group() + i * 8;
        f4 v = zero4();
        if (row < call.key_dim)
          UNROLL for (int c = 0; c < 4; c++)
            if (column0 + quad() * 4 + c < call.value_dim) v[c] = read_f32(state + (row * s.row + c) * 4);
        finite = finite && is_finite(v);
        store_shared(sm + VALUES_AT + (group() + i * 8) * VALUE_BYTES + quad() * 16, v);
      }
      const bool all_finite = !any_of_block(!finite);
      add(0, all_finite && !any_beyond, sees, [&](int r) LAMBDA { return number_at(AGAIN_AT, r); });
    }
  }

  INLINE void run() {
    const int of_columns = quotient_of(block_index(), call.by_columns);
    const int of_parts = quotient_of(of_columns, call.by_parts);
    number = quotient_of(of_parts, call.by_heads);
    head = of_parts - number * call.heads;
    state_head = quotient_of(head, call.by_readers);
    column0 = (block_index() - of_columns * call.columns) * COLUMNS;
    sequence = sequence_of(call, number);
    // Blocks with the most keys come first.
    row0 = (of_parts * call.parts + call.parts - 1 - of_columns) * ROWS;
    if (row0 >= sequence.tokens || sequence.tokens < call.least || sequence.tokens >= call.most) return;
    answer[0] = answer[1] = zero4();
    sum_rows();
    double between = 0.;
    if (add_tokens(between)) add_past(between);
    const Rows answers = rows(call.output, head, call.value_dim, call.output_dtype, OUTPUT_VEC4);
    const Rows partials = rows(call.partial, head, call.value_dim, TYPE_F32, PARTIAL_VEC4);
    NO_UNROLL for (int i = 0; i < 2; i++) {  // each step moves the next row to the first place
      const int position = row0 + group() + 8 * i, column = column0 + quad() * 4;
      const f4 x = answer[0] * call.scale;
      answer[0] = answer[1];
      if (position < sequence.tokens && column < call.value_dim)
        write_row4(answers, partials, call.partial.data != 0, position, column, x);
    }
  }
};

}  // namespace parallel
