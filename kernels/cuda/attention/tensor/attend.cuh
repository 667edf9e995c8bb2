// Exact softmax attention on Tensor Cores with the accuracy of f32 sums.
//
//   s_ij = q_i . k_j     y_i = sum_j 2^(s_ij - m_i) v_j / sum_j 2^(s_ij - m_i)
//
// The naive way multiplies f16 or TF32 operands, with errors of 2^-11 in every product. Here every f32 operand is the sum of
// two f16 values, x 2^s = hi + lo (planes.cuh), and a product is hi hi + hi lo + lo hi, with f32 sums.
//
// f16 and bf16 operands are one f16 value, x 2^s = hi, and one product. The factor of the scores then goes into the argument of the
// exponential.
//
//  1. A Tensor Core truncates its sums. So the small products hi lo and lo hi come first: added to a large sum, they would lose
//     what they are there for. The weighted sum of a tile starts from zero and is added to W by one multiply-add.
//  2. The weights, times 2^15, are split like the values. References are whole numbers, so a change of reference is an exact
//     power of two, and the factors 2^s go into the argument of the exponential, exactly.
//  3. A warp owns 16 ROWS rows. Its queries stay in registers, or in shared memory if registers do not suffice (IN_SHARED).
//  4. The planes of keys and values are copied to shared memory as they lie in global memory, without registers. One tile of
//     each is there: keys of the next tile travel under the weighted sum, values under the scores.
//  5. Before anything is computed, the block tests its queries with the guard (planes.cuh). If they do not pass, the block sets
//     `refused` for its rows and returns; the launch that follows computes them with f32 products. All splits of the rows
//     decide alike. A result depends on its own queries and its own key head alone.
//  6. Instances that are CHANGED add biases and masks to the scores of every tile (added.cuh). If one f32 tensor is added and its
//     keys are adjacent, a warp copies the addends of its rows to shared memory while the previous tile is computed. Bytes of a
//     mask are read by the lanes that own the scores. Other addends are summed by the warp, eight rows at a time, in shared memory.
//     Addends may move a reference beyond the whole numbers that f32 holds, so the weights are scaled by 2^15 after the exponential,
//     not in its argument.
#pragma once

#include "../../common/elements.cuh"
#include "../../common/state.cuh"
#include "../added.cuh"
#include "planes.cuh"

// D: head size; BN: keys of a tile; WARPS; ROWS: products of 16 rows that a warp owns; PAIRS: 16 keys whose scores are computed
// together; IN_SHARED: queries in shared memory; APART: own sums for the small products; STAGES: tiles in shared memory; CHANGED:
// biases and masks; B16: elements of 16 bits.
template <int D_, int BN_, int WARPS_, int ROWS_, int PAIRS_, bool IN_SHARED_, bool APART_, int STAGES_, bool CHANGED_, bool B16_>
struct Exact {
  static constexpr int D = D_, BN = BN_, WARPS = WARPS_, ROWS = ROWS_, PAIRS = PAIRS_;
  static constexpr bool IN_SHARED = IN_SHARED_, APART = APART_ && !B16_, CHANGED = CHANGED_, B16 = B16_;
  static constexpr int STAGES = STAGES_;
  static constexpr int BM = WARPS * ROWS * 16, NT = WARPS * 32, KD = D / 16, KN = BN / 16, TILES = BN / 8, DT = D / 8;
  static constexpr int FRAGMENT = B16 ? 512 : 1024;  // bytes of 16 rows and 16 dims of queries
  static constexpr int QUERIES = IN_SHARED ? BM * D / 256 * FRAGMENT : 0, TILE_BYTES = STAGES_ * Image<D, BN, B16>::BYTES;
  // Addends of the rows of a warp. The padding keeps the lanes of a row in banks of their own.
  static constexpr int ADDENDS = TILE_BYTES + QUERIES, ADDED_ROW = (BN + 8) * 4, ADDED = CHANGED_ ? ROWS * 16 * ADDED_ROW : 0;
  static constexpr int SHARED_BYTES = ADDENDS + WARPS * ADDED;
  static_assert(!CHANGED_ || STAGES_ == 1, "");
  // Groups of copies that may be incomplete when the first of keys, addends and values is needed.
  static constexpr int LATER = CHANGED_ ? 2 : 1;
};

