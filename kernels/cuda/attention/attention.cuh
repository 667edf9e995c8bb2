// Exact softmax attention, tiles of queries and keys in registers and shared memory.
//
//   s_ij = factor * (q_i . k_j)          scores in units of log 2, then the soft cap and the mask
//   m_i near max_j s_ij,  S_i = sum_j 2^(s_ij - m_i),  W_i = sum_j 2^(s_ij - m_i) v_j,  out_i = W_i / S_i
//
// The naive loop, for a block of BM query rows:
//
//   for each tile of 64 keys
//     s = Q K'                                    BM x 64
//     m' = max(m, max_j s)                        W *= 2^(m - m'), S *= 2^(m - m')
//     p = 2^(s - m'), S += sum_j p, W += p V
//
// Why the code differs:
//
//  1. A lane owns TM x TN scores and TM x D / LANE_COLS elements of W. Each 16 bytes that it reads from shared memory
//     meet many multiply-adds. A warp owns its rows alone, so its weights never leave it.
//  2. Shared memory holds Q for the whole block, transposed and scaled, and an exchange area: in turn the keys of a
//     tile (transposed, KD dims at a time), then stages of VK values beside the weights that meet them.
//  3. Tiles that every row attends in full, and whose rows lie side by side in memory, are plain. They have a loop of
//     their own, in which nothing is asked: what the area takes next travels through registers one step early, and
//     every path writes or forgets those registers, since on a path that left them alone they would count as live round
//     the loop. All other tiles are edges: less code, each row and dim checked, loaded when it is stored.
//  4. Lanes that differ in bit 0 have the same columns, lanes that differ in bit 1 the same rows, and 16-byte chunks
//     are permuted by exclusive or: loads take the fewest cycles and stores meet no bank conflict.
//  5. The keys of a tile are dealt to columns like cards: column j of lane group g is key j * LANE_COLS + g. A
//     column of weights is then a run of keys, and so is a stage of values.
//  6. What derives from the thread or the block is computed where it is used (`opaque`): kept, it would cost
//     registers that the products need.
//  7. A row's reference moves only when a score exceeds it by HEADROOM, for which a warp votes, and then to a whole
//     number, so that rescaling is exact.
//  8. The rounding error of a sum grows with its chain: every FLUSH tiles the sums are added to memory, to the
//     output row or the partial state. A lane owns what it touches there.
//  9. Masks, ranges and the soft cap are a pass of their own over the scores of an edge. It walks the columns by turning
//     registers, which keeps it small. A key that is not attended has the score -inf by selection, and weighs zero; a
//     key that is attended weighs at least 2^WEIGHT_FLOOR there. Where a stage of values holds a NaN or an infinity,
//     its product passes over weights of zero.
//
// 10. PAIRED takes halves alone and multiplies them in plain tiles without widening: a word of shared memory holds
//     two neighbouring dims, and half2_fma sums even and odd dims apart. After CHAIN words both sums are widened and added
//     to the score, so that a relative error of at most CHAIN 2^-11 / (1 - CHAIN 2^-11) of sum |q k| is added to what
//     singles leave. Queries stay as they were given; the factor comes in when sums are widened. A sum beyond the halves is
//     an infinity, which makes a NaN of every row of its lane: never a wrong number that looks like a right one. Edges
//     widen before they multiply.
//
// One source serves all head sizes up to 256 and both widths of elements; everything else is data in `Call`.
#pragma once

#include "tile/mask.cuh"
#include "tile/memory.cuh"
#include "tile/queries.cuh"
#include "tile/result.cuh"
#include "tile/scores.cuh"
#include "tile/staging.cuh"
#include "tile/values.cuh"
#include "tile/weights.cuh"

