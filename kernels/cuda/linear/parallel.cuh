// The quadratic form of linear attention: every token with every earlier one, without intermediate states.
//
//   o_i = scale (exp(G_i) q_i' S_0 + sum_{j <= i} D_ij (q_i.k_j) v_j),   D_ij = exp(g_{j+1} + ... + g_i)
//
// The naive loop computes a score for each pair of tokens, multiplies it by D, and adds the value. Here a block of threads has
// ROWS tokens and COLUMNS columns of their answers in registers, and iterates over the keys, KEYS at a time.
//
//  1. Scores of a tile are accumulated over SLAB dims of queries and keys at a time, so that a head may have any number of
//     dims. The norms of rows to be normalised are summed alongside, and multiply the finished scores.
//  2. Keys are visited from the last back to the first. The logarithms between a key and the block's first token then are a
//     running sum, f64, and tokens before the key do not matter.
//  3. D is the product of a factor of the row and one of the key, split at the block's first token. The latter is the key's
//     factor in the state before the block, the former the state's in the answer, so that both stay in range if the recurrence
//     does. If a key is among the rows, or a factor is beyond 2^100 in either direction, D is computed per pair, and is
//     applied to the score in steps if it is beyond f32.
//  4. A logarithm of -inf clears by selection: a pair with one between its tokens has no weight, for any value, and no earlier
//     tile is visited. Logarithms of -inf are counted, not summed. A NaN makes all later answers NaN.
//  5. The state before all tokens comes last: rows of queries are its scores, and its rows are the values.
//  6. Values that are not finite must not reach tokens that do not see them: a block that encounters one selects.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"

namespace parallel {

constexpr int THREADS = 128, ROWS = 64, KEYS = 32, COLUMNS = 64, SLAB = 32;
// Bytes per row of a slab or of scores, and per row of values.
constexpr int ROW_BYTES = SLAB * 4 + 16, VALUE_BYTES = COLUMNS * 4;
constexpr int KEYS_AT = ROWS * ROW_BYTES, SCORES_AT = KEYS_AT + KEYS * ROW_BYTES, VALUES_AT = SCORES_AT + ROWS * ROW_BYTES;
// For each row, then for each key: the sum of logarithms in two words, the number that clear, the gate, and one over the norm.
constexpr int SUMS_AT = VALUES_AT + KEYS * VALUE_BYTES, CLEARS_AT = SUMS_AT + (ROWS + KEYS) * 8;
constexpr int GATES_AT = CLEARS_AT + (ROWS + KEYS) * 4, NORMS_AT = GATES_AT + 2 * ROWS * 4;
constexpr int SHARED_BYTES = NORMS_AT + (ROWS + KEYS) * 4;
static_assert(SLAB == KEYS, "rows of queries are scores of the state");
// Largest factor of a row or a key.
constexpr float MOST_GATE = 0x1p100f;

struct Block {
  const Linear& call;
  const SharedBytes sm;
  int head, state_head, number, row0, column0;
  Sequence sequence;
  f4 answer[8];  // rows thread / 16 + 8 i, columns thread % 16 * 4 ..

  INLINE Block(SharedBytes sm, const Linear& call) : call(call), sm(sm) {}

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

  // The logarithm of a token, zero for an absent one. If it clears, sets `clears` and returns zero.
  INLINE double logarithm(const Rows& gates, int position, bool& clears) const {
    clears = false;
    if (call.decay.data == 0 || position >= sequence.tokens) return 0.;
    const float g = element(row_at(gates, position), 0, gates.dtype);
    clears = g == NEG_INF;
    return clears ? 0. : (double)g;
  }