template <int BYTES, int NT, int AT = 0> INLINE void copy_image(SharedBytes to, Address from) {
  if constexpr (AT < BYTES) {
    copy16_async<AT>(to, from);
    copy_image<BYTES, NT, AT + NT * 16>(to, from);
  }
}

// Two adjacent elements of a query row at address `row`; scaled, if they have 32 bits.
template <bool B16> INLINE f2 load_query2(const Call& call, Address row, int c) {
  f2 x = {0.f, 0.f};
  if constexpr (B16) {
    const unsigned y = c < call.head_dim ? bits_of(read_f32(row + c * 2)) : 0;
    return f2{widen(y & 0xffff, call.dtype), widen(y >> 16, call.dtype)};
  } else {
    if (c < call.head_dim) x = read_f2(row + c * 4);
    return x * call.query_factor;
  }
}

// The factor that undoes the shift of a tile's keys.
INLINE float keys_down(u2 of_tile) { return exact_power((int)of_tile[0] == NO_SHIFT ? 0 : -(int)of_tile[0]); }

// The addends of a warp's rows in a tile, if they are the elements of one tensor whose keys are adjacent.
struct Straight {
  bool is;
  int kind, row0, last_row;
  long long per_row;  // bytes
  Address from;       // the first key's element of row 0
};

template <class S> INLINE Straight straight_of(const Call& call, int tile) {
  const Share share = share_of(call, opaque(block_index()));
  const Sequence& seq = share.sequence;
  const bool of_bias = call.changes == CHANGED_BY_BIAS, one = of_bias ? !call.windows.positions : call.changes == CHANGED_BY_MASK;
  const Addend& x = of_bias ? call.bias : call.mask;
  Straight s;
  s.kind = x.kind;
  s.row0 = share.row_block * S::BM + (opaque(thread_index()) >> 5) * S::ROWS * 16;
  s.last_row = seq.queries - 1;
  s.per_row = x.query * addend_size(s.kind);
  s.from = addend_base(x, seq, share.head) + tile * S::BN * addend_size(s.kind);
  s.is = one && x.key == 1 && (s.kind == ADDEND_F32 || s.kind == ADDEND_BOOL) && (tile + 1) * S::BN <= seq.reach;
  return s;
}

// Begins to copy the addends of a tile to shared memory. Returns whether they are copied.
template <class S> INLINE bool fetch_addends(SharedBytes sm, const Call& call, int tile) {
  const Straight x = straight_of<S>(call, tile);
  if (!x.is || x.kind != ADDEND_F32) return false;
  constexpr int ROWS = S::ROWS * 16, CHUNKS = S::BN / 4;
  const int lane = opaque(thread_index()) & 31;
  const SharedBytes area = sm + S::ADDENDS + (opaque(thread_index()) >> 5) * S::ADDED;
  if (((x.from | x.per_row) & 15) == 0) {
    UNROLL for (int i = 0; i < ROWS * CHUNKS / 32; i++) {
      const int row = (i * 32 + lane) / CHUNKS, chunk = (i * 32 + lane) % CHUNKS * 16;
      copy16_async<0>(area + (row * S::ADDED_ROW + chunk), x.from + min_of(x.row0 + row, x.last_row) * x.per_row + chunk);
    }
  } else {
    NO_UNROLL for (int i = 0; i < ROWS * S::BN / 32; i++) {
      const int row = (i * 32 + lane) / S::BN, key = (i * 32 + lane) % S::BN * 4;
      copy4_async(area + (row * S::ADDED_ROW + key), x.from + min_of(x.row0 + row, x.last_row) * x.per_row + key);
    }
  }
  return true;
}