// The work of a block.
template <class S> INLINE void Tiles<S>::run(SharedBytes sm, const Call& call) {
  const int tid = thread_index();
  int k0, end, full_from, full_to;
  const Share outset = share_of(call, block_index());
  {
    const Sequence& s = outset.sequence;
    const int row0 = first_row(call, outset);
    if (row0 >= s.queries) return;
    const Range first = range_of(s, row0), last = range_of(s, min_of(row0 + BM, s.queries) - 1);
    const int part = outset.split * call.chunk;
    k0 = max_of(part, first.start & ~(TILE - 1));
    end = min_of(part + call.chunk, last.end);
    full_from = last.start;
    full_to = !LEAN && (call.mask_kind != MASK_NONE || call.cap != 0.f) ? 0 : first.end;
  }
  Raw4 kr[K_ITEMS * 4], vr[V_ITEMS];
  int near_to = 0, plain_to = 0, key_step = 0, value_step = 0;
  Address near_key = 0, near_value = 0;
  bool ready;
  float acc[TM][AN], m[TM], sum[TM], s[TM][TN];
  unsigned odd_sums = 0;
  bool flushed = false;
  Tiles t = {full_from, full_to, sm, call, tid, kr, vr, value_step, near_value, key_step, near_key, plain_to, near_to, ready, acc, m, sum, s, flushed, odd_sums, k0};
  if (LEAN || k0 >= outset.sequence.past) t.approach(outset, outset.sequence.past);  // the past is left to the loop
  ready = k0 < end && k0 >= full_from && k0 < plain_to;
  if (ready) t.load_k(k0, 0);
  else t.drop_k();
  t.store_queries(call, outset);
  t.store_k();
  sync_block();
  UNROLL for (int i = 0; i < TM; i++) {
    m[i] = NO_KEY;
    sum[i] = 0.f;
    UNROLL for (int j = 0; j < AN; j++) acc[i][j] = 0.f;
  }
  NO_UNROLL while (k0 < end) {
    const bool flushes = !B16 || call.part_ms != 0;
    const int stop = flushes && end - k0 > FLUSH * TILE ? k0 + FLUSH * TILE : end;
    NO_UNROLL while (k0 < stop) {
      if (!LEAN && k0 + TILE > near_to) t.approach(t.here(), k0);
      if (k0 >= full_from && k0 < plain_to) {
        if (!ready) {
          t.load_k(k0, 0);
          t.store_k();
          sync_block();
        }
        const int halt = min_of(stop, plain_to), latest = min_of(end, plain_to) - TILE;
        NO_UNROLL do {
          ready = k0 < latest;
          t.attend<false>();
          k0 += TILE;
        } while (k0 < halt);
      } else {
        t.attend<true>();
        k0 += TILE;
      }
    }
    const bool more = stop < end, parts = call.part_ms != 0;
    if (more || parts || flushed) {
      t.exchange(t.home(t.here()), flushed, more || parts);
      flushed = true;
    }
  }
  t.finish();
}

