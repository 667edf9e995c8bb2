// Phase one: attention of a block of query rows over a part of the keys, in registers and shared memory.
//
//   s_ij = factor * (q_i . k_j)          scores in units of log 2
//   m_i near max_j s_ij,  S_i = sum_j 2^(s_ij - m_i),  W_i = sum_j 2^(s_ij - m_i) v_j
//
// The naive loop walks the keys one by one for each row. Here a block of WARPS warps owns BM rows and walks tiles
// of 64 keys; a warp owns its rows alone, so weights never leave it. A lane holds TM x 8 scores and TM x (D / 8)
// sums. Both products read their operands from shared memory, 16 bytes at a time and free of bank conflicts.
//
// 1. Shared memory holds the queries, transposed and scaled, and an exchange area. The area holds in turn the
//    keys of a tile (transposed; where D > 96 in chunks of 32 dims, two at a time), and stages of its values
//    beside the weights that meet them.
// 2. Keys and values are loaded one step ahead into registers and stored to shared memory when the area is free.
//    On a path that loads nothing those registers are written too: they would count as live round the loop.
// 3. Lanes that differ in bit 0 have the same columns, lanes that differ in bits 1 and 2 ... the same rows: then a
//    16-byte load takes the fewest cycles for either operand. 16-byte chunks are permuted by exclusive or, so
//    that transposing stores meet no bank conflict.
// 4. Indices that derive from the thread are computed again where they are used (`opaque`): kept, they cost
//    registers that the products need.
// 5. A row's reference moves only when a score exceeds it by HEADROOM, for which a warp votes. References are
//    whole numbers, so that the rescale is exact.
// 6. The rounding error of a sum grows with its chain. Every FLUSH tiles the sums are added to the row in memory,
//    which no other lane touches.
// 7. What masks, ranges and the soft cap need lies apart from the products: a pass over the scores of a tile that
//    is not attended in full. It walks the columns by rotating registers, which keeps it small. Where a masked
//    key's value may be NaN or infinite, a product with selection takes the place of the fast one.
//
// One source serves all head sizes up to 256 and both widths of elements; everything else is data in `Call`.
#pragma once

#include "elements.cuh"
#include "finish.cuh"

constexpr int TILE = 64;  // keys of a tile
constexpr int TN = 8;     // score columns of a lane

// A warp is 4 x 8 lanes.
constexpr int LANE_COLS = 8;
INLINE int lane_col(int t) { return (t >> 1) & 7; }
INLINE int lane_row(int t) { return (t & 1) | ((t >> 3) & 2); }

// Where column group g of the weights shifts its chunks of rows, so that a warp stores them without conflicts.
template <int TM> INLINE int weight_shift(int g) {
  return TM == 8 ? (g & 1) | ((g & 2) << 1) | ((g & 4) >> 1) : (g & 2) | ((g >> 2) & 1);
}

template <int D, int WARPS, int TM> struct Shape {
  enum {
    WARP_ROWS = 4 * TM,
    BM = WARPS * WARP_ROWS,
    NT = WARPS * 32,
    QUERY_BYTES = BM * D * 4,
    CHUNK = D <= 96 ? D : 32,       // dims of keys in the exchange area at a time
    VALUES = D == 32 ? 64 : D == 64 ? 32 : D <= 128 ? 16 : 8,  // keys whose values are there at a time
    AREA = D == 96 ? 24576 : 16384,
    WEIGHTS_AT = 8192,
    WEIGHT_BYTES = 8192 / WARPS > 2048 ? 2048 : 8192 / WARPS,  // of a warp
    SHARED_BYTES = QUERY_BYTES + AREA,
  };
};

