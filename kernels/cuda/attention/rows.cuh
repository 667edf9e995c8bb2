// Phase one for few query rows, as in decoding: a block has ROWS rows of a group of heads and a split of the keys.
//
//   s_ij = factor * (q_i . k_j)          scores in base-2 units
//   m_i near max_j s_ij,  S_i = sum_j 2^(s_ij - m_i),  W_i = sum_j 2^(s_ij - m_i) v_j
//
// The naive loop assigns a row to a warp, which reads every key for one row and sums each score over all lanes. With
// few rows, reading dominates the time, so a block here reads every key and value once, straight into registers, for
// all of its rows.
//
// 1. LANES lanes hold a row of D dims, four dims (or two times four) each, so that a load of a warp covers whole
//    adjacent rows. The lanes of a row form a group, and a block has PARTS groups.
// 2. Keys are distributed over the groups round by round. A group loads KEYS keys and as many values one round early,
//    the keys as soon as the scores of the round are summed and the values at its end. Each group keeps its own state
//    per row, so no group waits for another. Rounds whose rows are partly in the past, or cannot be read four elements
//    at a time, load at their beginning.
// 3. The ROWS * KEYS scores of a round are summed over the lanes together: at each step a lane sends half of its
//    scores and keeps the other half, until it has one: row lane % 4, key lane / 4. Only that lane computes the
//    weight. Weights reach all lanes through shared memory.
// 4. Every FLUSH rounds the sums are added to outer sums, because a rounding error grows with the length of its chain.
// 5. At the end the states of the groups are combined in shared memory in a balanced tree, with a warp per row.
// 6. A weight of positive zero marks a masked key, whose value is ignored because it may be NaN. Rows past the last
//    one repeat it and are not written.
// 7. The last block to finish of those that compute the splits of the same rows can merge the splits (arrival.cuh).
#pragma once

#include "../common/elements.cuh"
#include "added.cuh"
#include "arrival.cuh"
#include "merge.cuh"

constexpr int WARPS = 4;
constexpr int ROWS = 4;  // one row per component of an f4 and, at the end, one row per warp

template <int D> struct Groups {
  enum {
    LANES = D < 128 ? D / 4 : 32,
    PARTS = WARPS * 32 / LANES,
    VECS = D / (LANES * 4),   // float4 groups of dims per lane
    KEYS = D < 128 ? 4 : D == 128 ? 8 : 2,  // keys per group and round
    FLUSH = 256 / KEYS,       // rounds between additions to the outer sums
    WIDE = (D + 127) / 128,   // groups of four columns per lane, when a warp has a row
    STATES_AT = ROWS * PARTS * D * 4,
    WEIGHTS_AT = STATES_AT + ROWS * PARTS * 8,
    SHARED_BYTES = WEIGHTS_AT + WARPS * 128,
  };
};

// Combines the states of the groups for row `r` of the block, in a balanced tree, and writes the columns of the warp's lane,
// unless the row is not `there`.
template <bool B16, int D>
INLINE void finish_row(SharedBytes sm, const Call& call, const Share& share, int r, int column, int token, int head, long long row,
                       bool there) {
  typedef Groups<D> G;
  constexpr int PARTS = G::PARTS;
  float reference[PARTS], sum[PARTS];
  f4 w[PARTS][G::WIDE];
  UNROLL for (int p = 0; p < PARTS; p++) {
    const SharedBytes state = sm + G::STATES_AT + (r * PARTS + p) * 8;
    reference[p] = load_shared_f(state);
    sum[p] = load_shared_f(state + 4);
    UNROLL for (int h = 0; h < G::WIDE; h++) {
      w[p][h] = zero4();
      if (column + h * 128 < D) w[p][h] = load_shared(sm + ((r * PARTS + p) * D + column + h * 128) * 4);
    }
  }
  UNROLL for (int stride = 1; stride < PARTS; stride *= 2)
    UNROLL for (int p = 0; p < PARTS; p += 2 * stride) {
      const Merge merge = merge_of(reference[p], reference[p + stride]);
      reference[p] = merge.m;
      sum[p] = merge_apply(merge, sum[p], sum[p + stride]);
      UNROLL for (int h = 0; h < G::WIDE; h++)
        merge_into(merge, w[p][h], w[p + stride][h]);
    }

  const bool empty = reference[0] == NO_KEY && sum[0] == 0.f;
  const float kept = reference[0] == NO_KEY ? NEG_INF : reference[0];
  const long long part_row = row * call.splits + share.split;
  const Address out = output_row(call, share.sequence.batch, head, share.sequence.query0 + token);
  UNROLL for (int h = 0; h < G::WIDE; h++) {
    const int x = column + h * 128;
    if (call.part_ms == 0) {
      if (there && x < call.value_dim)
        write_quotient4(call, out, x, w[0][h], sum[0], empty, B16 ? call.dtype : TYPE_F32);
    } else if (there && x < call.part_dim && !empty) {
      write_f4(call.part_w + (part_row * call.part_dim + x) * 4, w[0][h]);
    }
  }
  if (there && column == 0) {
    if (call.part_ms != 0) write_f2(call.part_ms + part_row * 8, f2{kept, sum[0]});
    else if (call.lse != 0) write_f32(call.lse + row * 4, log_sum_exp(kept, sum[0]));
  }
}

