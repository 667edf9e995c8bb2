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

#include "../common/elements.cuh"
#include "finish.cuh"

constexpr int TILE = 64;  // keys of a tile

INLINE int clamped(long long x, int low, int high) { return x < low ? low : x > high ? high : (int)x; }

// What comes in, and how queries meet keys: singles; halves or brains, widened; halves, two dims at a time.
enum Elements { SINGLES, WIDENED, PAIRED };

// The two kinds of tiles.
struct Plain {
  static constexpr bool EDGE = false;
};
struct Edge {
  static constexpr bool EDGE = true;
};

// IN: elements. D: head size. A block has WARPS warps, a lane TM x TN scores. KD: dims of keys in
// the exchange area at a time. VK: values there at a time. PC: score columns of a lane in an exchange of weights. STRAIGHT:
// how much of W += P V is straight-line code in plain tiles: 0 nothing, 1 the stages of values, 2 the exchanges of a stage.
// BODY: keys of a loop body there. FLUSH: tiles from one addition to memory to the next. LEAN: takes neither masks of
// elements, soft caps nor a past, and its edges are small and slow: a driver compiles it sooner.
template <Elements IN, int D, int WARPS, int TM, int TN, int KD, int VK, int PC, int STRAIGHT, int BODY, int FLUSH,
          bool LEAN>
struct Attention {
  static constexpr bool HALF = IN != SINGLES, PAIRS = IN == PAIRED;
  typedef typename Raw<HALF>::Type Four;
  static constexpr int SIZE = HALF ? 2 : 4;
  static constexpr int LANE_COLS = TILE / TN, LANE_ROWS = 32 / LANE_COLS;
  static constexpr int WARP_ROWS = LANE_ROWS * TM, BM = WARPS * WARP_ROWS, NT = WARPS * 32;
  static constexpr int AN = D / LANE_COLS, AF = AN / 4;  // columns of W of a lane, and fours of them
  static constexpr int Q_STRIDE = BM * 4, P_STRIDE = WARP_ROWS * 4, V_STRIDE = D * 4;  // bytes
  static constexpr int DF = D / 4, CHUNKS = D / KD, KF = KD / 4;
  static constexpr int WORD = PAIRS ? 2 : 1, SD = D / WORD, KS = KD / WORD;  // dims of a word; words of a row, of a chunk
  static constexpr int CHAIN = 16;                       // words of PAIRED whose products are summed in halves
  static constexpr int Q_ITEMS = BM / 4 * DF / NT;       // 4 x 4 blocks of queries that a thread stages
  static constexpr int K_STEP = NT / KF;                 // groups of four keys that the block stages at once
  static constexpr int K_ITEMS = TILE / 4 / K_STEP;      // 4 x 4 blocks of keys that a thread stages
  static constexpr int K_ITEM = TN == 8 ? 32 : 8;        // keys from one of them to the next
  static constexpr int V_ITEMS = VK * DF / NT;           // groups of four of values that a thread stages
  static constexpr int STAGES = TILE / VK;
  static constexpr int PK = PC * LANE_COLS;              // keys of an exchange of weights
  static constexpr int UK = PK < VK ? PK : VK;           // keys of a product
  static constexpr int UNITS = TILE / UK, UNITS_V = VK / UK, UNITS_P = PK / UK;
  static constexpr int X = SD * Q_STRIDE, XP = X + VK * V_STRIDE, P_BYTES = PK * P_STRIDE;
  static constexpr int K_AREA = KS * TILE * 4, V_AREA = VK * V_STRIDE + WARPS * P_BYTES;
  static constexpr int SHARED_BYTES = X + (K_AREA > V_AREA ? K_AREA : V_AREA);
  static_assert((TM == 4 || TM == 8) && (TN == 4 || TN == 8) && AN % 4 == 0, "");
  static_assert(SHARED_BYTES <= 49152, "");
  static_assert(BM / 4 * DF % NT == 0 && TILE / 4 % K_STEP == 0 && VK * DF % NT == 0 && TN % PC == 0, "");
  static_assert(K_ITEMS == 1 || K_STEP == 8, "");
  static_assert(!STRAIGHT || UNITS_P == 1, "");
  static_assert(STRAIGHT != 2 || (V_ITEMS <= K_ITEMS * 4 && NT % DF == 0), "");
  static_assert(KS % 32 == 0 || CHUNKS == 1, "");

