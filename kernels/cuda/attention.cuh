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
// 7. Most tiles are attended in full, lie side by side in memory and exist whole: they run through a loop that
//    knows nothing else. Every other tile goes through a compact path beside it, which gathers its rows into
//    shared memory one by one, applies soft cap, mask and ranges, and skips a weight of zero together with its
//    value, since the value of a masked key may be NaN.
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

template <bool X> struct Truth {
  static constexpr bool value = X;
};

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
  constexpr bool EARLY_KEYS = D <= 128, EARLY_VALUES = D <= 128;  // beyond, sums leave no registers for them
  constexpr int X = S::QUERY_BYTES, XP = X + S::WEIGHTS_AT;
  static_assert(K_ITEMS >= 1 && 16 * KF % NT == 0 && V_ITEMS >= 1 && VALUES * VF % NT == 0, "");
  static_assert(STEP >= 1 && COLUMNS % STEP == 0, "");
  static_assert(VALUES * V_STRIDE <= S::WEIGHTS_AT && S::SHARED_BYTES <= 49152, "");

  const int tid = thread_index();
  // The block's share, derived again wherever it is asked for: kept, it would cost a dozen registers.
  auto here = [&]() LAMBDA -> Share { return share_of(call, opaque(block_index())); };
  // Later blocks of rows have more keys when causal: they start first.
  auto row_of = [&](const Share& share) LAMBDA -> int { return (call.row_blocks - 1 - share.row_block) * BM; };

  // Keys that some row attends, within this part; tiles from hot_from to hot_to are attended in full by every row.
  int kbeg, kend, hot_from, hot_to, past;
  {
    const Share share = share_of(call, block_index());
    const Sequence& seq = share.sequence;
    const int row0 = row_of(share), part = share.split * call.chunk;
    if (row0 >= seq.queries) return;
    const Range of_first = range_of(seq, row0), of_last = range_of(seq, min_of(row0 + BM, seq.queries) - 1);
    kbeg = max_of(part, of_first.start & ~(TILE - 1));
    kend = min_of(part + call.chunk, of_last.end);
    const bool plain = call.mask_kind == MASK_NONE && call.cap == 0.f && (call.flags & KEY_IN_FOURS) != 0 &&
                       (call.flags & VALUE_IN_FOURS) != 0;
    hot_from = (max_of(of_last.start, 0) + TILE - 1) & ~(TILE - 1);
    hot_to = plain ? min_of(of_first.end, kend) & ~(TILE - 1) : 0;
    past = seq.past;
  }
  // End of the run of such tiles from k0 on that lies within the past or among the new keys.
  auto run_from = [&](int k0) LAMBDA -> int {
    return k0 < hot_from ? 0 : k0 < past ? min_of(hot_to, past & ~(TILE - 1)) : hot_to;
  };

  Four kr[K_ITEMS][4], vr[V_ITEMS];
  // Where key zero of the run would lie, and bytes from one row to the next. The same for values.
  Address key_base = 0, value_base = 0;
  long long key_step = 0, value_step = 0;
  auto aim = [&](int k0) LAMBDA {
    const Share share = here();
    const int kv_head = share.head / call.group;
    key_step = (k0 < past ? call.past_key.token : call.key.token) * SIZE;
    value_step = (k0 < past ? call.past_value.token : call.value.token) * SIZE;
    key_base = cache_row(call, call.past_key, call.key, share.sequence, kv_head, k0) - k0 * key_step;
    value_base = cache_row(call, call.past_value, call.value, share.sequence, kv_head, k0) - k0 * value_step;
  };

  // Block (r, c) of keys: rows 4r .. 4r + 3 of the tile, dims 4c .. 4c + 3 of the chunk.
  auto load_k = [&](int k0, int chunk) LAMBDA {
    const int t = opaque(tid);
    const Address tile = key_base + k0 * key_step + chunk * CHUNK * SIZE;
    UNROLL for (int a = 0; a < K_ITEMS; a++) {
      const int c = (t + a * NT) % KF, r = (t + a * NT) / KF;
      Address p = tile + r * 4 * key_step + c * 4 * SIZE;
      if (call.head_dim == D) {
        UNROLL for (int e = 0; e < 4; e++) {
          load_four(kr[a][e], p);
          p += key_step;
        }
      } else {
        const bool there = chunk * CHUNK + c * 4 < call.head_dim;
        UNROLL for (int e = 0; e < 4; e++) {
          clear(kr[a][e]);
          if (there) load_four(kr[a][e], p);
          p += key_step;
        }
      }
    }
  };
  auto drop_k = [&]() LAMBDA {
    UNROLL for (int a = 0; a < K_ITEMS; a++)
      UNROLL for (int e = 0; e < 4; e++) clear(kr[a][e]);
  };
  // Transposed, [dim][key]; chunk key/4 of 16 bytes lies at chunk ^ (dim/4 & 7).
  auto store_k = [&](int chunk) LAMBDA {
    const int t = opaque(tid);
    const SharedBytes keys = sm + X + (CHUNKS > 1 ? (chunk & 1) * (CHUNK * 256) : 0);
    UNROLL for (int a = 0; a < K_ITEMS; a++) {
      const int c = (t + a * NT) % KF, r = (t + a * NT) / KF;
      const SharedBytes p = keys + c * 1024 + ((r ^ (c & 7)) << 4);
      f4 row[4];
      UNROLL for (int e = 0; e < 4; e++) row[e] = in_singles(kr[a][e], call.dtype);
      UNROLL for (int e = 0; e < 4; e++) store_shared(p + e * 256, f4{row[0][e], row[1][e], row[2][e], row[3][e]});
    }
  };
  // Row r of a stage belongs to score column `stage * COLUMNS + r % COLUMNS` of column group r / COLUMNS.
  auto key_of = [&](int stage, int r) LAMBDA -> int {
    const int j = stage * COLUMNS + r % COLUMNS;
    return (j >> 2) * 32 + r / COLUMNS * 4 + (j & 3);
  };
  auto load_v = [&](int k0, int stage) LAMBDA {
    const int t = opaque(tid);
    if (call.value_dim == D) {
      UNROLL for (int a = 0; a < V_ITEMS; a++) {
        const int c = (t + a * NT) % VF, r = (t + a * NT) / VF;
        load_four(vr[a], value_base + (k0 + key_of(stage, r)) * value_step + c * 4 * SIZE);
      }
    } else {
      UNROLL for (int a = 0; a < V_ITEMS; a++) {
        const int c = (t + a * NT) % VF, r = (t + a * NT) / VF;
        clear(vr[a]);
        if (c * 4 < call.value_dim) load_four(vr[a], value_base + (k0 + key_of(stage, r)) * value_step + c * 4 * SIZE);
      }
    }
  };
  auto store_v = [&]() LAMBDA {
    const int t = opaque(tid);
    UNROLL for (int a = 0; a < V_ITEMS; a++) {
      const int c = (t + a * NT) % VF, r = (t + a * NT) / VF;
      store_shared(sm + X + r * V_STRIDE + c * 16, in_singles(vr[a], call.dtype));
    }
  };
  // The same from memory, row by row; what does not exist is zero.
  auto gather_k = [&](const Share& share, int k0, int chunk) LAMBDA {
    NO_UNROLL for (int i = opaque(tid); i < TILE * KF; i += NT) {
      const int c = i % KF, key = i / KF;
      const SharedBytes p = sm + X + c * 1024 + (((key >> 2) ^ (c & 7)) << 4) + (key & 3) * 4;
      Four raw;
      clear(raw);
      if (k0 + key < kend)
        load_some(raw, cache_row(call, call.past_key, call.key, share.sequence, share.head / call.group, k0 + key),
                  chunk * CHUNK + c * 4, call.head_dim, (call.flags & KEY_IN_FOURS) != 0);
      const f4 x = in_singles(raw, call.dtype);
      UNROLL for (int e = 0; e < 4; e++) store_shared_f(p + e * 256, x[e]);
    }
  };
  auto gather_v = [&](const Share& share, int k0, int stage) LAMBDA {
    NO_UNROLL for (int i = opaque(tid); i < VALUES * VF; i += NT) {
      const int c = i % VF, r = i / VF, j = k0 + key_of(stage, r);
      Four raw;
      clear(raw);
      if (j < kend)
        load_some(raw, cache_row(call, call.past_value, call.value, share.sequence, share.head / call.group, j), c * 4,
                  call.value_dim, (call.flags & VALUE_IN_FOURS) != 0);
      store_shared(sm + X + r * V_STRIDE + c * 16, in_singles(raw, call.dtype));
    }
  };

  // Whether the first keys of the tile to come are in the exchange area.
  bool ready = kbeg < kend && kbeg < run_from(kbeg);
  if (ready) {
    aim(kbeg);
    load_k(kbeg, 0);
  } else {
    drop_k();
  }
  {  // Queries: scaled, transposed to [dim][row], permuted as keys are.
    const bool in_fours = (call.flags & QUERY_IN_FOURS) != 0;
    const Share share = here();
    const int row0 = row_of(share);
    auto stage_queries = [&](int i, auto load) LAMBDA {
      const int c = i % VF, rc = i / VF;
      f4 x[4];
      UNROLL for (int e = 0; e < 4; e++) x[e] = in_singles(load(rc * 4 + e, c * 4), call.dtype) * call.query_factor;
      const SharedBytes p = sm + c * 4 * Q_STRIDE + ((rc ^ (c & 7)) << 4);
      UNROLL for (int e = 0; e < 4; e++) store_shared(p + e * Q_STRIDE, f4{x[0][e], x[1][e], x[2][e], x[3][e]});
    };
    if (in_fours && row0 + BM <= share.sequence.queries && call.head_dim == D) {
      const Address first = query_row(call, share.sequence, share.head, row0);
      _Pragma("unroll 4") for (int i = tid; i < BM / 4 * VF; i += NT)
        stage_queries(i, [&](int row, int dim) LAMBDA -> Four {
          Four raw;
          load_four(raw, first + (row * call.query.token + dim) * SIZE);
          return raw;
        });
    } else {
      NO_UNROLL for (int i = tid; i < BM / 4 * VF; i += NT)
        stage_queries(i, [&](int row, int dim) LAMBDA -> Four {
          Four raw;
          clear(raw);
          if (row0 + row < share.sequence.queries)
            load_some(raw, query_row(call, share.sequence, share.head, row0 + row), dim, call.head_dim, in_fours);
          return raw;
        });
    }
  }
  if (ready) store_k(0);
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

  // s += Q K^T over a chunk of dims.
  auto scores = [&](int chunk, SharedBytes keys) LAMBDA {
    const int t = opaque(tid);
    const int cg = lane_col(t);
    const int qc = (t >> 5) * (S::WARP_ROWS / 4) + lane_row(t) * (TM / 4);
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
  };
  // References follow the maxima of a tile; what hangs on them is rescaled.
  auto follow = [&]() LAMBDA {
    float mx[TM];
    bool need = false;
    UNROLL for (int i = 0; i < TM; i++) {
      mx[i] = s[i][0];
      UNROLL for (int j = 1; j < TN; j++) mx[i] = max2(mx[i], s[i][j]);
      need = need || mx[i] > m[i] + HEADROOM;
    }
    if (!any_of_warp(need)) return;
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
  };
  auto add_weights = [&]() LAMBDA {
    UNROLL for (int i = 0; i < TM; i++) {
      float r = s[i][0];
      UNROLL for (int j = 1; j < TN; j++) r += s[i][j];
      sum[i] += r;
    }
  };
  // The weights of score columns j0 .. j0 + STEP - 1 of each lane, for the warp.
  auto put_p = [&](int j0) LAMBDA {
    const int t = opaque(tid), cg = lane_col(t), rg = lane_row(t) * (TM / 4);
    const SharedBytes weights = sm + XP + (t >> 5) * S::WEIGHT_BYTES;
    UNROLL for (int jj = 0; jj < STEP; jj++)
      UNROLL for (int h = 0; h < TM / 4; h++) {
        const f4 x = {s[h * 4][j0 + jj], s[h * 4 + 1][j0 + jj], s[h * 4 + 2][j0 + jj], s[h * 4 + 3][j0 + jj]};
        store_shared(weights + (jj * LANE_COLS + cg) * P_STRIDE + (((rg + h) ^ weight_shift<TM>(cg)) << 4), x);
      }
  };
  // The next columns become the first; `by` of them.
  auto rotate = [&](int by) LAMBDA {
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j + by < TN; j++) s[i][j] = s[i][j + by];
  };
  // W += P V over the keys that put_p gave; with `choosy` a weight of zero skips its value.
  auto product = [&](SharedBytes values, auto choosy) LAMBDA {
    constexpr bool CHOOSY = decltype(choosy)::value;
    const int t = opaque(tid), cg = lane_col(t), rg = lane_row(t) * (TM / 4);
    const SharedBytes weights = sm + XP + (t >> 5) * S::WEIGHT_BYTES;
    constexpr int AHEAD = NV > 4 ? 0 : 1;  // wide rows leave no registers for a second set of fragments
    f4 pa[1 + AHEAD][TM / 4], vv[1 + AHEAD][NV];
    auto fragments = [&](int b, int jj, int g) LAMBDA {
      const int f = weight_shift<TM>(g);
      UNROLL for (int h = 0; h < TM / 4; h++) {
        const int off = TM == 8 ? ((rg ^ (f & ~1)) << 4) + ((h ^ (f & 1)) << 4) : (rg ^ f) << 4;
        pa[b][h] = load_shared(weights + (jj * LANE_COLS + g) * P_STRIDE + off);
      }
      UNROLL for (int h = 0; h < NV; h++)
        vv[b][h] = load_shared(values + cg * 16 + (g * COLUMNS + jj) * V_STRIDE + h * 128);
    };
    auto multiply = [&](int b) LAMBDA {
      UNROLL for (int i = 0; i < TM; i++) {
        const float p = pa[b][i >> 2][i & 3];
        if (!CHOOSY || p != 0.f) {
          UNROLL for (int j = 0; j < NV * 4; j++) acc[i][j] = __builtin_fmaf(p, vv[b][j >> 2][j & 3], acc[i][j]);
        }
      }
    };
    auto column = [&](int jj, int following) LAMBDA {
      if constexpr (AHEAD) {
        UNROLL for (int g = 0; g < LANE_COLS; g++) {
          if (g + 1 < LANE_COLS) fragments(~g & 1, jj, g + 1);
          else fragments(~g & 1, following, 0);
          multiply(g & 1);
        }
      } else {
        NO_UNROLL for (int g = 0; g < LANE_COLS; g++) {
          fragments(0, jj, g);
          multiply(0);
        }
      }
    };
    if (AHEAD) fragments(0, 0, 0);
    if constexpr (UNROLL_VALUES && !CHOOSY) {
      UNROLL for (int jj = 0; jj < STEP; jj++) column(jj, jj + 1 < STEP ? jj + 1 : 0);
    } else {
      NO_UNROLL for (int jj = 0; jj < STEP; jj++) column(jj, jj + 1 < STEP ? jj + 1 : 0);
    }
  };
  auto clear_scores = [&]() LAMBDA {
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) s[i][j] = 0.f;
  };

  // A tile that is not attended in full, or not to be had in fours. Nothing is on its way when it begins.
  auto edge = [&](int k0) LAMBDA {
    clear_scores();
    NO_UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
      gather_k(here(), k0, chunk);
      sync_block();
      scores(chunk, sm + X);
      sync_block();
    }
    {  // soft cap, mask, ranges
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
    follow();
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int j = 0; j < TN; j++) {
        const float x = s[i][j] - m[i];
        const float weight = exp2_fast(x < WEIGHT_FLOOR ? WEIGHT_FLOOR : x);
        s[i][j] = s[i][j] == NEG_INF ? 0.f : weight;
      }
    add_weights();
    NO_UNROLL for (int st = 0; st < STAGES; st++) {
      gather_v(here(), k0, st);
      NO_UNROLL for (int c = 0; c < COLUMNS; c += STEP) {
        put_p(0);
        sync_block();
        product(sm + X + c * V_STRIDE, Truth<true>());
        rotate(STEP);
        sync_block();
      }
    }
  };

  NO_UNROLL for (int kc = kbeg; kc < kend; kc += FLUSH * TILE) {
    const int stop = kend - kc > FLUSH * TILE ? kc + FLUSH * TILE : kend;
    int k0 = kc;
    while (k0 < stop) {
      const int run = run_from(k0);
      if (k0 >= run) {
        edge(k0);
        k0 += TILE;
        continue;
      }
      if (!ready) {
        aim(k0);
        load_k(k0, 0);
        store_k(0);
        sync_block();
      }
      const int until = min_of(run, stop);
      NO_UNROLL for (; k0 < until; k0 += TILE) {
        const int next = k0 + TILE;
        clear_scores();
        NO_UNROLL for (int chunk = 0; chunk < CHUNKS; chunk++) {
          if (CHUNKS > 1 && chunk + 1 < CHUNKS) {
            load_k(k0, chunk + 1);
          } else {
            if (EARLY_VALUES) load_v(k0, 0);
            if (CHUNKS > 1) drop_k();
          }
          scores(chunk, sm + X + (CHUNKS > 1 ? (chunk & 1) * (CHUNK * 256) : 0));
          if (CHUNKS > 1 && chunk + 1 < CHUNKS) {
            store_k(chunk + 1);
            sync_block();
          }
        }
        follow();
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++) s[i][j] = exp2_fast(s[i][j] - m[i]);
        add_weights();
        // W += P V in stages of values; weights are exchanged within the warp.
        auto stage = [&]() LAMBDA {
          UNROLL for (int c = 0; c < COLUMNS; c += STEP) {
            if (c) {
              sync_warp();
              put_p(c);
              sync_warp();
            }
            product(sm + X + c * V_STRIDE, Truth<false>());
          }
        };
        auto give_v = [&](int st) LAMBDA {
          if (EARLY_VALUES) store_v();
          else gather_v(here(), k0, st);
        };
        sync_block();  // the keys are dead
        give_v(0);
        put_p(0);
        NO_UNROLL for (int st = 1; st < STAGES; st++) {
          if (EARLY_VALUES) load_v(k0, st);
          sync_block();
          stage();
          sync_block();  // these values are dead
          give_v(st);
          rotate(COLUMNS);
          put_p(0);
        }
        if (EARLY_KEYS && next < run) load_k(next, 0);
        else drop_k();
        sync_block();
        stage();
        sync_block();  // the values are dead
        if (!EARLY_KEYS && next < run) load_k(next, 0);
        if (next < run) store_k(0);
        sync_block();
      }
      ready = k0 < run;
    }

    const bool flushes = call.part_ms != 0 || (!HALF && (call.flags & OUTPUT_IN_FOURS) != 0);
    if (flushes && stop < kend) {
      const Place p = in_memory(here());
      constexpr int GROUP = NV > 4 ? 1 : 4;  // rows whose sums are on their way at once
      UNROLL for (int g = 0; g < TM; g += GROUP) {
        f4 x[GROUP][NV];
        UNROLL for (int i = 0; i < GROUP; i++)
          UNROLL for (int h = 0; h < NV; h++) {
            x[i][h] = zero4();
            if (flushed && g + i < p.left && p.column + h * 32 < p.columns)
              x[i][h] = read_f4(p.at + (g + i) * p.stride + h * 128);
          }
        UNROLL for (int i = 0; i < GROUP; i++)
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

  const Share share = here();
  const Sequence& seq = share.sequence;
  const Place p = in_memory(share);
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) sum[i] += shuffle_xor(sum[i], w);
  if (flushed) {
    UNROLL for (int i = 0; i < TM; i++)
      if (i < p.left) {
        UNROLL for (int h = 0; h < NV; h++)
          if (p.column + h * 32 < p.columns) {
            const f4 x = read_f4(p.at + i * p.stride + h * 128);
            UNROLL for (int e = 0; e < 4; e++) acc[i][h * 4 + e] += x[e];
          }
      }
  }
  const long long row = row_number(call, seq, share.head, p.first_row);
  if (call.part_ms != 0) {
    UNROLL for (int i = 0; i < TM; i++)
      if (i < p.left) {
        const bool empty = m[i] == NO_KEY && sum[i] == 0.f;
        UNROLL for (int h = 0; h < NV; h++)
          if (!empty && p.column + h * 32 < p.columns)
            write_f4(p.at + i * p.stride + h * 128,
                     f4{acc[i][h * 4], acc[i][h * 4 + 1], acc[i][h * 4 + 2], acc[i][h * 4 + 3]});
        if (p.column == 0)
          write_f2(call.part_ms + ((row + i) * call.splits + share.split) * 8,
                   f2{m[i] == NO_KEY ? NEG_INF : m[i], sum[i]});
      }
    return;
  }
  if (!HALF && (call.flags & OUTPUT_IN_FOURS) != 0 && call.lse == 0) {
    UNROLL for (int i = 0; i < TM; i++)
      if (i < p.left) {
        const bool empty = m[i] == NO_KEY && sum[i] == 0.f;
        UNROLL for (int h = 0; h < NV; h++)
          if (p.column + h * 32 < p.columns)
            write_f4(p.at + i * p.stride + h * 128,
                     quotient(f4{acc[i][h * 4], acc[i][h * 4 + 1], acc[i][h * 4 + 2], acc[i][h * 4 + 3]}, sum[i], empty));
      }
    return;
  }
  // Finished rows, one after the other: the sums of the next become those of the first.
  NO_UNROLL for (int i = 0; i < TM; i++) {
    if (i < p.left) {
      const bool empty = m[0] == NO_KEY && sum[0] == 0.f;
      const Address out = output_row(call, seq.batch, share.head, seq.query0 + p.first_row + i);
      UNROLL for (int h = 0; h < NV; h++) {
        const f4 w = {acc[0][h * 4], acc[0][h * 4 + 1], acc[0][h * 4 + 2], acc[0][h * 4 + 3]};
        write_output4(call, out, p.column + h * 32, quotient(w, sum[0], empty), HALF ? call.dtype : TYPE_F32);
      }
      if (p.column == 0 && call.lse != 0)
        write_f32(call.lse + (row + i) * 4, log_sum_exp(m[0] == NO_KEY ? NEG_INF : m[0], sum[0]));
    }
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