template <bool B16, int D, bool MERGES> INLINE void attend_rows(SharedBytes sm, const Call& call) {
  typedef Groups<D> G;
  typedef typename Raw<B16>::Type Raw4;
  constexpr int LANES = G::LANES, PARTS = G::PARTS, VECS = G::VECS, KEYS = G::KEYS, SIZE = B16 ? 2 : 4;
  static_assert(ROWS * KEYS <= LANES && ROWS == WARPS, "");
  const int lane = thread_index() % LANES, part = thread_index() / LANES;
  const SharedBytes warp_weights = sm + G::WEIGHTS_AT + (thread_index() >> 5) * 128;
  const SharedBytes own_weight = warp_weights + (thread_index() & 31) * 4;
  const SharedBytes group_weights = warp_weights + (thread_index() & 31) / LANES * (LANES * 4);

  const Share share = share_of(call, block_index(), call.group);
  const Sequence& seq = share.sequence;
  const int rows = seq.queries * call.group, row0 = share.row_block * ROWS;
  if (row0 >= rows) return;
  const int last = min_of(row0 + ROWS, rows) - 1, kv_head = quotient_of(share.head, call.by_group);
  auto token_of = [&](int row) LAMBDA { return quotient_of(row, call.by_group); };
  auto head_of = [&](int row, int token) LAMBDA { return share.head + row - token * call.group; };
  const int first = share.split * call.chunk;
  const int kbeg = max_of(first, range_of(seq, token_of(row0)).start);
  const int kend = min_of(first + call.chunk, range_of(seq, token_of(last)).end);

  // Row and key of the round whose score this lane owns.
  const int own_row = min_of(row0 + lane % ROWS, last), own_key = lane / ROWS % KEYS * PARTS + part;
  const int own_token = token_of(own_row), own_head = head_of(own_row, own_token);
  const Range own_range = range_of(seq, own_token);
  const int own_end = min_of(own_range.end, kend);
  float m = NO_KEY, inner_sum = 0.f, outer_sum = 0.f;

  f4 query[ROWS][VECS], inner[ROWS][VECS], outer[ROWS][VECS];
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int h = 0; h < VECS; h++) inner[r][h] = outer[r][h] = zero4();
  Raw4 raw[ROWS][VECS];
  auto load_query = [&](Raw4 (&to)[VECS], int row, bool vec4) LAMBDA {
    const int token = token_of(row);
    const Address at = query_row(call, seq, head_of(row, token), token, SIZE);
    UNROLL for (int h = 0; h < VECS; h++) load4_checked(to[h], at, lane * 4 + h * LANES * 4, call.head_dim, vec4);
  };
  if (call.flags & QUERY_VEC4) {  // loads all rows at once; they are used after keys and values have been requested
    UNROLL for (int r = 0; r < ROWS; r++) load_query(raw[r], min_of(row0 + r, last), true);
  } else {
    NO_UNROLL for (int r = 0; r < ROWS; r++) {  // each step puts the next row in the last place
      UNROLL for (int o = 1; o < ROWS; o++)
        UNROLL for (int h = 0; h < VECS; h++) raw[o - 1][h] = raw[o][h];
      load_query(raw[ROWS - 1], min_of(row0 + r, last), false);
    }
  }

  // Rows of the past and of the new keys, both addressed from key zero.
  struct Rows {
    Address zero;
    long long step;
  };
  auto rows_of = [&](const Tensor& t, int token) LAMBDA -> Rows {
    return Rows{t.data + row_offset(t, seq.batch, kv_head, token) * SIZE, t.token * SIZE};
  };
  const Rows k_old = rows_of(call.past_key, 0), k_new = rows_of(call.key, seq.key0 - seq.past);
  const Rows v_old = rows_of(call.past_value, 0), v_new = rows_of(call.value, seq.key0 - seq.past);
  auto row_of_key = [&](const Rows& old, const Rows& fresh, int key) LAMBDA -> Address {
    return key < seq.past ? old.zero + key * old.step : fresh.zero + key * fresh.step;
  };
  const bool vec4 = (call.flags & KEY_VEC4) != 0 && (call.flags & VALUE_VEC4) != 0;
  // Whether the rows of the round from key k0 on are read one round early.
  constexpr int ROUND = PARTS * KEYS;
  auto is_early = [&](int k0) LAMBDA { return vec4 && (k0 >= seq.past || k0 + ROUND <= seq.past); };
  auto load_early = [&](Raw4 (&to)[KEYS][VECS], const Rows& old, const Rows& fresh, int dim, int k0) LAMBDA {
    const bool past = k0 < seq.past;
    const int step = (int)(past ? old.step : fresh.step);
    const Address from = (past ? old.zero : fresh.zero) + (long long)(k0 + part) * step + lane * (4 * SIZE);
    UNROLL for (int u = 0; u < KEYS; u++)
      UNROLL for (int h = 0; h < VECS; h++) {
        clear(to[u][h]);
        if (k0 + u * PARTS + part < kend && lane * 4 + h * LANES * 4 < dim)
          load4(to[u][h], from + (long long)(u * PARTS * step) + h * (LANES * 4 * SIZE));
      }
  };
  Raw4 keys[KEYS][VECS], values[KEYS][VECS];
  if (is_early(kbeg)) {
    load_early(keys, k_old, k_new, call.head_dim, kbeg);
    load_early(values, v_old, v_new, call.value_dim, kbeg);
  }
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int h = 0; h < VECS; h++) query[r][h] = to_f32(raw[r][h], call.dtype) * call.query_factor;

  int rounds = 0;
  NO_UNROLL for (int k0 = kbeg; k0 < kend; k0 += ROUND) {
    if (!is_early(k0)) {  // each step puts the next key in the last place, which keeps the code small
      NO_UNROLL for (int u = 0; u < KEYS; u++) {
        UNROLL for (int o = 1; o < KEYS; o++)
          UNROLL for (int h = 0; h < VECS; h++) {
            keys[o - 1][h] = keys[o][h];
            values[o - 1][h] = values[o][h];
          }
        const int key = k0 + u * PARTS + part;
        const Address k = row_of_key(k_old, k_new, key), v = row_of_key(v_old, v_new, key);
        UNROLL for (int h = 0; h < VECS; h++) {
          const int x = lane * 4 + h * LANES * 4;
          load4_checked(keys[KEYS - 1][h], k, x, key < kend ? call.head_dim : 0, vec4);
          load4_checked(values[KEYS - 1][h], v, x, key < kend ? call.value_dim : 0, vec4);
        }
      }
    }

    float s[KEYS * ROWS];  // scores, at first summed over the dims of this lane only
    UNROLL for (int u = 0; u < KEYS; u++) {
      UNROLL for (int r = 0; r < ROWS; r++) s[u * ROWS + r] = 0.f;
      UNROLL for (int h = 0; h < VECS; h++) {
        const f4 k = to_f32(keys[u][h], call.dtype);
        UNROLL for (int r = 0; r < ROWS; r++)
          UNROLL for (int e = 0; e < 4; e++) s[u * ROWS + r] = __builtin_fmaf(query[r][h][e], k[e], s[u * ROWS + r]);
      }
    }
    const bool early = k0 + ROUND < kend && is_early(k0 + ROUND);
    if (early) load_early(keys, k_old, k_new, call.head_dim, k0 + ROUND);
    UNROLL for (int bit = 1; bit < ROWS * KEYS; bit *= 2) {
      const bool high = (lane & bit) != 0;
      UNROLL for (int i = 0; i < ROWS * KEYS / (2 * bit); i++) {
        const float a = s[2 * i], b = s[2 * i + 1];
        s[i] = (high ? b : a) + shuffle_xor(high ? a : b, bit);
      }
    }
    float x = s[0];
    UNROLL for (int bit = ROWS * KEYS; bit < LANES; bit *= 2) x += shuffle_xor(x, bit);

    const int key = k0 + own_key;
    if (call.cap != 0.f) x = soft_cap(call, x);
    if (key < own_range.start || key >= own_end) {
      x = NEG_INF;
    } else if (call.changes != 0) {
      x = changed(x, added_to(call, seq, own_head, own_token, key));
    }
    float top = x;
    UNROLL for (int bit = ROWS; bit < ROWS * KEYS; bit *= 2) top = max2(top, shuffle_xor(top, bit));
    const bool raise = top > limit_of(m);
    if (any_of_warp(raise)) {
      const Merge merge = merge_of(m, raise ? __builtin_rintf(top) : m);
      m = merge.m;
      inner_sum *= merge.earlier;
      outer_sum *= merge.earlier;
      store_shared_f(own_weight, merge.earlier);
      sync_warp();
      const f4 factors = load_shared(group_weights);
      sync_warp();
      UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int h = 0; h < VECS; h++) {
          inner[r][h] = inner[r][h] * factors[r];
          outer[r][h] = outer[r][h] * factors[r];
        }
    }
    const float weight = signed_weight(x, m);
    inner_sum += weight;
    store_shared_f(own_weight, weight);
    if (any_of_warp(is_absent(weight))) {
      sync_warp();
      NO_UNROLL for (int u = 0; u < KEYS; u++) {  // each step moves the next value to the first place
        const f4 weights = load_shared(group_weights + u * 16);
        UNROLL for (int h = 0; h < VECS; h++) {
          const f4 v = to_f32(values[0][h], call.dtype);
          UNROLL for (int o = 1; o < KEYS; o++) values[o - 1][h] = values[o][h];
          UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int e = 0; e < 4; e++) {
              const float y = __builtin_fmaf(weights[r], v[e], inner[r][h][e]);
              inner[r][h][e] = is_absent(weights[r]) ? inner[r][h][e] : y;
            }
        }
      }
    } else {
      sync_warp();
      UNROLL for (int u = 0; u < KEYS; u++) {
        const f4 weights = load_shared(group_weights + u * 16);
        UNROLL for (int h = 0; h < VECS; h++) {
          const f4 v = to_f32(values[u][h], call.dtype);
          UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int e = 0; e < 4; e++) inner[r][h][e] = __builtin_fmaf(weights[r], v[e], inner[r][h][e]);
        }
      }
    }
    if (early) load_early(values, v_old, v_new, call.value_dim, k0 + ROUND);
    sync_warp();

    if (++rounds == G::FLUSH) {
      rounds = 0;
      outer_sum += inner_sum;
      inner_sum = 0.f;
      UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int h = 0; h < VECS; h++) {
          outer[r][h] = outer[r][h] + inner[r][h];
          inner[r][h] = zero4();
        }
    }
  }

  float total = outer_sum + inner_sum;
  UNROLL for (int bit = ROWS; bit < ROWS * KEYS; bit *= 2) total += shuffle_xor(total, bit);
  if (lane < ROWS) {
    const SharedBytes state = sm + G::STATES_AT + (lane * PARTS + part) * 8;
    store_shared_f(state, m);
    store_shared_f(state + 4, total);
  }
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int h = 0; h < VECS; h++)
      store_shared(sm + ((r * PARTS + part) * D + lane * 4 + h * LANES * 4) * 4, outer[r][h] + inner[r][h]);
  sync_block();

  const int r = thread_index() >> 5, column = (thread_index() & 31) * 4;
  const bool there = row0 + r <= last;
  if (!there && !(MERGES && last_merges(call))) return;
  const int own = min_of(row0 + r, last), token = token_of(own), head = head_of(own, token);
  const long long row = row_number(call, seq, head, token);
  finish_row<B16, D>(sm, call, share, r, column, token, head, row, there);
  if constexpr (MERGES) {
    if (!last_merges(call) || !is_last_split(call, share) || !there) return;
    merge_group<MERGED, false>(call, JustWritten{}, Unlimited{}, row, 0, 1, column / 4, 32, true, true);
  }
}

// Parameters: name, 16-bit elements, largest head size, blocks per SM.
#define ATTEND_ROWS(name, B16, D, BLOCKS)                                                         \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Call call) {                            \
    SHARED(memory, Groups<D>::SHARED_BYTES);                                                       \
    attend_rows<B16, D, false>(memory, call);                                                     \
  }
// Like ATTEND_ROWS, for kernels whose last block of a row block can merge up to MERGED splits.
#define ATTEND_ROWS_MERGED(name, B16, D, BLOCKS)                                                   \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Call call) {                            \
    SHARED(memory, Groups<D>::SHARED_BYTES);                                                       \
    attend_rows<B16, D, true>(memory, call);                                                      \
  }