// Takes in tile k0.
template <class S> template <bool EDGE> INLINE void Tiles<S>::attend() {
  Share share;
  if constexpr (EDGE) share = here();
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) s[i][j] = 0.f;
  NO_UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
    if constexpr (EDGE) {
      gather_k(share, k0, chunk);
      sync_block();
      store_k();
      sync_block();
    } else {
      if (chunk + 1 < CHUNKS) load_k(k0, chunk + 1);
      else load_v(k0, 0);
    }
    {
  const int t = opaque(tid), cg = lane_col(t);
  const int qc = (t >> 5) * (WARP_ROWS / 4) + lane_row(t) * (TM / 4);
  const SharedBytes queries = sm + chunk * KS * Q_STRIDE;
  constexpr int DIMS = !EDGE ? 8 : LEAN ? 1 : 2;  // words of a loop body
  f4 qa[2][TM / 4], kb[2][TN / 4];
  auto fragments = [&](int b, int it, int kk) LAMBDA {  // word it * DIMS + kk of the chunk
    const int low = DIMS == 8 ? (kk >> 2) & 1 : 0, high = DIMS == 8 ? (it & 3) << 1 : (it * DIMS >> 2) & 7;
    const int base = it * DIMS * Q_STRIDE + kk * Q_STRIDE;
    UNROLL for (int h = 0; h < TM / 4; h++)
      qa[b][h] = load_shared(queries + base + (TM == 8 && DIMS == 8 ? ((qc ^ high) << 4) + ((h ^ low) << 4)
                                                                    : ((qc + h) ^ (high | low)) << 4));
    UNROLL for (int h = 0; h < TN / 4; h++)
      kb[b][h] = load_shared(sm + X + ((cg ^ (high | low)) << 4) + it * (TILE * 4 * DIMS) + kk * (TILE * 4) +
                             h * 128);
  };
  if constexpr (DIMS > 1) fragments(0, 0, 0);
  constexpr bool IN_HALVES = PAIRS && !EDGE;
  unsigned pair[TM][TN];
  if constexpr (IN_HALVES) {
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) pair[i][j] = 0;
  }
  NO_UNROLL for (int it = 0; it < KS / DIMS; it++) {
    UNROLL for (int kk = 0; kk < DIMS; kk++) {
      const int b = kk & 1;
      if constexpr (DIMS == 1) fragments(0, it, 0);
      else if (kk + 1 < DIMS) fragments(b ^ 1, it, kk + 1);
      else fragments(b ^ 1, (it + 1) & (KS / DIMS - 1), 0);
      if constexpr (IN_HALVES) {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++)
            pair[i][j] = half2_fma(bits_of(qa[b][i >> 2][i & 3]), bits_of(kb[b][j >> 2][j & 3]), pair[i][j]);
      } else if constexpr (PAIRS) {
        NO_UNROLL for (int shift = 0; shift < 32; shift += 16) {
          float k[TN];
          UNROLL for (int j = 0; j < TN; j++) k[j] = f16_to_float(bits_of(kb[b][j >> 2][j & 3]) >> shift & 0xffff);
          UNROLL for (int i = 0; i < TM; i++) {
            const float x = f16_to_float(bits_of(qa[b][i >> 2][i & 3]) >> shift & 0xffff) * call.query_factor;
            UNROLL for (int j = 0; j < TN; j++) s[i][j] = __builtin_fmaf(x, k[j], s[i][j]);
          }
        }
      } else {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++)
            s[i][j] = __builtin_fmaf(qa[b][i >> 2][i & 3], kb[b][j >> 2][j & 3], s[i][j]);
      }
    }
    if constexpr (IN_HALVES) {
      static_assert(CHAIN % DIMS == 0 && KS % CHAIN == 0, "");
      if ((it + 1) % (CHAIN / DIMS) == 0) {
        const float by = call.query_factor;
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++) {
            const unsigned x = pair[i][j];
            s[i][j] = __builtin_fmaf(f16_to_float(x & 0xffff) + f16_to_float(x >> 16), by, s[i][j]);
            odd_sums = half2_fma(x, 0, odd_sums);
            pair[i][j] = 0;
          }
      }
    }
  }
    }
    if constexpr (EDGE) {
      if (chunk + 1 < CHUNKS) sync_block();
    } else if (chunk + 1 < CHUNKS) {
      sync_block();
      store_k();
      sync_block();
    }
  }
  const bool partial = EDGE && (k0 < full_from || k0 + TILE > full_to);
  if (partial) {
  const int t = opaque(tid);
  const Sequence& q = share.sequence;
  const int row = own_row(call, share, t);
  const long long diagonal = (long long)q.offset + row;
  const long long mask_at = mask_row(call, q, share.head, row);
  NO_UNROLL for (int j = 0; j < TN; j++) {
    const int key = k0 + j * LANE_COLS + lane_col(t);
    // Row i attends the key by length, causality and window when after < i <= before.
    const int before = q.left < 0 ? TM : clamped(key - diagonal + q.left, -1, TM);
    const int after = key >= q.reach ? TM : q.right < 0 ? -1 : clamped(key - diagonal - q.right - 1, -1, TM);
    float x[TM];
    bool out[TM];
    UNROLL for (int i = 0; i < TM; i++) {
      x[i] = s[i][0];
      UNROLL for (int n = 0; n + 1 < TN; n++) s[i][n] = s[i][n + 1];
      out[i] = before < i || after >= i || row + i >= q.queries;
    }
    if (!LEAN && call.cap != 0.f) {
      NO_UNROLL for (int i = 0; i < TM; i++) {
        const float y = soft_cap(call, x[0]);
        UNROLL for (int n = 0; n + 1 < TM; n++) x[n] = x[n + 1];
        x[TM - 1] = y;
      }
    }
    if (!LEAN && call.mask_kind != MASK_NONE) {
      // Elements are loaded before the first is looked at.
      unsigned raw[TM];
      const long long at = mask_at + key * call.mask_key;
      UNROLL for (int i = 0; i < TM; i++) raw[i] = 0;
      if (call.mask_kind == MASK_BOOL) {
        UNROLL for (int i = 0; i < TM; i++)
          if (!out[i]) raw[i] = load_u8(call.mask + (at + i * call.mask_query));
        UNROLL for (int i = 0; i < TM; i++) out[i] = raw[i] == 0;
      } else {
        if (call.mask_kind == MASK_F32) {
          UNROLL for (int i = 0; i < TM; i++)
            if (!out[i]) raw[i] = bits_of(load_f32(call.mask + (at + i * call.mask_query) * 4));
        } else {
          UNROLL for (int i = 0; i < TM; i++)
            if (!out[i]) raw[i] = load_u16(call.mask + (at + i * call.mask_query) * 2);
          UNROLL for (int i = 0; i < TM; i++)
            raw[i] = bits_of(call.mask_kind == MASK_F16 ? f16_to_float(raw[i]) : bf16_to_float(raw[i]));
        }
        UNROLL for (int i = 0; i < TM; i++) {
          const float bias = float_of_bits(raw[i]);
          out[i] = out[i] || bias == NEG_INF;
          x[i] = __builtin_fmaf(bias, LOG2E, x[i]);
        }
      }
    }
    UNROLL for (int i = 0; i < TM; i++) s[i][TN - 1] = out[i] ? NEG_INF : x[i];
  }
}

  if constexpr (EDGE && LEAN) {
  NO_UNROLL for (int i = 0; i < TM; i++) {
    float x = s[0][0];
    UNROLL for (int j = 1; j < TN; j++) x = max2(x, s[0][j]);
    if (any_of_warp(x > limit_of(m[0]))) {
      x = row_max(x);
      const float scale = raise(m[0], x);
      sum[0] *= scale;
      UNROLL for (int j = 0; j < AN; j++) acc[0][j] *= scale;
      if (flushed) {  // what lies in memory has the old reference
        const Home x = home(here());
        const int g = lane_col(opaque(tid));
        if (i < x.left) {
          rescale(x, i, g, scale);
        }
      }
    }
    const float reference = m[0], low = partial ? reference + WEIGHT_FLOOR : NEG_INF;
    float y[TN], r = 0.f;
    UNROLL for (int j = 0; j < TN; j++) {
      const float x = s[0][j];
      y[j] = exp2_fast(floored(x, low) - reference);
      r = j ? r + y[j] : y[j];
    }
    const float z = sum[0] + r;
    float first[AN];
    UNROLL for (int j = 0; j < AN; j++) first[j] = acc[0][j];
    UNROLL for (int n = 0; n + 1 < TM; n++) {
      UNROLL for (int j = 0; j < TN; j++) s[n][j] = s[n + 1][j];
      UNROLL for (int j = 0; j < AN; j++) acc[n][j] = acc[n + 1][j];
      m[n] = m[n + 1];
      sum[n] = sum[n + 1];
    }
    UNROLL for (int j = 0; j < TN; j++) s[TM - 1][j] = y[j];
    UNROLL for (int j = 0; j < AN; j++) acc[TM - 1][j] = first[j];
    m[TM - 1] = reference;
    sum[TM - 1] = z;
  }
} else {
  float mx[TM];
  bool need = false;
  UNROLL for (int i = 0; i < TM; i++) {
    mx[i] = s[i][0];
    UNROLL for (int j = 1; j < TN; j++) mx[i] = max2(mx[i], s[i][j]);
    need = need || mx[i] > limit_of(m[i]);
  }
  if (any_of_warp(need)) {
    float scale[TM];
    UNROLL for (int i = 0; i < TM; i++) {
      float x = mx[i];
      x = row_max(x);
      scale[i] = raise(m[i], x);
      sum[i] *= scale[i];
      UNROLL for (int j = 0; j < AN; j++) acc[i][j] *= scale[i];
    }
    if (flushed) {  // what lies in memory has the old reference
      const Home x = home(here());
      const int g = lane_col(opaque(tid));
      NO_UNROLL for (int i = 0; i < TM; i++) {
        if (i < x.left) {
          rescale(x, i, g, scale[0]);
        }
        UNROLL for (int n = 0; n + 1 < TM; n++) scale[n] = scale[n + 1];
      }
    }
  }
  if (partial) {
    NO_UNROLL for (int j = 0; j < TN; j++)
      UNROLL for (int i = 0; i < TM; i++) {
        const float low = m[i] + WEIGHT_FLOOR, x = s[i][0];
        UNROLL for (int n = 0; n + 1 < TN; n++) s[i][n] = s[i][n + 1];
        s[i][TN - 1] = floored(x, low);
      }
  }
  UNROLL for (int i = 0; i < TM; i++) {
    UNROLL for (int j = 0; j < TN; j++) s[i][j] = exp2_fast(s[i][j] - m[i]);
    float r = s[i][0];
    UNROLL for (int j = 1; j < TN; j++) r += s[i][j];
    sum[i] += r;
  }
}

  bool odd_values = false;
  const int t = opaque(tid);
  const Exchange x = {lane_col(t), lane_row(t) * (TM / 4), sm + XP + (t >> 5) * P_BYTES};
  if constexpr (!EDGE && STRAIGHT == 1) {
    UNROLL for (int stage = 0; stage < STAGES; stage++) {
      open<EDGE>(share, stage, partial, odd_values);
      NO_UNROLL for (int unit = 0; unit < UNITS_V; unit++) {
        put(x, stage * (UNITS_V * PC), (stage + 1) * (UNITS_V * PC));
        multiply<EDGE>(x, x.weights, sm + X + unit * (UK * V_STRIDE), odd_values);
      }
    }
  } else if constexpr (!EDGE && STRAIGHT == 2) {
    NO_UNROLL for (int stage = 0; stage < STAGES; stage++) {
      open<EDGE>(share, stage, partial, odd_values);
      UNROLL for (int unit = 0; unit < UNITS_V; unit++) {
        put(x, unit * PC, 0);
        multiply<EDGE>(x, x.weights, sm + X + unit * (UK * V_STRIDE), odd_values);
      }
      if (stage + 1 < STAGES) {
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j + UNITS_V * PC < TN; j++) s[i][j] = s[i][j + UNITS_V * PC];
      }
    }
  } else {
    NO_UNROLL for (int unit = 0; unit < UNITS; unit++) {
      if (unit % UNITS_V == 0) open<EDGE>(share, unit / UNITS_V, partial, odd_values);
      if (unit % UNITS_P == 0) put(x, 0, TN);
      multiply<EDGE>(x, x.weights + unit % UNITS_P * (UK * P_STRIDE), sm + X + unit % UNITS_V * (UK * V_STRIDE), odd_values);
    }
  }
  sync_block();  // the values are dead
  if constexpr (!EDGE) {
    if (ready) store_k();
    sync_block();
  }
}

// The kernel `name` of a shape, of which an SM of the newer GPUs is to hold BLOCKS blocks.
#define ATTENTION(name, IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, LEAN, BLOCKS)             \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Call call) {                              \
    typedef Tiles<Shape<IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, LEAN>> A;         \
    SHARED(memory, A::SHARED_BYTES);                                                                 \
A::run(memory, call);  \
  }
