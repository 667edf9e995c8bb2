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
//  6. Instances that are CHANGED apply a soft cap, and add biases and masks to the scores of every tile (added.cuh). If one f32
//     tensor is added and its keys are adjacent, a warp copies the addends of its rows to shared memory while the previous tile is
//     computed. Such bytes of a mask, and such 16-bit elements, are read by the lanes that own the scores. Other addends are summed
//     by the warp, eight rows at a time, in shared memory.
//     Addends may move a reference beyond the whole numbers that f32 holds, so the weights are scaled by 2^15 after the exponential,
//     not in its argument.
//  7. Instances of F16 take one product of f16 values for each product of operands, on request only: f32 operands and weights are
//     rounded to 11 bits. The guard tests the losses beyond that.
//  8. Two groups of warps of a block may divide the tiles of the keys (PARTS in exact.cuh). After the loop, the second group
//     leaves its state in shared memory, and the first one merges it with its own.
#pragma once

#include "../added.cuh"
#include "queries.cuh"
#include "results.cuh"

template <int BYTES, int NT, int AT = 0> INLINE void copy_image(SharedBytes to, Address from) {
  if constexpr (AT < BYTES) {
    copy16_async<AT>(to, from);
    copy_image<BYTES, NT, AT + NT * 16>(to, from);
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
  s.is = one && x.key == 1 && (tile + 1) * S::BN <= seq.reach;
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

// Applies the soft cap to four scores at a time, rotating the scores.
template <class S> INLINE void cap_scores(const Call& call, float (&s)[S::ROWS][S::TILES][4]) {
  constexpr int ROWS = S::ROWS, TILES = S::TILES;
  NO_UNROLL for (int all = 0; all < ROWS * TILES; all++) {
    float y[4];
    UNROLL for (int e = 0; e < 4; e++) y[e] = soft_cap(call, s[0][0][e]);
    UNROLL for (int n = 1; n < ROWS * TILES; n++) UNROLL for (int e = 0; e < 4; e++)
      s[(n - 1) / TILES][(n - 1) % TILES][e] = s[n / TILES][n % TILES][e];
    UNROLL for (int e = 0; e < 4; e++) s[ROWS - 1][TILES - 1][e] = y[e];
  }
}

// Makes base-2 scores of the sums of a tile, plus their addends, which may have been `copied` to shared memory.
template <class S>
INLINE void change_scores(SharedBytes sm, const Call& call, float (&s)[S::ROWS][S::TILES][4], const float (&row_scale)[S::ROWS][2],
                        float k_down, int tile, bool copied) {
  constexpr int BN = S::BN, ROWS = S::ROWS, TILES = S::TILES;
  const int at = opaque(thread_index()), lane = at & 31, g = lane >> 2, column = 2 * (at & 3);
  const SharedBytes area = sm + S::ADDENDS + (at >> 5) * S::ADDED;
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 4; e++)
    s[i][n][e] *= row_scale[i][e >> 1] * k_down;
  if (call.cap != 0.f) cap_scores<S>(call, s);
  if (call.changes == 0) return;
  const bool straight = !copied && straight_of<S>(call, tile).is;
  if (copied) sync_warp();
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
    const int row = i * 16 + 8 * r + g;
    float x[TILES][2];
    if (copied) {
      const SharedBytes from = area + (row * S::ADDED_ROW + column * 4);
      UNROLL for (int n = 0; n < TILES; n++) {
        const f2 y = load_shared_f2(from + n * 32);
        UNROLL for (int e = 0; e < 2; e++) x[n][e] = limited(y[e]);
      }
    } else if (straight) {
      const Straight own = straight_of<S>(call, tile);
      const int size = addend_size(own.kind);
      const Address from = own.from + min_of(own.row0 + row, own.last_row) * own.per_row + column * size;
      const bool pairs = ((own.from | own.per_row) & (2 * size - 1)) == 0;
      unsigned raw[TILES];
      if (own.kind == ADDEND_BOOL) {
        UNROLL for (int n = 0; n < TILES; n++) raw[n] = pairs ? load_u16(from + n * 8) : load_u8(from + n * 8) | load_u8(from + n * 8 + 1) << 8;
        UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++) x[n][e] = (raw[n] >> 8 * e & 0xff) != 0 ? 0.f : NEG_INF;
      } else {
        UNROLL for (int n = 0; n < TILES; n++)
          raw[n] = pairs ? (unsigned)load_i32(from + n * 16) : load_u16(from + n * 16) | load_u16(from + n * 16 + 2) << 16;
        UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++) {
          const unsigned bits = raw[n] >> 16 * e & 0xffff;
          x[n][e] = limited(own.kind == ADDEND_F16 ? f16_to_float(bits) : bf16_to_float(bits));
        }
      }
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
    UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++)
      s[i][n][2 * r + e] = changed(s[i][n][2 * r + e], x[n][e]);
  }
  if (copied) sync_warp();
}