// Makes base-2 scores of the sums of a tile, plus their addends, which may have been `copied` to shared memory.
template <class S>
INLINE void add_addends(SharedBytes sm, const Call& call, float (&s)[S::ROWS][S::TILES][4], const float (&row_scale)[S::ROWS][2],
                        float k_down, int tile, bool copied) {
  constexpr int BN = S::BN, ROWS = S::ROWS, TILES = S::TILES;
  const int at = opaque(thread_index()), lane = at & 31, g = lane >> 2, column = 2 * (at & 3);
  const SharedBytes area = sm + S::ADDENDS + (at >> 5) * S::ADDED;
  if (copied) {
    sync_warp();
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
      const SharedBytes from = area + ((i * 16 + 8 * r + g) * S::ADDED_ROW + column * 4);
      const float to = row_scale[i][r] * k_down;
      UNROLL for (int n = 0; n < TILES; n++) {
        const f2 x = load_shared_f2(from + n * 32);
        UNROLL for (int e = 0; e < 2; e++) s[i][n][2 * r + e] = changed(s[i][n][2 * r + e] * to, added(0.f, x[e]));
      }
    }
    sync_warp();
    return;
  }
  const bool straight = straight_of<S>(call, tile).is;
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
    const int row = i * 16 + 8 * r + g;
    float x[TILES][2];
    if (straight) {
      const Straight own = straight_of<S>(call, tile);
      const Address from = own.from + min_of(own.row0 + row, own.last_row) * own.per_row + column;
      const bool pairs = ((own.from | own.per_row) & 1) == 0;
      unsigned raw[TILES];
      UNROLL for (int n = 0; n < TILES; n++) raw[n] = pairs ? load_u16(from + n * 8) : load_u8(from + n * 8) | load_u8(from + n * 8 + 1) << 8;
      UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++) x[n][e] = (raw[n] >> 8 * e & 0xff) != 0 ? 0.f : NEG_INF;
    } else {
      const Share share = share_of(call, opaque(block_index()));
      const Sequence& seq = share.sequence;
      const int row0 = share.row_block * S::BM + (at >> 5) * ROWS * 16 + i * 16 + 8 * r;
      NO_UNROLL for (int e = lane; e < 8 * BN; e += 32) {
        const int query = min_of(row0 + e / BN, seq.queries - 1), key = min_of(tile * BN + e % BN, seq.reach - 1);
        store_shared_f(area + e / BN * S::ADDED_ROW + e % BN * 4, added_to(call, seq, share.head, query, key));
      }
      sync_warp();
      UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++)
        x[n][e] = load_shared_f(area + g * S::ADDED_ROW + (n * 8 + column + e) * 4);
      sync_warp();
    }
    const float to = row_scale[i][r] * k_down;
    UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++)
      s[i][n][2 * r + e] = changed(s[i][n][2 * r + e] * to, x[n][e]);
  }
}