  // Stores dims x0 .. of COUNT rows from a position on, each times a factor, in shared memory, and sums their squares.
  template <int COUNT, class Factor>
  INLINE void bring(int at, const Rows& from, int first, int x0, float (&squares)[COUNT / 16], Factor factor) const {
    f4 quad[COUNT / 16];
    const int x = x0 + thread_index() % 8 * 4;
    UNROLL for (int i = 0; i < COUNT / 16; i++) {
      const int position = first + thread_index() / 8 + i * 16;
      quad[i] = zero4();
      if (position < sequence.tokens) quad[i] = load_row4(from, row_at(from, position), x);
    }
    UNROLL for (int i = 0; i < COUNT / 16; i++) {
      const int r = thread_index() / 8 + i * 16;
      const f4 y = unpacked(from, quad[i]);
      UNROLL for (int e = 0; e < 4; e++) squares[i] = __builtin_fmaf(y[e], y[e], squares[i]);
      store_shared(sm + at + r * ROW_BYTES + thread_index() % 8 * 16, y * factor(r));
    }
  }
  template <int COUNT> INLINE void finish_norms(int first, float (&squares)[COUNT / 16]) const {
    UNROLL for (int i = 0; i < COUNT / 16; i++) {
      UNROLL for (int bit = 1; bit < 8; bit *= 2) squares[i] += shuffle_xor(squares[i], bit);
      const float norm = has(NORMALIZE) ? 1.f / __builtin_sqrtf(squares[i] + call.epsilon) : 1.f;
      if (thread_index() % 8 == 0) set(NORMS_AT, first + thread_index() / 8 + i * 16, norm);
    }
  }

  // A score times the gates of a row and of a key before the rows.
  INLINE float gated_score(float s, int r, int j) const {
    const float a = number_at(GATES_AT, r), b = number_at(GATES_AT, ROWS + j);
    const bool good = a <= MOST_GATE && b <= MOST_GATE && (a >= 1.f / MOST_GATE || b <= 1.f) && (b >= 1.f / MOST_GATE || a <= 1.f);
    return RARELY(!good) ? grown(sum_of(r) + sum_of(ROWS + j), s, 0.f) : s * (a * b);
  }

  // Adds scores times values. Unless all values are `finite`, pairs that do not see each other are skipped, and each value is
  // multiplied twice by the row's `again`.
  template <class Sees, class Again> INLINE void add(bool finite, Sees sees, Again again) {
    const int group = thread_index() / 16;
    const SharedBytes values = sm + VALUES_AT + thread_index() % 16 * 16;
    if (RARELY(!finite)) {
      NO_UNROLL for (int j = 0; j < KEYS; j++) {
        const f4 v = load_shared(values + j * VALUE_BYTES);
        UNROLL for (int i = 0; i < 8; i++) {
          const int r = group + 8 * i;
          if (sees(r, j)) add_product(answer[i], load_shared_f(sm + SCORES_AT + r * ROW_BYTES + j * 4), v * again(r) * again(r));
        }
      }
      return;
    }
    NO_UNROLL for (int j = 0; j < KEYS; j += 4) {
      f4 score[8];
      UNROLL for (int i = 0; i < 8; i++) score[i] = load_shared(sm + SCORES_AT + (group + 8 * i) * ROW_BYTES + j * 4);
      UNROLL for (int e = 0; e < 4; e++) {
        const f4 v = load_shared(values + (j + e) * VALUE_BYTES);
        UNROLL for (int i = 0; i < 8; i++) add_product(answer[i], score[i][e], v);
      }
    }
  }