template <bool HALF, int D, int WARPS, int TM, bool UNROLL_VALUES, int FLUSH>
INLINE void attention(SharedBytes sm, const Call& call) {
  typedef Shape<D, WARPS, TM> S;
  typedef typename Raw<HALF>::Type Four;
  constexpr int BM = S::BM, NT = S::NT, CHUNK = S::CHUNK, VALUES = S::VALUES;
  constexpr int SIZE = HALF ? 2 : 4;
  constexpr int Q_STRIDE = BM * 4, P_STRIDE = S::WARP_ROWS * 4, V_STRIDE = D * 4;  // bytes
  constexpr int NV = D / 32;                       // groups of four columns of a lane
  constexpr int KF = CHUNK / 4, VF = D / 4;        // groups of four in a staged row
  constexpr int K_ITEMS = 16 * KF / NT;            // 4 x 4 blocks of keys that a thread stages
  constexpr int V_ITEMS = VALUES * VF / NT;        // groups of four of values that a thread stages
  constexpr int CHUNKS = D / CHUNK, STAGES = TILE / VALUES;
  constexpr int COLUMNS = TN / STAGES;             // score columns of a lane in a stage
  constexpr int FIT = S::WEIGHT_BYTES / (LANE_COLS * P_STRIDE);
  constexpr int STEP = FIT < COLUMNS ? FIT : COLUMNS;  // score columns of a lane in an exchange of weights
  constexpr bool EARLY_VALUES = D <= 192;           // beyond, sums leave no registers for values on their way
  constexpr int X = S::QUERY_BYTES, XP = X + S::WEIGHTS_AT;
  static_assert(K_ITEMS >= 1 && 16 * KF % NT == 0 && V_ITEMS >= 1 && VALUES * VF % NT == 0, "");
  static_assert(STEP >= 1 && COLUMNS % STEP == 0, "");
  static_assert(VALUES * V_STRIDE <= S::WEIGHTS_AT && S::SHARED_BYTES <= 49152, "");

  const int tid = thread_index();
  // The block's share, derived again wherever it is asked for: kept, it would cost a dozen registers.
  auto here = [&]() LAMBDA -> Share { return share_of(call, opaque(block_index())); };
  // Later blocks of rows have more keys when causal: they start first.
  auto row_of = [&](const Share& share) LAMBDA -> int { return (call.row_blocks - 1 - share.row_block) * BM; };

  // Keys that some row attends, within this part; keys that every row attends but for the mask.
  int kbeg, kend, whole_from, whole_to, past;
  Address key_base, value_base;  // where key zero would lie if the new keys had the past before them
  {
    const Share share = share_of(call, block_index());
    const Sequence& seq = share.sequence;
    const int row0 = row_of(share), part = share.split * call.chunk;
    if (row0 >= seq.queries) return;
    const Range of_first = range_of(seq, row0), of_last = range_of(seq, min_of(row0 + BM, seq.queries) - 1);
    kbeg = max_of(part, of_first.start & ~(TILE - 1));
    kend = min_of(part + call.chunk, of_last.end);
    whole_from = call.mask_kind != MASK_NONE || call.cap != 0.f ? 0x7fffffff : of_last.start;
    whole_to = of_first.end;
    past = seq.past;
    const int kv_head = share.head / call.group, first = seq.key0 - seq.past;
    key_base = call.key.data + row_offset(call.key, seq.batch, kv_head, first) * SIZE;
    value_base = call.value.data + row_offset(call.value, seq.batch, kv_head, first) * SIZE;
  }

  Four kr[K_ITEMS][4], vr[V_ITEMS];
  bool direct = false;  // whether the tile in those registers came through them

  // A tile is direct when its rows lie side by side in the past or among the new keys, may be read four elements
  // at a time, and all exist; then it comes through registers. Any other tile is gathered when it is stored.
  auto is_direct = [&](int k0, int flag) LAMBDA -> bool {
    return (call.flags & flag) != 0 && k0 + TILE <= kend && (k0 >= past || k0 + TILE <= past);
  };
  auto tile_row = [&](const Tensor& old, const Tensor& fresh, Address base, int k0, long long& step) LAMBDA -> Address {
    if (k0 >= past) {
      step = fresh.token * SIZE;
      return base + k0 * step;
    }
    const Share share = here();
    step = old.token * SIZE;
    return cache_row(call, old, fresh, share.sequence, share.head / call.group, k0);
  };

  // Block (r, c) of keys: rows 4r .. 4r + 3 of the tile, dims 4c .. 4c + 3 of the chunk.
  auto load_k = [&](int k0, int chunk) LAMBDA {
    const int t = opaque(tid);
    direct = is_direct(k0, KEY_IN_FOURS);
    if (direct) {
      long long step;
      const Address tile = tile_row(call.past_key, call.key, key_base, k0, step) + chunk * CHUNK * SIZE;
      if (call.head_dim == D) {
        UNROLL for (int a = 0; a < K_ITEMS; a++) {
          const int c = (t + a * NT) % KF, r = (t + a * NT) / KF;
          Address p = tile + r * 4 * step + c * 4 * SIZE;
          UNROLL for (int e = 0; e < 4; e++) {
            load_four(kr[a][e], p);
            p += step;
          }
        }
      } else {
        UNROLL for (int a = 0; a < K_ITEMS; a++) {
          const int c = (t + a * NT) % KF, r = (t + a * NT) / KF;
          Address p = tile + r * 4 * step + c * 4 * SIZE;
          UNROLL for (int e = 0; e < 4; e++) {
            clear(kr[a][e]);
            if (chunk * CHUNK + c * 4 < call.head_dim) load_four(kr[a][e], p);
            p += step;
          }
        }
      }
    } else {
      UNROLL for (int a = 0; a < K_ITEMS; a++)
        UNROLL for (int e = 0; e < 4; e++) clear(kr[a][e]);
    }
  };
  auto drop_k = [&]() LAMBDA {
    UNROLL for (int a = 0; a < K_ITEMS; a++)
      UNROLL for (int e = 0; e < 4; e++) clear(kr[a][e]);
  };
  // Transposed, [dim][key]; chunk key/4 of 16 bytes lies at chunk ^ (dim/4 & 7).
  auto store_k = [&](int k0, int chunk) LAMBDA {
    const int t = opaque(tid);
    const SharedBytes keys = sm + X + (CHUNKS > 1 ? (chunk & 1) * (CHUNK * 256) : 0);
    if (direct) {
      UNROLL for (int a = 0; a < K_ITEMS; a++) {
        const int c = (t + a * NT) % KF, r = (t + a * NT) / KF;
        const SharedBytes p = keys + c * 1024 + ((r ^ (c & 7)) << 4);
        f4 row[4];
        UNROLL for (int e = 0; e < 4; e++) row[e] = in_singles(kr[a][e], call.dtype);
        UNROLL for (int e = 0; e < 4; e++) store_shared(p + e * 256, f4{row[0][e], row[1][e], row[2][e], row[3][e]});
      }
    } else {
      const Share share = here();
      NO_UNROLL for (int i = t; i < TILE * KF; i += NT) {
        const int c = i % KF, key = i / KF;
        const SharedBytes p = keys + c * 1024 + (((key >> 2) ^ (c & 7)) << 4) + (key & 3) * 4;
        Four raw;
        clear(raw);
        if (k0 + key < kend)
          load_some(raw, cache_row(call, call.past_key, call.key, share.sequence, share.head / call.group, k0 + key),
                    chunk * CHUNK + c * 4, call.head_dim, (call.flags & KEY_IN_FOURS) != 0);
        const f4 x = in_singles(raw, call.dtype);
        UNROLL for (int e = 0; e < 4; e++) store_shared_f(p + e * 256, x[e]);
      }
    }
  };
  // Row r of a stage belongs to score column `stage * COLUMNS + r % COLUMNS` of column group r / COLUMNS.
  auto key_of = [&](int stage, int r) LAMBDA -> int {
    const int j = stage * COLUMNS + r % COLUMNS;
    return (j >> 2) * 32 + r / COLUMNS * 4 + (j & 3);
  };
  auto load_v = [&](int k0, int stage) LAMBDA {
    const int t = opaque(tid);
    direct = EARLY_VALUES && is_direct(k0, VALUE_IN_FOURS);
    if (direct) {
      long long step;
      const Address tile = tile_row(call.past_value, call.value, value_base, k0, step);
      UNROLL for (int a = 0; a < V_ITEMS; a++) {
        const int c = (t + a * NT) % VF, r = (t + a * NT) / VF;
        clear(vr[a]);
        if (c * 4 < call.value_dim) load_four(vr[a], tile + key_of(stage, r) * step + c * 4 * SIZE);
      }
    } else {
      UNROLL for (int a = 0; a < V_ITEMS; a++) clear(vr[a]);
    }
  };
  // Gives whether some element is not finite, if that is asked.
  auto store_v = [&](int k0, int stage, bool look) LAMBDA -> bool {
    const int t = opaque(tid);
    bool odd = false;
    if (direct) {
      UNROLL for (int a = 0; a < V_ITEMS; a++) {
        const int c = (t + a * NT) % VF, r = (t + a * NT) / VF;
        const f4 x = in_singles(vr[a], call.dtype);
        store_shared(sm + X + r * V_STRIDE + c * 16, x);
        if (look) {
          UNROLL for (int e = 0; e < 4; e++) odd = odd || !(x[e] - x[e] == 0.f);
        }
      }
    } else {
      const Share share = here();
      NO_UNROLL for (int i = t; i < VALUES * VF; i += NT) {
        const int c = i % VF, r = i / VF, j = k0 + key_of(stage, r);
        Four raw;
        clear(raw);
        if (j < kend)
          load_some(raw, cache_row(call, call.past_value, call.value, share.sequence, share.head / call.group, j), c * 4,
                    call.value_dim, (call.flags & VALUE_IN_FOURS) != 0);
        const f4 x = in_singles(raw, call.dtype);
        store_shared(sm + X + r * V_STRIDE + c * 16, x);
        UNROLL for (int e = 0; e < 4; e++) odd = odd || !(x[e] - x[e] == 0.f);
      }
    }
    return odd;
  };

  if (kbeg < kend) load_k(kbeg, 0);
  else drop_k();
  {  // Queries: scaled, transposed to [dim][row], permuted as keys are.
    const bool in_fours = (call.flags & QUERY_IN_FOURS) != 0;
    const Share share = here();
    const int row0 = row_of(share);
    NO_UNROLL for (int i = tid; i < BM / 4 * VF; i += NT) {
      const int c = i % VF, rc = i / VF;
      f4 x[4];
      UNROLL for (int e = 0; e < 4; e++) {
        Four raw;
        clear(raw);
        const int row = row0 + rc * 4 + e;
        if (row < share.sequence.queries) load_some(raw, query_row(call, share.sequence, share.head, row), c * 4, call.head_dim, in_fours);
        x[e] = in_singles(raw, call.dtype) * call.query_factor;
      }
      const SharedBytes p = sm + c * 4 * Q_STRIDE + ((rc ^ (c & 7)) << 4);
      UNROLL for (int e = 0; e < 4; e++) store_shared(p + e * Q_STRIDE, f4{x[0][e], x[1][e], x[2][e], x[3][e]});
    }
  }
  if (kbeg < kend) store_k(kbeg, 0);
  sync_block();

  float acc[TM][NV * 4], m[TM], sum[TM], s[TM][TN];
  UNROLL for (int i = 0; i < TM; i++) {
    m[i] = NO_KEY;
    sum[i] = 0.f;
    UNROLL for (int j = 0; j < NV * 4; j++) acc[i][j] = 0.f;
  }

  // Where the sums of the lane's rows live in memory: `left` rows from the first on, `stride` bytes apart, columns
  // below `columns` of which the lane's start at `column`. Group h of four columns lies h * 32 columns further.
  struct Place {
    Address at;
    long long stride;
    int first_row, left, column, columns;
  };
  auto in_memory = [&](const Share& share) LAMBDA -> Place {
    const int t = opaque(tid);
    const Sequence& seq = share.sequence;
    Place x;
    x.first_row = row_of(share) + (t >> 5) * S::WARP_ROWS + lane_row(t) * TM;
    x.left = seq.queries - x.first_row;
    x.column = lane_col(t) * 4;
    if (call.part_ms != 0) {
      const long long row = row_number(call, seq, share.head, x.first_row);
      x.at = call.part_w + ((row * call.splits + share.split) * call.part_dim + x.column) * 4;
      x.stride = (long long)call.splits * call.part_dim * 4;
      x.columns = call.part_dim;
    } else {
      x.at = output_row(call, seq.batch, share.head, seq.query0 + x.first_row) + x.column * SIZE;
      x.stride = call.output.token * SIZE;
      x.columns = call.value_dim;
    }
    return x;
  };
  bool flushed = false;

  NO_UNROLL for (int kc = kbeg; kc < kend; kc += FLUSH * TILE) {
    const int stop = kend - kc > FLUSH * TILE ? kc + FLUSH * TILE : kend;
    NO_UNROLL for (int k0 = kc; k0 < stop; k0 += TILE) {
      const int next = k0 + TILE;
      const bool partial = k0 < whole_from || next > whole_to;

      UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++) s[i][j] = 0.f;
      NO_UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (CHUNKS > 1 && chunk + 1 < CHUNKS) {
          load_k(k0, chunk + 1);
        } else {
          load_v(k0, 0);
          if (CHUNKS > 1) drop_k();
        }
        const int t = opaque(tid);
        const int cg = lane_col(t);
        const int qc = (t >> 5) * (S::WARP_ROWS / 4) + lane_row(t) * (TM / 4);
        const SharedBytes keys = sm + X + (CHUNKS > 1 ? (chunk & 1) * (CHUNK * 256) : 0);
        const SharedBytes queries = sm + chunk * (CHUNK * Q_STRIDE);
        f4 qa[2][TM / 4], kb[2][2];
        auto fragments = [&](int b, int it, int kk) LAMBDA {  // dim it*8 + kk of the chunk
          const int odd = (kk >> 2) & 1, even = (it & 3) << 1;
          if constexpr (TM == 8) {
            const int base = ((qc ^ even) << 4) + it * 8 * Q_STRIDE;
            UNROLL for (int h = 0; h < 2; h++) qa[b][h] = load_shared(queries + base + kk * Q_STRIDE + ((h ^ odd) << 4));
          } else {
            const int base = ((qc ^ (even | odd)) << 4) + it * 8 * Q_STRIDE;
            qa[b][0] = load_shared(queries + base + kk * Q_STRIDE);
          }
          const int base = ((cg ^ (even | odd)) << 4) + it * 2048;
          UNROLL for (int h = 0; h < 2; h++) kb[b][h] = load_shared(keys + base + kk * 256 + h * 128);
        };
        fragments(0, 0, 0);
        NO_UNROLL for (int it = 0; it < CHUNK / 8; it++) {
          UNROLL for (int kk = 0; kk < 8; kk++) {
            const int b = kk & 1;
            if (kk < 7) fragments(b ^ 1, it, kk + 1);
            else fragments(b ^ 1, it + 1 < CHUNK / 8 ? it + 1 : 0, 0);
            UNROLL for (int i = 0; i < TM; i++)
              UNROLL for (int j = 0; j < TN; j++)
                s[i][j] = __builtin_fmaf(qa[b][i >> 2][i & 3], kb[b][j >> 2][j & 3], s[i][j]);
          }
        }
        if (CHUNKS > 1 && chunk + 1 < CHUNKS) {
          store_k(k0, chunk + 1);
          sync_block();
        }
      }

      if (partial) {  // soft cap, mask, ranges
        const Share share = here();
        const Sequence& seq = share.sequence;
        const int t = opaque(tid), cg = lane_col(t);
        const int r = row_of(share) + (t >> 5) * S::WARP_ROWS + lane_row(t) * TM;
        int from[TM], to[TM];
        UNROLL for (int i = 0; i < TM; i++) {
          const Range range = range_of(seq, r + i);
          from[i] = range.start;
          to[i] = r + i < seq.queries ? range.end : 0;
        }
        NO_UNROLL for (int j = 0; j < TN; j++) {
          const int key = k0 + (j >> 2) * 32 + cg * 4 + (j & 3);
          UNROLL for (int i = 0; i < TM; i++) {
            float x = s[i][0];
            UNROLL for (int o = 1; o < TN; o++) s[i][o - 1] = s[i][o];
            if (call.cap != 0.f) x = call.cap * tanh_of(x);
            if (key < from[i] || key >= to[i]) {
              x = NEG_INF;
            } else if (call.mask_kind != MASK_NONE) {
              const float bias = mask_bias(call, mask_row(call, seq, share.head, r + i) + key * call.mask_key);
              x = bias == NEG_INF ? NEG_INF : x + bias;
            }
            s[i][TN - 1] = x;
          }
        }
      }

      {  // weights
        float mx[TM];
        bool need = false;
        UNROLL for (int i = 0; i < TM; i++) {
          mx[i] = s[i][0];
          UNROLL for (int j = 1; j < TN; j++) mx[i] = max2(mx[i], s[i][j]);
          need = need || mx[i] > m[i] + HEADROOM;
        }
        if (any_of_warp(need)) {
          float corr[TM];
          UNROLL for (int i = 0; i < TM; i++) {
            float x = mx[i];
            UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) x = max2(x, shuffle_xor(x, w));
            const Merge merge = merge_of(m[i], x > m[i] + HEADROOM ? __builtin_rintf(x) : m[i]);
            corr[i] = merge.earlier;
            m[i] = merge.m;
            sum[i] *= corr[i];
            UNROLL for (int j = 0; j < NV * 4; j++) acc[i][j] *= corr[i];
          }
          if (flushed) {
            const Place p = in_memory(here());
            UNROLL for (int i = 0; i < TM; i++)
              if (i < p.left) {
                UNROLL for (int h = 0; h < NV; h++)
                  if (p.column + h * 32 < p.columns) {
                    const Address a = p.at + i * p.stride + h * 128;
                    write_f4(a, read_f4(a) * corr[i]);
                  }
              }
          }
        }
        if (partial) {
          UNROLL for (int i = 0; i < TM; i++)
            UNROLL for (int j = 0; j < TN; j++) {
              const float x = s[i][j] - m[i];
              const float weight = exp2_fast(x < WEIGHT_FLOOR ? WEIGHT_FLOOR : x);
              s[i][j] = s[i][j] == NEG_INF ? 0.f : weight;
            }
        } else {
          UNROLL for (int i = 0; i < TM; i++)
            UNROLL for (int j = 0; j < TN; j++) s[i][j] = exp2_fast(s[i][j] - m[i]);
        }
        UNROLL for (int i = 0; i < TM; i++) {
          float r = s[i][0];
          UNROLL for (int j = 1; j < TN; j++) r += s[i][j];
          sum[i] += r;
        }
      }

      // W += P V in stages of values; weights are exchanged within the warp, STEP columns of each lane at a time.
      const int t = opaque(tid);
      const int cg = lane_col(t), rg = lane_row(t) * (TM / 4);
      const SharedBytes weights = sm + XP + (t >> 5) * S::WEIGHT_BYTES;
      auto put_p = [&](int j0) LAMBDA {
        UNROLL for (int jj = 0; jj < STEP; jj++)
          UNROLL for (int h = 0; h < TM / 4; h++) {
            const f4 x = {s[h * 4][j0 + jj], s[h * 4 + 1][j0 + jj], s[h * 4 + 2][j0 + jj], s[h * 4 + 3][j0 + jj]};
            store_shared(weights + (jj * LANE_COLS + cg) * P_STRIDE + (((rg + h) ^ weight_shift<TM>(cg)) << 4), x);
          }
      };
      // The next columns become the first; `by` of them, round about.
      auto rotate = [&](int by) LAMBDA {
        UNROLL for (int i = 0; i < TM; i++) {
          float old[TN];
          UNROLL for (int j = 0; j < TN; j++) old[j] = s[i][j];
          UNROLL for (int j = 0; j < TN; j++) s[i][j] = old[(j + by) % TN];
        }
      };
      auto product = [&](SharedBytes values) LAMBDA {
        f4 pa[2][TM / 4], vv[2][NV];
        auto fragments = [&](int b, int jj, int g) LAMBDA {
          const int f = weight_shift<TM>(g);
          UNROLL for (int h = 0; h < TM / 4; h++) {
            const int off = TM == 8 ? ((rg ^ (f & ~1)) << 4) + ((h ^ (f & 1)) << 4) : (rg ^ f) << 4;
            pa[b][h] = load_shared(weights + (jj * LANE_COLS + g) * P_STRIDE + off);
          }
          UNROLL for (int h = 0; h < NV; h++)
            vv[b][h] = load_shared(values + cg * 16 + (g * COLUMNS + jj) * V_STRIDE + h * 128);
        };
        auto column = [&](int jj, int following) LAMBDA {
          UNROLL for (int g = 0; g < LANE_COLS; g++) {
            const int b = g & 1;
            if (g + 1 < LANE_COLS) fragments(b ^ 1, jj, g + 1);
            else fragments(b ^ 1, following, 0);
            UNROLL for (int i = 0; i < TM; i++)
              UNROLL for (int j = 0; j < NV * 4; j++)
                acc[i][j] = __builtin_fmaf(pa[b][i >> 2][i & 3], vv[b][j >> 2][j & 3], acc[i][j]);
          }
        };
        fragments(0, 0, 0);
        if constexpr (UNROLL_VALUES) {
          UNROLL for (int jj = 0; jj < STEP; jj++) column(jj, jj + 1 < STEP ? jj + 1 : 0);
        } else {
          NO_UNROLL for (int jj = 0; jj < STEP; jj++) column(jj, jj + 1 < STEP ? jj + 1 : 0);
        }
      };
      // The same where a value is not finite: a weight of zero is a masked key, and its value is not looked at.
      auto careful = [&](SharedBytes values) LAMBDA {
        NO_UNROLL for (int jg = 0; jg < STEP * LANE_COLS; jg++) {
          const int jj = jg / LANE_COLS, g = jg % LANE_COLS, f = weight_shift<TM>(g);
          f4 p[TM / 4], v[NV];
          UNROLL for (int h = 0; h < TM / 4; h++)
            p[h] = load_shared(weights + jg * P_STRIDE + (((rg + h) ^ f) << 4));
          UNROLL for (int h = 0; h < NV; h++)
            v[h] = load_shared(values + cg * 16 + (g * COLUMNS + jj) * V_STRIDE + h * 128);
          UNROLL for (int i = 0; i < TM; i++)
            UNROLL for (int j = 0; j < NV * 4; j++) {
              const float x = __builtin_fmaf(p[i >> 2][i & 3], v[j >> 2][j & 3], acc[i][j]);
              acc[i][j] = p[i >> 2][i & 3] == 0.f ? acc[i][j] : x;
            }
        }
      };
      auto stage = [&](bool odd) LAMBDA {
        if (odd) {
          NO_UNROLL for (int c = 0; c < COLUMNS; c += STEP) {
            careful(sm + X + c * V_STRIDE);
            rotate(STEP);
            if (c + STEP < COLUMNS) {
              sync_warp();
              put_p(0);
              sync_warp();
            }
          }
          rotate(TN - COLUMNS);
        } else {
          UNROLL for (int c = 0; c < COLUMNS; c += STEP) {
            if (c) {
              sync_warp();
              put_p(c);
              sync_warp();
            }
            product(sm + X + c * V_STRIDE);
          }
        }
      };
      auto meet = [&](bool odd) LAMBDA -> bool {
        if (partial) return any_of_block(odd);
        sync_block();
        return false;
      };

      sync_block();  // the keys are dead
      bool odd = store_v(k0, 0, partial);
      put_p(0);
      NO_UNROLL for (int st = 1; st < STAGES; st++) {
        load_v(k0, st);
        stage(meet(odd));
        sync_block();  // these values are dead
        odd = store_v(k0, st, partial);
        rotate(COLUMNS);
        put_p(0);
      }
      if (next < kend) load_k(next, 0);
      else drop_k();
      stage(meet(odd));
      sync_block();  // the values are dead
      if (next < kend) store_k(next, 0);
      sync_block();
    }

    const bool flushes = call.part_ms != 0 || (!HALF && (call.flags & OUTPUT_IN_FOURS) != 0);
    if (flushes && stop < kend) {
      const Place p = in_memory(here());
      UNROLL for (int g = 0; g < TM; g += 4) {
        f4 x[4][NV];
        UNROLL for (int i = 0; i < 4; i++)
          UNROLL for (int h = 0; h < NV; h++) {
            x[i][h] = zero4();
            if (flushed && g + i < p.left && p.column + h * 32 < p.columns)
              x[i][h] = read_f4(p.at + (g + i) * p.stride + h * 128);
          }
        UNROLL for (int i = 0; i < 4; i++)
          UNROLL for (int h = 0; h < NV; h++) {
            UNROLL for (int e = 0; e < 4; e++) {
              x[i][h][e] += acc[g + i][h * 4 + e];
              acc[g + i][h * 4 + e] = 0.f;
            }
            if (g + i < p.left && p.column + h * 32 < p.columns)
              write_f4(p.at + (g + i) * p.stride + h * 128, x[i][h]);
          }
      }
      flushed = true;
    }
  }

  // Finished rows, one after the other: the sums of the next become those of the first.
  const Share share = here();
  const Sequence& seq = share.sequence;
  Place p = in_memory(share);
  NO_UNROLL for (int i = 0; i < TM; i++) {
    float total = sum[0];
    UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) total += shuffle_xor(total, w);
    if (i < p.left) {
      const bool empty = m[0] == NO_KEY && total == 0.f;
      const float reference = m[0] == NO_KEY ? NEG_INF : m[0];
      const Address out = output_row(call, seq.batch, share.head, seq.query0 + p.first_row + i);
      UNROLL for (int h = 0; h < NV; h++) {
        f4 w = {acc[0][h * 4], acc[0][h * 4 + 1], acc[0][h * 4 + 2], acc[0][h * 4 + 3]};
        if (p.column + h * 32 < p.columns) {
          if (flushed) w = w + read_f4(p.at + h * 128);
          if (call.part_ms == 0)
            write_output4(call, out, p.column + h * 32, quotient(w, total, empty), HALF ? call.dtype : TYPE_F32);
          else if (!empty)
            write_f4(p.at + h * 128, w);
        }
      }
      if (p.column == 0) {
        const long long row = row_number(call, seq, share.head, p.first_row + i);
        if (call.part_ms != 0) write_f2(call.part_ms + (row * call.splits + share.split) * 8, f2{reference, total});
        else if (call.lse != 0) write_f32(call.lse + row * 4, log_sum_exp(reference, total));
      }
    }
    p.at += p.stride;
    UNROLL for (int o = 1; o < TM; o++) {
      sum[o - 1] = sum[o];
      m[o - 1] = m[o];
      UNROLL for (int j = 0; j < NV * 4; j++) acc[o - 1][j] = acc[o][j];
    }
  }
}

// name, halves, head size, warps, rows of a lane, straight-line values, tiles between flushes, blocks of an SM
#define ATTENTION(name, HALF, D, WARPS, TM, UNROLL_VALUES, FLUSH, BLOCKS)                          \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Call call) {                            \
    typedef Shape<D, WARPS, TM> S;                                                                 \
    SHARED(memory, S::SHARED_BYTES);                                                               \
    attention<HALF, D, WARPS, TM, UNROLL_VALUES, FLUSH>(memory, call);                             \
  }