  static INLINE int lane_col(int t) { return (t >> 1) & (LANE_COLS - 1); }
  static INLINE int lane_row(int t) { return LANE_COLS == 8 ? (t & 1) | ((t >> 3) & 2) : t & 1; }
  // Where column group g of the weights shifts its chunks of rows, so that a warp stores them without conflicts.
  static INLINE int weight_shift(int g) {
    return WARP_ROWS == 32 ? (g & 1) | ((g & 2) << 1) | ((g & 4) >> 1)
           : WARP_ROWS == 8 ? 0
           : TM == 8 ? (g >> 1) & 3 : (g & 2) | ((g >> 2) & 1);
  }
  // The key, within its tile, of element e of group q of four neighbours among the transposed keys.
  static INLINE int key_of(int q, int e) { return TN == 8 ? ((q >> 3) * 4 + e) * 8 + (q & 7) : e * 16 + q; }
  // The dim of column j of W in lane group g.
  static INLINE int dim_of(int g, int j) { return (j >> 2) * (LANE_COLS * 4) + g * 4 + (j & 3); }
  // The block's first row. Later rows have more keys when causal, and start first.
  static INLINE int first_row(const Call& call, const Share& share) {
    return (call.row_blocks - 1 - share.row_block) * BM;
  }
  // The lane's first row.
  static INLINE int own_row(const Call& call, const Share& share, int t) {
    return first_row(call, share) + (t >> 5) * WARP_ROWS + lane_row(t) * TM;
  }