  // Stores four columns of KEYS rows in shared memory, with zeros for absent rows. Returns whether this thread's values are
  // finite.
  template <class Load> INLINE bool bring_values(Load load) const {
    bool finite = true;
    UNROLL for (int i = 0; i < KEYS / 8; i++) {
      const int j = thread_index() / 16 + 8 * i, column = column0 + thread_index() % 16 * 4;
      const f4 v = load(j, column);
      finite = finite && is_finite(v);
      store_shared(sm + VALUES_AT + j * VALUE_BYTES + thread_index() % 16 * 16, v);
    }
    return finite;
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
    if (row0 >= sequence.tokens) return;
    const Rows queries = rows(call.query, quotient_of(head, call.by_sharers), call.key_dim, call.dtype, QUERY_VEC4);
    const Rows keys = rows(call.key, quotient_of(state_head, call.by_key_group), call.key_dim, call.dtype, KEY_VEC4);
    const Rows values = rows(call.value, state_head, call.value_dim, call.dtype, VALUE_VEC4);
    const Rows gates = rows(call.decay, state_head, 1, call.gate_dtype, 0);
    const int lane = thread_index() & 31;

    if (thread_index() < ROWS) {
      double sum = 0.;
      int count = 0;
      NO_UNROLL for (int t = 0; t <= thread_index(); t++) {
        bool clears;
        const double g = logarithm(gates, row0 + t, clears);
        sum = clears ? 0. : sum + g;  // a logarithm that clears leaves only the later rows
        count += clears ? 1 : 0;
      }
      set_sum(thread_index(), sum);
      set(CLEARS_AT, thread_index(), (float)count);
      set(GATES_AT, thread_index(), exp_of(sum));
    }
    UNROLL for (int i = 0; i < 8; i++) answer[i] = zero4();

    // For the tokens from the end of a tile to the block's first: the sum of their logarithms, and the number of those that
    // clear.
    double between = 0.;
    int cleared = 0;
    const int end = min_of(row0 + ROWS, sequence.tokens);
    NO_UNROLL for (int key0 = (end - 1) / KEYS * KEYS; key0 >= 0 && cleared == 0; key0 -= KEYS) {
      const bool among = key0 >= row0;
      bool clears;
      const double own = logarithm(gates, key0 + lane, clears);
      double after = between;
      const unsigned clearing = among ? 0 : ballot(clears);
      if (!among) {
        NO_UNROLL for (int t = KEYS - 1; t >= 0; t--) {
          const unsigned long long bits = bits_of_double(own);
          const unsigned high = shuffle_from((unsigned)(bits >> 32), t), low = shuffle_from((unsigned)bits, t);
          const double other = double_of_bits((unsigned long long)high << 32 | low);
          between += other;
          after += t > lane ? other : 0.;
        }
      }
      sync_block();  // the data of the previous tile is no longer needed
      if (thread_index() < KEYS) {
        const unsigned later = lane == 31 ? 0 : clearing >> (lane + 1);
        set(GATES_AT, ROWS + lane, exp_of(after));
        set_sum(ROWS + lane, after);
        set(CLEARS_AT, ROWS + lane, later != 0 ? 1.f : 0.f);
      }
      const bool finite = bring_values([&](int j, int column) LAMBDA {
        if (key0 + j >= sequence.tokens) return zero4();
        return unpacked(values, load_row4(values, row_at(values, key0 + j), column));
      });

      // Scores of rows thread / 8 + 16 a and keys thread % 8 + 8 b.
      const int row = thread_index() / 8, key = thread_index() % 8;
      float score[4][4], of_rows[ROWS / 16], of_keys[KEYS / 16];
      UNROLL for (int a = 0; a < 4; a++) {
        of_rows[a] = 0.f;
        UNROLL for (int b = 0; b < 4; b++) score[a][b] = 0.f;
      }
      of_keys[0] = of_keys[1] = 0.f;
      NO_UNROLL for (int x0 = 0; x0 < call.key_dim; x0 += SLAB) {
        auto plain = [](int) LAMBDA { return 1.f; };
        bring<ROWS>(0, queries, row0, x0, of_rows, plain);
        bring<KEYS>(KEYS_AT, keys, key0, x0, of_keys, plain);
        sync_block();
        NO_UNROLL for (int x = 0; x < SLAB; x += 4) {
          f4 q[4], k[4];
          UNROLL for (int a = 0; a < 4; a++) q[a] = load_shared(sm + (row + a * 16) * ROW_BYTES + x * 4);
          UNROLL for (int b = 0; b < 4; b++) k[b] = load_shared(sm + KEYS_AT + (key + b * 8) * ROW_BYTES + x * 4);
          UNROLL for (int e = 0; e < 4; e++)
            UNROLL for (int a = 0; a < 4; a++)
              UNROLL for (int b = 0; b < 4; b++) score[a][b] = __builtin_fmaf(q[a][e], k[b][e], score[a][b]);
        }
        sync_block();
      }
      finish_norms<ROWS>(0, of_rows);
      finish_norms<KEYS>(ROWS, of_keys);
      sync_block();
      auto sees = [&](int r, int j) LAMBDA {
        const float clears = number_at(CLEARS_AT, r);
        const int other = key0 - row0 + j;
        return among ? other <= r && clears == number_at(CLEARS_AT, other)
                     : clears == 0.f && number_at(CLEARS_AT, ROWS + j) == 0.f;
      };
      NO_UNROLL for (int n = 0; n < 16; n++) {  // each step puts the next score in the last place
        const int r = row + n / 4 * 16, j = key + n % 4 * 8;
        float s = score[0][0];
        UNROLL for (int o = 1; o < 16; o++) score[(o - 1) / 4][(o - 1) % 4] = score[o / 4][o % 4];
        s = s * number_at(NORMS_AT, r) * number_at(NORMS_AT, ROWS + j);
        s = among ? grown(sum_of(r) - sum_of(key0 - row0 + j), s, 0.f) : gated_score(s, r, j);
        store_shared_f(sm + SCORES_AT + r * ROW_BYTES + j * 4, sees(r, j) ? s : 0.f);
      }
      const bool all_finite = !any_of_block(!finite);
      add(all_finite, sees, [](int) LAMBDA { return 1.f; });
      cleared = clearing != 0 ? 1 : 0;
    }

    if (cleared == 0) {
      sync_block();
      // From here on the gate of a row is that of all tokens up to it. A gate beyond f32 is replaced by the gate of half the
      // logarithm, which is applied to the state twice.
      bool beyond = false;
      if (thread_index() < ROWS) {
        const float gate = gate_of_sum(sum_of(thread_index()) + between);
        beyond = gate < 0.f;
        set(GATES_AT, thread_index(), beyond ? 1.f : gate);
        set(GATES_AT, ROWS + thread_index(), beyond ? -gate : 1.f);
      }
      const bool any_beyond = any_of_block(beyond);
      auto sees = [&](int r, int) LAMBDA { return number_at(CLEARS_AT, r) == 0.f; };
      const States& s = call.initial;
      if (s.data == 0) {
        UNROLL for (int i = 0; i < 8; i++) {
          const int r = thread_index() / 16 + 8 * i;
          const float gate = number_at(GATES_AT, r);
          if (sees(r, 0) && gate != gate) answer[i] = answer[i] + f4{gate, gate, gate, gate};
        }
      } else {
        NO_UNROLL for (int x0 = 0; x0 < call.key_dim; x0 += KEYS) {
          float ignored[ROWS / 16];
          UNROLL for (int i = 0; i < ROWS / 16; i++) ignored[i] = 0.f;
          bring<ROWS>(SCORES_AT, queries, row0, x0, ignored, [&](int r) LAMBDA {
            return sees(r, 0) ? number_at(NORMS_AT, r) * number_at(GATES_AT, r) : 0.f;
          });
          const bool finite = bring_values([&](int j, int column) LAMBDA {
            f4 v = zero4();
            if (x0 + j >= call.key_dim) return v;
            const Address at = s.data + (number * s.sequence + state_head * s.head + (x0 + j) * s.row + column) * 4;
            UNROLL for (int c = 0; c < 4; c++)
              if (column + c < call.value_dim) v[c] = read_f32(at + c * 4);
            return v;
          });
          const bool all_finite = !any_of_block(!finite);
          add(all_finite && !any_beyond, sees, [&](int r) LAMBDA { return number_at(GATES_AT, ROWS + r); });
          sync_block();
        }
      }
    }

    const Rows answers = rows(call.output, head, call.value_dim, call.output_dtype, OUTPUT_VEC4);
    const Rows partials = rows(call.partial, head, call.value_dim, TYPE_F32, PARTIAL_VEC4);
    NO_UNROLL for (int i = 0; i < 8; i++) {  // each step moves the next row to the first place
      const int position = row0 + thread_index() / 16 + 8 * i, column = column0 + thread_index() % 16 * 4;
      const f4 x = answer[0] * call.scale;
      UNROLL for (int o = 1; o < 8; o++) answer[o - 1] = answer[o];
      if (position < sequence.tokens && column < call.value_dim)
        write_row4(answers, partials, call.partial.data != 0, position, column, x);
    }
  }
};

}  // namespace parallel