template <class S> INLINE void attend(SharedBytes sm, const Call& call, const Planes& planes) {
  typedef Image<S::D, S::BN, S::ONE> I;
  constexpr int BN = S::BN, ROWS = S::ROWS, KD = S::KD, KN = S::KN, TILES = S::TILES, DT = S::DT, P = S::PAIRS;
  const int tid = thread_index(), lane = tid & 31, warp = (tid >> 5) % S::ABREAST;
  const int own_part = S::PARTS == 1 ? 0 : (tid >> 5) / S::ABREAST;
  int first, last, plain_from, plain_to;
  int place;  // of the key head's first tile; launches have a block for each tile, so it fits
  {
    const Share share = share_of(call, block_index());
    const Sequence& seq = share.sequence;
    const int block0 = share.row_block * S::BM;
    if (block0 >= seq.queries) return;
    const Range a = range_of(seq, block0), b = range_of(seq, min_of(block0 + S::BM, seq.queries) - 1);
    const int part = share.split * call.chunk, end = min_of(part + call.chunk, b.end);
    first = max_of(part, a.start) / BN;
    last = (end + BN - 1) / BN;
    plain_from = (max_of(b.start, part) + BN - 1) / BN;
    plain_to = min_of(a.end, end) / BN;
    place = (int)first_tile<I>(planes, seq, share.index, quotient_of(share.head, call.by_group));
  }
  // TIGHT instances compute addresses anew rather than keep them.
  const Address first_image = planes.images + (long long)place * I::BYTES + tid * 16;
  auto image_of = [&](int tile) LAMBDA {
    if constexpr (S::TIGHT) return planes.images + (long long)(place + tile) * I::BYTES + tid * 16;
    return first_image + (long long)tile * I::BYTES;
  };
  auto shifts_of = [&](int tile) LAMBDA { return load_u2(planes.shifts + (place + tile) * 8ll); };
  auto fetch_keys = [&](int tile, int at) LAMBDA { copy_image<I::KEYS, S::NT>(sm + at + tid * 16, image_of(tile)); };
  auto fetch_values = [&](int tile, int at) LAMBDA {
    copy_image<I::KEYS, S::NT>(sm + at + I::KEYS + tid * 16, image_of(tile) + I::KEYS);
  };
  // Fetches the tiles that the parts compute next to stage `at`.
  auto fetch_tiles = [&](int tile, int at) LAMBDA {
    UNROLL for (int part = 0; part < S::PARTS; part++)
      if (part == 0 || tile + part < last) {
        fetch_keys(tile + part, at + part * I::BYTES);
        fetch_values(tile + part, at + part * I::BYTES);
      }
    copies_end();
  };
  bool copied = false;  // whether the addends of the tile are copied to shared memory
  if (first < last) {
    if constexpr (S::STAGES == 2) {
      fetch_tiles(first, 0);
    } else {
      fetch_keys(first, 0);
      copies_end();
    }
  }

  constexpr int QR = S::IN_SHARED ? 1 : ROWS, QK = S::IN_SHARED ? 1 : KD;
  const SharedBytes queries = sm + (S::QUERIES_AT + (tid >> 5) * ROWS * KD * S::FRAGMENT + lane * 16);
  unsigned qh[QR][QK][4], ql[QR][QK][4];
  float row_scale[ROWS][2];
  const bool refused = !split_queries<S>(queries, call, planes, warp, row_scale);
  if constexpr (!S::IN_SHARED) {
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int k = 0; k < KD; k++) {
      load_words(qh[i][k], queries + (i * KD + k) * S::FRAGMENT);
      if (!S::ONE) load_words(ql[i][k], queries + (i * KD + k) * S::FRAGMENT + 512);
    }
  }
  if (any_of_block(refused)) {
    const Share share = share_of(call, opaque(block_index()));
    const Address word = planes.refused + of_rows(call, planes, share, share.row_block * S::BM) * 4;
    if (tid == 0) write_f32(word, 1.f);
    copies_wait<0>();
    return;
  }
  if constexpr (S::STAGES == 1) {
    if (first < last) {
      if constexpr (S::CHANGED) copied = fetch_addends<S>(sm, call, first);
      if constexpr (S::CHANGED) copies_end();
      fetch_values(first, 0);
    }
    copies_end();
  }

  // Where the lane's row of an 8 x 8 matrix begins; the low bits of a chunk's number are permuted by the row.
  const int k_lane = ((lane & 7) + ((lane >> 4) & 1) * 8) * I::ROW, k_chunk = (((lane >> 3) & 1) ^ I::permuted_by(lane & 7)) << 4;

  float o[ROWS][DT][4], reference[ROWS][2], sum[ROWS][2];
  UNROLL for (int i = 0; i < ROWS; i++) {
    UNROLL for (int r = 0; r < 2; r++) reference[i][r] = NO_KEY, sum[i][r] = 0.f;
    UNROLL for (int n = 0; n < DT; n++) UNROLL for (int e = 0; e < 4; e++) o[i][n][e] = 0.f;
  }
  int v_shift = 0, stage = 0;

  NO_UNROLL for (int next = first; next < last; next += S::PARTS) {
    copies_wait<S::STAGES == 1 ? S::LATER : 0>();
    sync_block();
    const int tile = next + own_part;
    const SharedBytes here = sm + (stage + own_part * I::BYTES);
    if constexpr (S::STAGES == 2) {
      stage = S::PARTS * I::BYTES - stage;
      if (next + S::PARTS < last) fetch_tiles(next + S::PARTS, stage);
    }
    if (S::PARTS > 1 && tile >= last) continue;

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
            const SharedBytes from = queries + (i * KD + k) * S::FRAGMENT;
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
      UNROLL for (int x = S::ONE ? KD : 0; x < (3 - A) * KD; x++) {
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
      change_scores<S>(sm, call, s, row_scale, keys_down(shifts_of(tile)), tile, copied);
      copied = tile + 1 < last && fetch_addends<S>(sm, call, tile + 1);
      copies_end();
    }
    if (tile < plain_from || tile >= plain_to) {
      const Share share = share_of(call, opaque(block_index()));
      const Sequence& seq = share.sequence;
      const int part = share.split * call.chunk, at = opaque(thread_index());
      const int column = tile * BN + 2 * (at & 3), row = share.row_block * S::BM + (at >> 5) % S::ABREAST * ROWS * 16 + ((at & 31) >> 2);
      UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int r = 0; r < 2; r++) {
        const Range x = range_of(seq, min_of(row + i * 16 + 8 * r, seq.queries - 1));
        const int from = max_of(x.start, part) - column, to = min_of(x.end, part + call.chunk) - column;
        UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++)
          if (n * 8 + e < from || n * 8 + e >= to) s[i][n][2 * r + e] = NEG_INF;
      }
    }

    const u2 of_tile = shifts_of(tile);
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
        const Split x = split_of<S::F16>(s[i][2 * k + (e >> 1)][(e & 1) * 2], s[i][2 * k + (e >> 1)][(e & 1) * 2 + 1]);
        ph[i][k][e] = x.hi;
        pl[i][k][e] = x.lo;
      }
    }
    if constexpr (S::STAGES == 1) {
      copies_wait<S::LATER>();
      sync_block();
    }

    const int reader = S::TIGHT ? opaque(lane) : lane, v_lane = ((reader & 7) + ((reader >> 3) & 1) * 8) * I::ROW;
    const int v_chunk = ((reader >> 4) ^ I::permuted_by(reader & 7)) << 4;
    constexpr int GROUP = S::GROUP, GROUPS = DT / 2 / GROUP, KEPT = S::LATE ? 2 : 1;
    float c[KEPT][GROUP][ROWS][2][4];
    auto add = [&](int group) LAMBDA {
      UNROLL for (int j = 0; j < GROUP; j++) UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int e = 0; e < 4; e++)
          scale_and_add(o[i][2 * (group * GROUP + j) + h][e], change[i][e >> 1], c[group % KEPT][j][i][h][e]);
    };
    UNROLL for (int group = 0; group < GROUPS; group++) {
      auto& sums = c[group % KEPT];
      UNROLL for (int j = 0; j < GROUP; j++) UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int e = 0; e < 4; e++) sums[j][i][h][e] = 0.f;
      UNROLL for (int k = 0; k < KN; k++) {
        unsigned bh[GROUP][4], bl[GROUP][4];
        auto multiply = [&](const unsigned (&p)[ROWS][KN][4], const unsigned (&b)[GROUP][4]) LAMBDA {
          UNROLL for (int j = 0; j < GROUP; j++) UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int h = 0; h < 2; h++)
            mma_f16(sums[j][i][h], p[i][k], b[j][2 * h], b[j][2 * h + 1]);
        };
        UNROLL for (int j = 0; j < GROUP; j++) {
          const int d = group * GROUP + j;
          const SharedBytes at = here + I::KEYS + (v_lane + k * 16 * I::ROW + (d >> 2) * 128 + (v_chunk ^ ((d & 3) << 5)));
          load_matrices<true>(bh[j], at);
          if constexpr (!S::ONE) load_matrices<true>(bl[j], at + I::PLANE);
        }
        if constexpr (!S::ONE) multiply(ph, bl);
        if constexpr (!S::F16) multiply(pl, bh);
        multiply(ph, bh);
        if (S::LATE && k == 0 && group > 0) add(group - 1);
      }
      if (!S::LATE || group == GROUPS - 1) add(group);
    }
    if constexpr (S::STAGES == 1) {
      sync_block();
      if (tile + 1 < last) fetch_values(tile + 1, 0);
      copies_end();
    }
  }

  sync_block();
  if constexpr (S::PARTS == 2) {
    if (!join_parts<S>(sm, own_part, o, reference, sum, v_shift)) return;
  }
  write_results<S>(sm, call, o, reference, sum, exact_power(-v_shift));
}

// Parameters: name, blocks per SM, those of Exact.
#define ATTENTION_SPLIT(name, BLOCKS, ...)                                        \
  typedef Exact<__VA_ARGS__> name##_shape;                                        \
  KERNEL LAUNCH_BOUNDS(name##_shape::NT, BLOCKS) void name(const TensorCall x) {  \
    DYNAMIC_SHARED(memory, name##_shape::SHARED_BYTES);                           \
    attend<name##_shape>(memory, x.call, x.planes);                               \
  }