  static INLINE void run(SharedBytes sm, const Call& call) {
    const int tid = thread_index();
    auto here = [&]() LAMBDA -> Share { return share_of(call, opaque(block_index())); };

    int k0, end, full_from, full_to;  // keys that some row attends; keys that every row attends in full
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

    // Keys and values on their way. Below key `near_to` rows are read plainly from `near_key` and `near_value`, where
    // key zero would lie, with so many bytes from row to row. Tiles from `full_from` to below `plain_to` are plain.
    Four kr[K_ITEMS * 4], vr[V_ITEMS];
    int near_to = 0, plain_to = 0, key_step = 0, value_step = 0;
    Address near_key = 0, near_value = 0;
    auto approach = [&](const Share& share, int tile) LAMBDA {
      const Sequence& s = share.sequence;
      const int kv_head = quotient_of(share.head, call.by_group);
      const bool old = !LEAN && tile < s.past;
      const Tensor& k = old ? call.past_key : call.key;
      const Tensor& v = old ? call.past_value : call.value;
      const int origin = old ? 0 : s.key0 - s.past;
      near_to = call.flags & WHOLE_ROWS ? old ? min_of(s.past, s.reach) : s.reach : 0;
      key_step = (int)k.token * SIZE;
      value_step = (int)v.token * SIZE;
      near_key = k.data + row_offset(k, s.batch, kv_head, 0) * SIZE + (long long)origin * key_step;
      near_value = v.data + row_offset(v, s.batch, kv_head, 0) * SIZE + (long long)origin * value_step;
      plain_to = min_of(full_to, near_to) - TILE + 1;
    };
    // Rows whose existence, and dims whose existence, is checked one by one: zero where there is none.
    // `spot(n, key, dim)` says which key of the tile, and which dim, group n starts at.
    auto gather = [&](const Share& share, auto& to, const Tensor& past, const Tensor& fresh, int dims, bool in_fours,
                      int tile, auto spot) LAMBDA {
      constexpr int COUNT = sizeof(to) / sizeof(Four);
      const Sequence& s = share.sequence;
      const int kv_head = quotient_of(share.head, call.by_group);
      const Address old = past.data + row_offset(past, s.batch, kv_head, 0) * SIZE;
      const Address now = fresh.data + row_offset(fresh, s.batch, kv_head, s.key0 - s.past) * SIZE;
      auto row = [&](int key) LAMBDA -> Address {
        return !LEAN && key < s.past ? old + key * past.token * SIZE : now + key * fresh.token * SIZE;
      };
      UNROLL for (int n = 0; n < COUNT; n++) clear(to[n]);
      if (in_fours) {
        UNROLL for (int n = 0; n < COUNT; n++) {
          int key, dim;
          spot(n, key, dim);
          key += tile;
          if (key < s.reach && dim < dims) load_four(to[n], row(key) + dim * SIZE);
        }
      } else {
        NO_UNROLL for (int n = 0; n < COUNT; n++) {
          Four x;
          clear(x);
          int key, dim;
          spot(n, key, dim);
          key += tile;
          if (key < s.reach) load_some(x, row(key), dim, dims, false);
          UNROLL for (int i = 0; i + 1 < COUNT; i++) to[i] = to[i + 1];
          to[COUNT - 1] = x;
        }
      }
    };
    auto drop_k = [&]() LAMBDA {
      UNROLL for (int n = 0; n < K_ITEMS * 4; n++) {
        if constexpr (STRAIGHT == 2) forget(kr[n]);
        else clear(kr[n]);
      }
    };
    auto load_k = [&](int tile, int chunk) LAMBDA {
      const int t = opaque(tid), c = t & (KF - 1), q = t / KF, step = opaque(key_step);
      const Address a = near_key + (long long)(tile + key_of(q, 0)) * step + (chunk * KD + c * 4) * SIZE;
      UNROLL for (int i = 0; i < K_ITEMS; i++)
        UNROLL for (int e = 0; e < 4; e++)
          load_four(kr[i * 4 + e], a + (long long)((i * K_ITEM + e * LANE_COLS) * step));
    };
    // The registers in which the values of plain tiles travel. A loop over the stages has one set for what comes next,
    // keys or values.
    auto travelling = [&]() LAMBDA -> auto& {
      if constexpr (STRAIGHT == 2) return kr;
      else return vr;
    };
    auto load_v = [&](int tile, int stage) LAMBDA {
      const int t = opaque(tid), step = opaque(value_step);
      auto& to = travelling();
      if constexpr (STRAIGHT == 2) drop_k();
      if constexpr (NT % DF == 0) {
        const Address a = near_value + (long long)(tile + stage * VK + t / DF) * step + t % DF * (4 * SIZE);
        UNROLL for (int i = 0; i < V_ITEMS; i++) load_four(to[i], a + (long long)(i * (NT / DF) * step));
      } else {
        const Address a = near_value + (long long)(tile + stage * VK) * step;
        UNROLL for (int i = 0; i < V_ITEMS; i++) {
          const int n = t + i * NT;
          load_four(to[i], a + (long long)(n / DF * step) + n % DF * (4 * SIZE));
        }
      }
    };
    auto gather_k = [&](const Share& share, int tile, int chunk) LAMBDA {
      const int t = opaque(tid), c = t & (KF - 1), q = t / KF;
      gather(share, kr, call.past_key, call.key, call.head_dim, (call.flags & KEY_IN_FOURS) != 0, tile,
             [&](int n, int& key, int& dim) LAMBDA {
               key = key_of(q, n & 3) + (n >> 2) * K_ITEM;
               dim = chunk * KD + c * 4;
             });
    };
    auto gather_v = [&](const Share& share, int tile, int stage) LAMBDA {
      const int t = opaque(tid);
      gather(share, vr, call.past_value, call.value, call.value_dim, (call.flags & VALUE_IN_FOURS) != 0, tile,
             [&](int n, int& key, int& dim) LAMBDA {
               key = stage * VK + (t + n * NT) / DF;
               dim = (t + n * NT) % DF * 4;
             });
    };
    // Keys go in transposed, [dim][key]; chunk (key / 4) lies at chunk ^ (dim / 4 & 7).
    auto store_k = [&]() LAMBDA {
      const int t = opaque(tid), c = t & (KF - 1), q = t / KF;
      UNROLL for (int i = 0; i < K_ITEMS; i++) {
        if constexpr (PAIRS) {
          const SharedBytes p = sm + X + c * (TILE * 8) + (((q + i * K_STEP) ^ (c >> 1 & 7)) << 4);
          const Four* x = kr + i * 4;
          UNROLL for (int e = 0; e < 2; e++) store_shared(p + e * (TILE * 4), in_a_row(x[0][e], x[1][e], x[2][e], x[3][e]));
          continue;
        }
        const SharedBytes p = sm + X + c * (TILE * 16) + (((q + i * K_STEP) ^ (c & 7)) << 4);
        f4 x[4];
        UNROLL for (int e = 0; e < 4; e++) x[e] = in_singles(kr[i * 4 + e], call.dtype);
        UNROLL for (int e = 0; e < 4; e++) store_shared(p + e * (TILE * 4), f4{x[0][e], x[1][e], x[2][e], x[3][e]});
      }
    };
    auto store_v = [&](const auto& from) LAMBDA {
      const int t = opaque(tid);
      UNROLL for (int i = 0; i < V_ITEMS; i++)
        store_shared(sm + X + (t + i * NT) * 16, in_singles(from[i], call.dtype));
    };

    if (LEAN || k0 >= outset.sequence.past) approach(outset, outset.sequence.past);  // the past is left to the loop
    // Whether the first keys of tile k0 lie in the area.
    bool ready = k0 < end && k0 >= full_from && k0 < plain_to;
    if (ready) load_k(k0, 0);
    else drop_k();
    {  // Queries: scaled, transposed to [dim][row], permuted as the keys are.
      const Sequence& s = outset.sequence;
      const int row0 = first_row(call, outset);
      const Address q = query_row(call, s, outset.head, row0, SIZE);
      const int last = s.queries - 1 - row0;
      // The four rows, of which c is the four of dims, of item n.
      auto store_q = [&](int n, const Four (&x)[4]) LAMBDA {
        const int c = n % DF, r = n / DF;
        if constexpr (PAIRS) {
          const SharedBytes p = sm + c * 2 * Q_STRIDE + ((r ^ (c >> 1 & 7)) << 4);
          UNROLL for (int e = 0; e < 2; e++) store_shared(p + e * Q_STRIDE, in_a_row(x[0][e], x[1][e], x[2][e], x[3][e]));
        } else {
          const SharedBytes p = sm + c * 4 * Q_STRIDE + ((r ^ (c & 7)) << 4);
          f4 y[4];
          UNROLL for (int e = 0; e < 4; e++) y[e] = in_singles(x[e], call.dtype) * call.query_factor;
          UNROLL for (int e = 0; e < 4; e++) store_shared(p + e * Q_STRIDE, f4{y[0][e], y[1][e], y[2][e], y[3][e]});
        }
      };
      if (call.flags & QUERY_IN_FOURS) {  // past the last row stands the last
        constexpr int BATCH = NT % DF == 0 && Q_ITEMS % 2 == 0 ? 2 : 1;
        const int step = (int)call.query.token * SIZE;
        NO_UNROLL for (int n = tid; n < Q_ITEMS * NT; n += BATCH * NT) {
          Four x[BATCH][4];
          const int c = n % DF;
          if (c * 4 < call.head_dim) {
            UNROLL for (int i = 0; i < BATCH; i++)
              UNROLL for (int e = 0; e < 4; e++)
                load_four(x[i][e], q + (long long)min_of((n + i * NT) / DF * 4 + e, last) * step + c * (4 * SIZE));
          } else {
            UNROLL for (int i = 0; i < BATCH; i++)
              UNROLL for (int e = 0; e < 4; e++) clear(x[i][e]);
          }
          UNROLL for (int i = 0; i < BATCH; i++) store_q(n + i * NT, x[i]);
        }
      } else {
        NO_UNROLL for (int n = tid; n < Q_ITEMS * NT; n += NT) {
          Four x[4];
          NO_UNROLL for (int e = 0; e < 4; e++) {
            const int r = n / DF * 4 + e;
            UNROLL for (int i = 0; i + 1 < 4; i++) x[i] = x[i + 1];
            load_some(x[3], q + r * call.query.token * SIZE, n % DF * 4, r <= last ? call.head_dim : 0, false);
          }
          store_q(n, x);
        }
      }
    }
    store_k();
    sync_block();

    float acc[TM][AN], m[TM], sum[TM], s[TM][TN];
    UNROLL for (int i = 0; i < TM; i++) {
      m[i] = NO_KEY;
      sum[i] = 0.f;
      UNROLL for (int j = 0; j < AN; j++) acc[i][j] = 0.f;
    }

    // Where W of the lane's first row lies in memory, as singles: `step` bytes from row to row, `left` rows of `width`
    // columns, and whether columns may be accessed in fours.
    struct Home {
      Address at;
      long long step;
      int left, width;
      bool in_fours;
    };
    auto home = [&](const Share& share) LAMBDA -> Home {
      const int row = own_row(call, share, opaque(tid));
      const Sequence& q = share.sequence;
      Home x;
      x.left = q.queries - row;
      if (call.part_ms != 0) {
        x.step = (long long)call.splits * call.part_dim * 4;
        x.at = call.part_w + row_number(call, q, share.head, row) * x.step + (long long)share.split * call.part_dim * 4;
        x.width = call.part_dim;
        x.in_fours = true;
      } else {
        x.step = call.output.token * 4;
        x.at = call.output.data + row_offset(call.output, q.batch, share.head, q.query0 + row) * 4;
        x.width = call.value_dim;
        x.in_fours = (call.flags & OUTPUT_IN_FOURS) != 0;
      }
      return x;
    };
    // acc = acc + memory where `add`; then memory = acc and acc = 0 where `give`.
    auto exchange = [&](const Home& x, bool add, bool give) LAMBDA {
      const int g = lane_col(opaque(tid));
      if (HALF || x.in_fours) {
        const Address at = x.at + g * 16;
        auto there = [&](int i, int h) LAMBDA { return (int)(i < x.left) & (int)(dim_of(g, h * 4) < x.width); };
        UNROLL for (int i0 = 0; i0 < TM; i0 += 4) {
          f4 y[4][AF];
          UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int h = 0; h < AF; h++) {
              clear(y[i][h]);
              if ((int)add & there(i0 + i, h)) y[i][h] = read_f4(at + (i0 + i) * x.step + dim_of(0, h * 4) * 4);
            }
          UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int h = 0; h < AF; h++) {
              float* a = acc[i0 + i] + h * 4;
              UNROLL for (int e = 0; e < 4; e++) a[e] += y[i][h][e];
              if ((int)give & there(i0 + i, h))
                write_f4(at + (i0 + i) * x.step + dim_of(0, h * 4) * 4, f4{a[0], a[1], a[2], a[3]});
              UNROLL for (int e = 0; e < 4; e++) a[e] = give ? 0.f : a[e];
            }
        }
      } else {
        NO_UNROLL for (int i = 0; i < TM; i++) {
          NO_UNROLL for (int j = 0; j < AN; j++) {
            float w = acc[0][0];
            if (i < x.left && dim_of(g, j) < x.width) {
              const Address a = x.at + i * x.step + dim_of(g, j) * 4;
              if (add) w += read_f32(a);
              if (give) write_f32(a, w);
            }
            UNROLL for (int n = 0; n + 1 < AN; n++) acc[0][n] = acc[0][n + 1];
            acc[0][AN - 1] = give ? 0.f : w;
          }
          UNROLL for (int j = 0; j < AN; j++) {
            const float w = acc[0][j];
            UNROLL for (int n = 0; n + 1 < TM; n++) acc[n][j] = acc[n + 1][j];
            acc[TM - 1][j] = w;
          }
        }
      }
    };

    unsigned odd_sums = 0;  // of PAIRED: two halves, NaN once a sum was no number
    bool flushed = false;
    auto attend = [&](auto how) LAMBDA {
      constexpr bool EDGE = decltype(how)::EDGE;
      Share share;
      if constexpr (EDGE) share = here();
        // Scores.
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
                    UNROLL for (int j = 0; j < TN; j++) k[j] = half_to_float(bits_of(kb[b][j >> 2][j & 3]) >> shift & 0xffff);
                    UNROLL for (int i = 0; i < TM; i++) {
                      const float x = half_to_float(bits_of(qa[b][i >> 2][i & 3]) >> shift & 0xffff) * call.query_factor;
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
                      s[i][j] = __builtin_fmaf(half_to_float(x & 0xffff) + half_to_float(x >> 16), by, s[i][j]);
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
                const float y = call.cap * tanh_of(x[0]);
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
                    raw[i] = bits_of(call.mask_kind == MASK_F16 ? half_to_float(raw[i]) : brain_to_float(raw[i]));
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

        // Weights.
        if constexpr (EDGE && LEAN) {  // row by row: the next row becomes the first
          NO_UNROLL for (int i = 0; i < TM; i++) {
            float x = s[0][0];
            UNROLL for (int j = 1; j < TN; j++) x = max2(x, s[0][j]);
            if (any_of_warp(x > m[0] + HEADROOM)) {
              UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) x = max2(x, shuffle_xor(x, w));
              x = max2(__builtin_rintf(x), m[0]);
              const float scale = factor(m[0], x);
              m[0] = x;
              sum[0] *= scale;
              UNROLL for (int j = 0; j < AN; j++) acc[0][j] *= scale;
              if (flushed) {  // what lies in memory has the old reference
                const Home x = home(here());
                const int g = lane_col(opaque(tid));
                if (i < x.left) {
                  NO_UNROLL for (int j = 0; j < AN; j++) {
                    const Address a = x.at + i * x.step + dim_of(g, j) * 4;
                    if (dim_of(g, j) < x.width) write_f32(a, read_f32(a) * scale);
                  }
                }
              }
            }
            const float reference = m[0], low = partial ? reference + WEIGHT_FLOOR : NEG_INF;
            float y[TN], r = 0.f;
            UNROLL for (int j = 0; j < TN; j++) {
              const float x = s[0][j];
              y[j] = exp2_fast((x < low && x != NEG_INF ? low : x) - reference);
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
            need = need || mx[i] > m[i] + HEADROOM;
          }
          if (any_of_warp(need)) {
            float scale[TM];
            UNROLL for (int i = 0; i < TM; i++) {
              float x = mx[i];
              UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) x = max2(x, shuffle_xor(x, w));
              x = max2(__builtin_rintf(x), m[i]);
              scale[i] = factor(m[i], x);
              m[i] = x;
              sum[i] *= scale[i];
              UNROLL for (int j = 0; j < AN; j++) acc[i][j] *= scale[i];
            }
            if (flushed) {  // what lies in memory has the old reference
              const Home x = home(here());
              const int g = lane_col(opaque(tid));
              NO_UNROLL for (int i = 0; i < TM; i++) {
                if (i < x.left) {
                  NO_UNROLL for (int j = 0; j < AN; j++) {
                    const Address a = x.at + i * x.step + dim_of(g, j) * 4;
                    if (dim_of(g, j) < x.width) write_f32(a, read_f32(a) * scale[0]);
                  }
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
                s[i][TN - 1] = x < low && x != NEG_INF ? low : x;
              }
          }
          UNROLL for (int i = 0; i < TM; i++) {
            UNROLL for (int j = 0; j < TN; j++) s[i][j] = exp2_fast(s[i][j] - m[i]);
            float r = s[i][0];
            UNROLL for (int j = 1; j < TN; j++) r += s[i][j];
            sum[i] += r;
          }
        }

        // W += P V, UK keys at a time.
        bool odd_values = false;
        const int t = opaque(tid), cg = lane_col(t), rg = lane_row(t) * (TM / 4);
        const SharedBytes weights = sm + XP + (t >> 5) * P_BYTES;
        // Brings in a stage of values, and sends for the next.
        auto open = [&](int stage) LAMBDA {
          if constexpr (EDGE) {
            gather_v(share, k0, stage);
            sync_block();  // what the area held is dead
            store_v(vr);
          } else {
            sync_block();
            store_v(travelling());
            if (stage + 1 < STAGES) load_v(k0, stage + 1);
            else if (ready) load_k(k0 + TILE, 0);
            else drop_k();
          }
          sync_block();
          if (partial) {
            bool odd = false;
            NO_UNROLL for (int n = opaque(tid) & 31; n < VK * DF; n += 32) {
              const f4 x = load_shared(sm + X + n * 16);
              UNROLL for (int e = 0; e < 4; e++) odd = odd || x[e] - x[e] != 0.f;
            }
            odd_values = any_of_warp(odd);
          }
        };
        // Exchanges the weights of PC columns from `first` on, and turns the columns up to `last`.
        auto put = [&](int first, int last) LAMBDA {
          sync_warp();
          UNROLL for (int jj = 0; jj < PC; jj++)
            UNROLL for (int h = 0; h < TM / 4; h++)
              store_shared(weights + (jj * LANE_COLS + cg) * P_STRIDE + (((rg + h) ^ weight_shift(cg)) << 4),
                           f4{s[h * 4][first + jj], s[h * 4 + 1][first + jj], s[h * 4 + 2][first + jj],
                              s[h * 4 + 3][first + jj]});
          UNROLL for (int i = 0; i < TM; i++)
            UNROLL for (int j = first; j + PC < last; j++) s[i][j] = s[i][j + PC];
          sync_warp();
        };
        auto multiply = [&](SharedBytes pu, SharedBytes vu) LAMBDA {
          f4 pa[2][TM / 4];
          float vb[2][AN];
          constexpr int KEYS = EDGE ? 2 : BODY;
          auto fragments = [&](int b, int from, int key) LAMBDA {
            const int f = weight_shift((KEYS < LANE_COLS ? from + key : key) & (LANE_COLS - 1));
            UNROLL for (int h = 0; h < TM / 4; h++) {
              const int off = TM == 8 ? ((rg ^ (f & ~1)) << 4) + ((h ^ (f & 1)) << 4) : (rg ^ f) << 4;
              pa[b][h] = load_shared(pu + from * P_STRIDE + key * P_STRIDE + off);
            }
            UNROLL for (int h = 0; h < AF; h++) {
              const f4 x = load_shared(vu + from * V_STRIDE + key * V_STRIDE + cg * 16 + h * (LANE_COLS * 16));
              UNROLL for (int e = 0; e < 4; e++) vb[b][h * 4 + e] = x[e];
            }
          };
          if (EDGE && odd_values) {  // a weight of zero is a key that is not attended: its value is not looked at
            NO_UNROLL for (int key = 0; key < UK; key++) {
              const int f = weight_shift(key & (LANE_COLS - 1));
              UNROLL for (int h = 0; h < TM / 4; h++)
                pa[0][h] = load_shared(pu + key * P_STRIDE + (((rg + h) ^ f) << 4));
              UNROLL for (int j = 0; j < AN; j++) vb[0][j] = load_shared_f(vu + key * V_STRIDE + dim_of(cg, j) * 4);
              UNROLL for (int i = 0; i < TM; i++) {
                const float p = pa[0][i >> 2][i & 3];
                UNROLL for (int j = 0; j < AN; j++)
                  acc[i][j] = p != 0.f ? __builtin_fmaf(p, vb[0][j], acc[i][j]) : acc[i][j];
              }
            }
            return;
          }
          fragments(0, 0, 0);
          NO_UNROLL for (int from = 0; from < UK; from += KEYS) {
            UNROLL for (int key = 0; key < KEYS; key++) {
              const int b = key & 1;
              if (key + 1 < KEYS) fragments(b ^ 1, from, key + 1);
              else if (KEYS < UK) fragments(b ^ 1, (from + KEYS) & (UK - 1), 0);
              UNROLL for (int i = 0; i < TM; i++)
                UNROLL for (int j = 0; j < AN; j++)
                  acc[i][j] = __builtin_fmaf(pa[b][i >> 2][i & 3], vb[b][j], acc[i][j]);
            }
          }
        };
        if constexpr (!EDGE && STRAIGHT == 1) {
          UNROLL for (int stage = 0; stage < STAGES; stage++) {
            open(stage);
            NO_UNROLL for (int unit = 0; unit < UNITS_V; unit++) {
              put(stage * (UNITS_V * PC), (stage + 1) * (UNITS_V * PC));
              multiply(weights, sm + X + unit * (UK * V_STRIDE));
            }
          }
        } else if constexpr (!EDGE && STRAIGHT == 2) {
          NO_UNROLL for (int stage = 0; stage < STAGES; stage++) {
            open(stage);
            UNROLL for (int unit = 0; unit < UNITS_V; unit++) {
              put(unit * PC, 0);
              multiply(weights, sm + X + unit * (UK * V_STRIDE));
            }
            if (stage + 1 < STAGES) {
              UNROLL for (int i = 0; i < TM; i++)
                UNROLL for (int j = 0; j + UNITS_V * PC < TN; j++) s[i][j] = s[i][j + UNITS_V * PC];
            }
          }
        } else {
          NO_UNROLL for (int unit = 0; unit < UNITS; unit++) {
            if (unit % UNITS_V == 0) open(unit / UNITS_V);
            if (unit % UNITS_P == 0) put(0, TN);
            multiply(weights + unit % UNITS_P * (UK * P_STRIDE), sm + X + unit % UNITS_V * (UK * V_STRIDE));
          }
        }
        sync_block();  // the values are dead
        if constexpr (!EDGE) {
          if (ready) store_k();
          sync_block();
        }
    };

    NO_UNROLL while (k0 < end) {
      const bool flushes = !HALF || call.part_ms != 0;
      const int stop = flushes && end - k0 > FLUSH * TILE ? k0 + FLUSH * TILE : end;
      NO_UNROLL while (k0 < stop) {
        if (!LEAN && k0 + TILE > near_to) approach(here(), k0);
        if (k0 >= full_from && k0 < plain_to) {
          if (!ready) {
            load_k(k0, 0);
            store_k();
            sync_block();
          }
          const int halt = min_of(stop, plain_to), latest = min_of(end, plain_to) - TILE;
          NO_UNROLL do {
            ready = k0 < latest;
            attend(Plain());
            k0 += TILE;
          } while (k0 < halt);
        } else {
          attend(Edge());
          k0 += TILE;
        }
      }
      const bool more = stop < end, parts = call.part_ms != 0;
      if (more || parts || flushed) {
        exchange(home(here()), flushed, more || parts);
        flushed = true;
      }
    }

    // Finished rows. The sums of the next row become those of the first.
    if constexpr (PAIRS) {
      const float odd = half_to_float(odd_sums & 0xffff) + half_to_float(odd_sums >> 16);
      UNROLL for (int i = 0; i < TM; i++) sum[i] += odd;
    }
    UNROLL for (int i = 0; i < TM; i++)
      UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) sum[i] += shuffle_xor(sum[i], w);
    const Share share = here();
    const Sequence& q = share.sequence;
    const Home x = home(share);
    const int t = opaque(tid), g = lane_col(t), row = own_row(call, share, t);
    if (call.part_ms != 0) {
      const Address at = call.part_ms + (row_number(call, q, share.head, row) * call.splits + share.split) * 8;
      UNROLL for (int i = 0; i < TM; i++) {
        const bool empty = m[i] == NO_KEY && sum[i] == 0.f;
        const float reference = m[i] != NO_KEY ? m[i] : empty ? NEG_INF : 0.f;
        if ((int)(g == 0) & (int)(i < x.left)) write_f2(at + (long long)i * call.splits * 8, f2{reference, sum[i]});
      }
      return;
    }
    NO_UNROLL for (int i = 0; i < TM; i++) {
      const float total = sum[0];
      const bool empty = m[0] == NO_KEY && total == 0.f;
      if (i < x.left) {
        const Address out = output_row(call, q.batch, share.head, q.query0 + row + i);
        NO_UNROLL for (int h = 0; h < AF; h++) {
          const f4 y = {acc[0][0], acc[0][1], acc[0][2], acc[0][3]};
          UNROLL for (int j = 0; j + 4 < AN; j++) acc[0][j] = acc[0][j + 4];
          write_output4(call, out, dim_of(g, h * 4), quotient(y, total, empty), HALF ? call.dtype : TYPE_F32);
        }
        if (g == 0 && call.lse != 0) {
          const float reference = m[0] != NO_KEY ? m[0] : empty ? NEG_INF : 0.f;
          write_f32(call.lse + row_number(call, q, share.head, row + i) * 4, log_sum_exp(reference, total));
        }
      }
      UNROLL for (int n = 0; n + 1 < TM; n++) {
        sum[n] = sum[n + 1];
        m[n] = m[n + 1];
        UNROLL for (int j = 0; j < AN; j++) acc[n][j] = acc[n + 1][j];
      }
    }
  }
};

// The kernel `name` of a shape, of which an SM of the newer GPUs is to hold BLOCKS blocks.
#define ATTENTION(name, IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, LEAN, BLOCKS)             \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Call call) {                              \
    typedef Attention<IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, LEAN> A;              \
    SHARED(memory, A::SHARED_BYTES);                                                                 \
    A::run(memory, call);                                                                            \
  }