template <class S> INLINE void attend(SharedBytes sm, const Call& call, const Planes& planes) {
  typedef Image<S::D, S::BN, S::B16> I;
  constexpr int D = S::D, BN = S::BN, ROWS = S::ROWS, KD = S::KD, KN = S::KN, TILES = S::TILES, DT = S::DT, P = S::PAIRS;
  const int tid = thread_index(), lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  int first, last, plain_from, plain_to;
  Address image, shifts;
  {
    const Share share = share_of(call, block_index());
    const Sequence& seq = share.sequence;
    const int block0 = share.row_block * S::BM;
    if (block0 >= seq.queries) return;
    const int of_kv = share.index * planes.kv_heads + quotient_of(share.head, call.by_group);
    const Range a = range_of(seq, block0), b = range_of(seq, min_of(block0 + S::BM, seq.queries) - 1);
    const int part = share.split * call.chunk, end = min_of(part + call.chunk, b.end);
    first = max_of(part, a.start) / BN;
    last = (end + BN - 1) / BN;
    plain_from = (max_of(b.start, part) + BN - 1) / BN;
    plain_to = min_of(a.end, end) / BN;
    image = planes.images + (long long)of_kv * planes.tiles * I::BYTES + tid * 16;
    shifts = planes.shifts + (long long)of_kv * planes.tiles * 8;
  }
  auto fetch_keys = [&](int tile, int at) LAMBDA { copy_image<I::KEYS, S::NT>(sm + at + tid * 16, image + (long long)tile * I::BYTES); };
  auto fetch_values = [&](int tile, int at) LAMBDA {
    copy_image<I::KEYS, S::NT>(sm + at + I::KEYS + tid * 16, image + (long long)tile * I::BYTES + I::KEYS);
  };
  bool copied = false;  // whether the addends of the tile are copied to shared memory
  if (first < last) {
    fetch_keys(first, 0);
    if (S::STAGES == 1) copies_end();
    if constexpr (S::CHANGED) {
      copied = fetch_addends<S>(sm, call, first);
      copies_end();
    }
    fetch_values(first, 0);
  }
  copies_end();

  // Queries, and their guard.
  constexpr int QR = S::IN_SHARED ? 1 : ROWS, QK = S::IN_SHARED ? 1 : KD;
  unsigned qh[QR][QK][4], ql[QR][QK][4];
  float row_scale[ROWS][2];
  {
    const Share share = share_of(call, opaque(block_index()));
    const Sequence& seq = share.sequence;
    const int row0 = share.row_block * S::BM + warp * ROWS * 16;
    const int of_kv = share.index * planes.kv_heads + quotient_of(share.head, call.by_group);
    bool refused = load_i32(planes.refused + of_kv * 4ll) != 0;
    const Address channels = planes.channels + (long long)of_kv * 3 * D * 4;
    UNROLL for (int i = 0; i < ROWS; i++) {
      Address rows[2];
      float up[2], missed[2] = {}, size[2] = {};
      UNROLL for (int r = 0; r < 2; r++) {
        rows[r] = query_row(call, seq, share.head, min_of(row0 + i * 16 + g + 8 * r, seq.queries - 1), S::B16 ? 2 : 4);
        unsigned most = 0;
        UNROLL for (int c = 0; c < DT; c++) {
          const f2 x = load_query2<S::B16>(call, rows[r], c * 8 + 2 * t);
          most = larger(most, larger(magnitude(x[0]), magnitude(x[1])));
        }
        most = largest_of_lanes(most, 1, 2);
        refused = refused || !is_ordinary(most);
        const int shift = shift_for(most);
        // A negative factor would turn the largest sum into the smallest score, so its sign goes to the queries.
        up[r] = S::B16 && call.query_factor < 0.f ? -exact_power(shift) : exact_power(shift);
        row_scale[i][r] = S::B16 ? exact_power(-shift) * __builtin_fabsf(call.query_factor) : exact_power(-shift);
      }
      auto load = [&](int k) LAMBDA {
        const int again = opaque(0);  // the elements are loaded again, not kept
        unsigned h[4], l[4];
        UNROLL for (int half = 0; half < 2; half++) {
          const int c = k * 16 + half * 8 + 2 * t;
          const f2 most = read_f2(channels + c * 4), rest = read_f2(channels + (D + c) * 4), low = read_f2(channels + (2 * D + c) * 4);
          UNROLL for (int r = 0; r < 2; r++) {
            const f2 x = load_query2<S::B16>(call, rows[r] + again, c) * up[r];
            const Split s = split_of<S::B16>(x[0], x[1]);
            const Missed m = missed_by(x[0], x[1], s);
            UNROLL for (int e = 0; e < 2; e++) {
              const float a = __builtin_fabsf(x[e]);
              size[r] += a * most[e];
              missed[r] += a * rest[e] + m.residual[e] * most[e] + m.low[e] * low[e];
            }
            h[r + 2 * half] = s.hi;
            l[r + 2 * half] = s.lo;
          }
        }
        if constexpr (S::IN_SHARED) {
          const SharedBytes to = sm + S::TILE_BYTES + ((warp * ROWS + i) * KD + k) * S::FRAGMENT + lane * 16;
          store_shared(to, words4(h[0], h[1], h[2], h[3]));
          if (!S::B16) store_shared(to + 512, words4(l[0], l[1], l[2], l[3]));
        } else {
          UNROLL for (int e = 0; e < 4; e++) {
            qh[i][k][e] = h[e];
            ql[i][k][e] = l[e];
          }
        }
      };
      if constexpr (S::IN_SHARED) {
        NO_UNROLL for (int k = 0; k < KD; k++) load(k);
      } else {
        UNROLL for (int k = 0; k < KD; k++) load(k);
      }
      UNROLL for (int r = 0; r < 2; r++) {
        UNROLL for (int mask = 1; mask <= 2; mask <<= 1) {
          missed[r] += shuffle_xor(missed[r], mask);
          size[r] += shuffle_xor(size[r], mask);
        }
        refused = refused || !(missed[r] <= size[r] * MOST_SCORE) || size[r] * row_scale[i][r] > MOST_REFERENCE;
      }
    }
    if (any_of_block(refused)) {
      const Address word = planes.refused + of_rows(call, planes, share.index, share.head, share.row_block * S::BM) * 4;
      if (tid == 0) write_f32(word, 1.f);
      copies_wait<0>();
      return;
    }
  }

  // Where the lane's row of an 8 x 8 matrix begins; the low bits of a chunk's number are permuted by the row.
  const int k_lane = ((lane & 7) + ((lane >> 4) & 1) * 8) * I::ROW, k_chunk = (((lane >> 3) & 1) ^ (lane & 7)) << 4;
  const int v_lane = ((lane & 7) + ((lane >> 3) & 1) * 8) * I::ROW, v_chunk = ((lane >> 4) ^ (lane & 7)) << 4;

  float o[ROWS][DT][4], reference[ROWS][2], sum[ROWS][2];
  UNROLL for (int i = 0; i < ROWS; i++) {
    UNROLL for (int r = 0; r < 2; r++) reference[i][r] = NO_KEY, sum[i][r] = 0.f;
    UNROLL for (int n = 0; n < DT; n++) UNROLL for (int e = 0; e < 4; e++) o[i][n][e] = 0.f;
  }
  int v_shift = 0, stage = 0;

  NO_UNROLL for (int tile = first; tile < last; tile++) {
    copies_wait<S::STAGES == 1 ? S::LATER : 0>();
    sync_block();
    const SharedBytes here = sm + stage;
    if constexpr (S::STAGES == 2) {
      stage = I::BYTES - stage;
      if (tile + 1 < last) {
        fetch_keys(tile + 1, stage);
        fetch_values(tile + 1, stage);
        copies_end();
      }
    }

    float s[ROWS][TILES][4];
    UNROLL for (int n = 0; n < KN; n += P) {
      constexpr int A = S::APART ? 2 : 1;
      float c[A][ROWS][2 * P][4];
      UNROLL for (int a = 0; a < A; a++) UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int j = 0; j < 2 * P; j++) UNROLL for (int e = 0; e < 4; e++) c[a][i][j][e] = 0.f;
      unsigned ah[ROWS][4], al[ROWS][4], bh[P][4], bl[P][4];
      auto load = [&](int k, bool small) LAMBDA {
        UNROLL for (int i = 0; i < ROWS; i++) {
          if constexpr (S::IN_SHARED) {
            const SharedBytes from = sm + S::TILE_BYTES + ((warp * ROWS + i) * KD + k) * S::FRAGMENT + lane * 16;
            load_words(ah[i], from);
            if (small) load_words(al[i], from + 512);
          } else {
            UNROLL for (int e = 0; e < 4; e++) ah[i][e] = qh[i][k][e], al[i][e] = ql[i][k][e];
          }
        }
        UNROLL for (int p = 0; p < P; p++) {
          const SharedBytes at = here + (k_lane + (n + p) * 16 * I::ROW + (k >> 2) * 128 + (k_chunk ^ ((k & 3) << 5)));
          load_matrices<false>(bh[p], at);
          if (small) load_matrices<false>(bl[p], at + I::PLANE);
        }
      };
      // First the small products, and the large ones if they are APART; then the large ones.
      UNROLL for (int x = S::B16 ? KD : 0; x < (3 - A) * KD; x++) {
        const bool small = x < KD, large = S::APART || x >= KD;
        load(x % KD, small);
        UNROLL for (int p = 0; p < P; p++) {
          if (small) {
            UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++) mma_f16(c[0][i][2 * p + h], ah[i], bl[p][2 * h], bl[p][2 * h + 1]);
            UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++) mma_f16(c[0][i][2 * p + h], al[i], bh[p][2 * h], bh[p][2 * h + 1]);
          }
          if (large) {
            UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++) mma_f16(c[A - 1][i][2 * p + h], ah[i], bh[p][2 * h], bh[p][2 * h + 1]);
          }
        }
      }
      UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < 2 * P; j++) UNROLL for (int e = 0; e < 4; e++)
        s[i][2 * n + j][e] = S::APART ? c[0][i][j][e] + c[A - 1][i][j][e] : c[0][i][j][e];
    }
    if constexpr (S::STAGES == 1) {
      sync_block();
      if (tile + 1 < last) fetch_keys(tile + 1, 0);
      copies_end();
    }

    if constexpr (S::CHANGED) {
      copies_wait<S::LATER>();
      add_addends<S>(sm, call, s, row_scale, keys_down(load_u2(shifts + tile * 8)), tile, copied);
      copied = tile + 1 < last && fetch_addends<S>(sm, call, tile + 1);
      copies_end();
    }
    if (tile < plain_from || tile >= plain_to) {
      const Share share = share_of(call, opaque(block_index()));
      const Sequence& seq = share.sequence;
      const int part = share.split * call.chunk, at = opaque(thread_index());
      const int column = tile * BN + 2 * (at & 3), row = share.row_block * S::BM + (at >> 5) * ROWS * 16 + ((at & 31) >> 2);
      UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
        const Range x = range_of(seq, min_of(row + i * 16 + 8 * r, seq.queries - 1));
        const int from = max_of(x.start, part) - column, to = min_of(x.end, part + call.chunk) - column;
        UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++)
          if (n * 8 + e < from || n * 8 + e >= to) s[i][n][2 * r + e] = NEG_INF;
      }
    }

    const u2 of_tile = load_u2(shifts + tile * 8);
    const float k_down = keys_down(of_tile);
    const int v_now = (int)of_tile[1] == NO_SHIFT ? v_shift : (int)of_tile[1];
    const float v_change = exact_power(min_of(v_now - v_shift, 100));
    v_shift = v_now;
    float change[ROWS][2];
    unsigned ph[ROWS][KN][4], pl[ROWS][KN][4];
    UNROLL for (int i = 0; i < ROWS; i++) {
      UNROLL for (int r = 0; r < 2; r++) {
        float most = s[i][0][2 * r];
        UNROLL for (int n = 0; n < TILES; n++) most = max2(most, max2(s[i][n][2 * r], s[i][n][2 * r + 1]));
        UNROLL for (int mask = 1; mask <= 2; mask <<= 1) most = max2(most, shuffle_xor(most, mask));
        // The factor of 16-bit queries may be zero, but -inf times zero is no score.
        const float scale = row_scale[i][r] * k_down, to = S::CHANGED ? 1.f : S::B16 ? max2(scale, 0x1p-126f) : scale;
        const float now = max2(reference[i][r], __builtin_ceilf(most * to)), minus = 15.f - now;
        change[i][r] = exp2_fast(reference[i][r] - now);
        reference[i][r] = now;
        float add = 0.f;
        UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 2 * r; e < 2 * r + 2; e++) {
          s[i][n][e] = S::CHANGED ? exp2_fast(s[i][n][e] - now) * 32768.f : exp2_fast(__builtin_fmaf(s[i][n][e], to, minus));
          add += s[i][n][e];
        }
        scale_and_add(sum[i][r], change[i][r], add);
        change[i][r] *= v_change;
      }
      UNROLL for (int k = 0; k < KN; k++) UNROLL for (int e = 0; e < 4; e++) {
        const Split x = split_of(s[i][2 * k + (e >> 1)][(e & 1) * 2], s[i][2 * k + (e >> 1)][(e & 1) * 2 + 1]);
        ph[i][k][e] = x.hi;
        pl[i][k][e] = x.lo;
      }
    }
    if constexpr (S::STAGES == 1) {
      copies_wait<S::LATER>();
      sync_block();
    }

    UNROLL for (int d = 0; d < DT / 2; d++) {
      float c[ROWS][2][4];
      UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++) UNROLL for (int e = 0; e < 4; e++) c[i][h][e] = 0.f;
      UNROLL for (int k = 0; k < KN; k++) {
        unsigned bh[4], bl[4];
        const SharedBytes at = here + I::KEYS + (v_lane + k * 16 * I::ROW + (d >> 2) * 128 + (v_chunk ^ ((d & 3) << 5)));
        load_matrices<true>(bh, at);
        if constexpr (!S::B16) {
          load_matrices<true>(bl, at + I::PLANE);
          UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++) mma_f16(c[i][h], ph[i][k], bl[2 * h], bl[2 * h + 1]);
        }
        UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++) mma_f16(c[i][h], pl[i][k], bh[2 * h], bh[2 * h + 1]);
        UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++) mma_f16(c[i][h], ph[i][k], bh[2 * h], bh[2 * h + 1]);
      }
      UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++) UNROLL for (int e = 0; e < 4; e++)
        scale_and_add(o[i][2 * d + h][e], change[i][e >> 1], c[i][h][e]);
    }
    if constexpr (S::STAGES == 1) {
      sync_block();
      if (tile + 1 < last) fetch_values(tile + 1, 0);
      copies_end();
    }
  }

  const Share share = share_of(call, opaque(block_index()));
  const Sequence& seq = share.sequence;
  const int row0 = share.row_block * S::BM + warp * ROWS * 16;
  // Sums are scaled by 2^15, W by the shift of the values too. A reference that may be large stays as it is.
  constexpr float UNIT = S::CHANGED ? 0x1p-15f : 1.f, BELOW = S::CHANGED ? 0.f : 15.f;
  const float down = exact_power(-v_shift);
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
    UNROLL for (int mask = 1; mask <= 2; mask <<= 1) sum[i][r] += shuffle_xor(sum[i][r], mask);
    const int row = row0 + i * 16 + g + 8 * r;
    if (row >= seq.queries) continue;
    const long long number = row_number(call, seq, share.head, row);
    const bool empty = sum[i][r] == 0.f;
    const float m = empty ? NEG_INF : reference[i][r] - BELOW, total = sum[i][r] * UNIT;
    if (call.part_ms != 0) {
      const long long at = number * call.splits + share.split;
      if (t == 0) write_f2(call.part_ms + at * 8, f2{m, total});
      const Address w = call.part_w + at * call.part_dim * 4;
      UNROLL for (int n = 0; n < DT; n++)
        if (n * 8 + 2 * t < call.part_dim)
          write_f2(w + (n * 8 + 2 * t) * 4, f2{o[i][n][2 * r] * down * UNIT, o[i][n][2 * r + 1] * down * UNIT});
      continue;
    }
    const Address out = output_row(call, seq.batch, share.head, seq.query0 + row);
    UNROLL for (int n = 0; n < DT; n++) {
      const int c = n * 8 + 2 * t;
      f2 y;
      UNROLL for (int e = 0; e < 2; e++) y[e] = empty ? 0.f : o[i][n][2 * r + e] * down / sum[i][r] + 0.f;
      if (c >= call.value_dim) continue;
      if constexpr (S::B16) write_f32(out + c * 2, float_of_bits(narrow(y[0], call.dtype) | narrow(y[1], call.dtype) << 16));
      else write_f2(out + c * 4, y);
    }
    if (t == 0 && call.lse != 0) write_f32(call.lse + number * 4, log_sum_exp(m, total));
  }
}

// Parameters: name, blocks per SM, those of Exact.
#define ATTENTION_SPLIT(name, BLOCKS, ...)                                        \
  typedef Exact<__VA_ARGS__> name##_shape;                                        \
  KERNEL LAUNCH_BOUNDS(name##_shape::NT, BLOCKS) void name(const TensorCall x) {  \
    DYNAMIC_SHARED(memory, name##_shape::SHARED_BYTES);                           \
    attend<name##_shape>(memory, x.call, x.planes);                               \
  }
