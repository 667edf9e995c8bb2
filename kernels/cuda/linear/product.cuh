// Products of a state, or of the rows of a warp, with the tokens of a chunk.
#pragma once

#include "../common/elements.cuh"
#include "call.cuh"

// The columns of a state per lane: four, or two.
template <int COUNT> struct Lane;
template <> struct Lane<4> { typedef f4 Type; };
template <> struct Lane<2> { typedef f2 Type; };
constexpr int count_of(const f4*) { return 4; }
constexpr int count_of(const f2*) { return 2; }
template <class V> constexpr int COUNT_OF = count_of((const V*)0);

INLINE void clear(f2& x) { x = f2{0.f, 0.f}; }
template <class V> INLINE V none() {
  V x;
  clear(x);
  return x;
}
INLINE void fill(f4& x, SharedBytes p) { x = load_shared(p); }
INLINE void fill(f2& x, SharedBytes p) { x = load_shared_f2(p); }
INLINE void store_shared(SharedBytes p, f2 x) { store_shared_f2(p, x); }
template <class V> INLINE V loaded(SharedBytes p) {
  V x;
  fill(x, p);
  return x;
}

template <class V> INLINE void add_product(V& sum, float x, const V& y) {
  UNROLL for (int c = 0; c < COUNT_OF<V>; c++) sum[c] = __builtin_fmaf(x, y[c], sum[c]);
}

// Subtracting x from itself would be enough if the difference were not contracted into a multiply-add.
INLINE bool is_finite(float x) { return __builtin_fabsf(x) <= 3.40282346638528859812e38f; }
INLINE bool is_finite(const f4& x) {
  return is_finite(x[0]) && is_finite(x[1]) && is_finite(x[2]) && is_finite(x[3]);
}

INLINE bool is_finite(const f2& x) { return is_finite(x[0]) && is_finite(x[1]); }

// The sum over the slices of a warp, in every lane.
template <class V> INLINE V over_slices(V x) {
  UNROLL for (int bit = 2; bit < 32; bit *= 2)
    UNROLL for (int c = 0; c < COUNT_OF<V>; c++) x[c] += shuffle_xor(x[c], bit);
  return x;
}

// A state of DIMS rows in a warp, with the columns of V per lane.
template <int DIMS, class V> struct Columns {
  enum { ROWS = DIMS / 16, QUADS = ROWS / 4, ROW_BYTES = DIMS * 4, COUNT = COUNT_OF<V> };
  V row[ROWS];

  // The row in register r of a slice.
  static INLINE int row_of(int slice, int r) { return ((r >> 2) * 16 + slice) * 4 + (r & 3); }
  // The slice's first quad of a row of a tile; the others are 256 bytes apart.
  static INLINE SharedBytes own_quads(SharedBytes tile, int token, int slice) {
    return tile + (token * ROW_BYTES + slice * 16);
  }

  // S' x for the rows x of TILES consecutive tiles; returns those of token `slice`.
  template <int TILES> INLINE void times_tiles(SharedBytes tile, int slice, V (&result)[TILES]) const {
    V second[TILES];
    UNROLL for (int t = 0; t < TILES; t++) second[t] = none<V>();
    NO_UNROLL for (int half = 0; half < CHUNK; half += 8) {
      V sum[TILES][8];
      UNROLL for (int j = 0; j < 8; j++) {
        const SharedBytes own = own_quads(tile, (slice ^ half) ^ j, slice);
        UNROLL for (int t = 0; t < TILES; t++) {
          sum[t][j] = none<V>();
          UNROLL for (int i = 0; i < QUADS; i++) {
            const f4 x = load_shared(own + (t * CHUNK * ROW_BYTES + i * 256));
            UNROLL for (int e = 0; e < 4; e++) add_product(sum[t][j], x[e], row[i * 4 + e]);
          }
        }
      }
      UNROLL for (int bit = 1; bit < 8; bit *= 2)
        UNROLL for (int j = 0; j < 8; j += 2 * bit)
          UNROLL for (int t = 0; t < TILES; t++)
            UNROLL for (int c = 0; c < COUNT; c++) sum[t][j][c] += shuffle_xor(sum[t][j + bit][c], 2 * bit);
      UNROLL for (int t = 0; t < TILES; t++) {
        result[t] = second[t];
        second[t] = sum[t][0];
      }
    }
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int c = 0; c < COUNT; c++) result[t][c] += shuffle_xor(second[t][c], 16);
  }

  // Updates each row to `kept` times itself plus the sum over tokens of their element of the tile times their row of
  // columns. Some rows at a time are summed separately.
  template <class Kept> INLINE void change(SharedBytes tile, SharedBytes tokens, int slice, Kept kept) {
    constexpr int TIMES = ROWS > 8 ? 2 : 1, SOME = ROWS / TIMES;
    NO_UNROLL for (int time = 0; time < TIMES; time++) {
      const int first = time * (SOME / 4);
      V sum[SOME];
      UNROLL for (int r = 0; r < SOME; r++) sum[r] = none<V>();
      NO_UNROLL for (int j = 0; j < CHUNK; j += 4) {
        UNROLL for (int t = 0; t < 4; t++) {
          const V u = loaded<V>(tokens + (j + t) * (COUNT * 8));
          const SharedBytes own = own_quads(tile, j + t, slice) + first * 256;
          UNROLL for (int i = 0; i < SOME / 4; i++) {
            const f4 x = load_shared(own + i * 256);
            UNROLL for (int e = 0; e < 4; e++) add_product(sum[i * 4 + e], x[e], u);
          }
        }
      }
      UNROLL for (int i = 0; i < SOME / 4; i++) {
        const f4 factor = kept(first + i);
        UNROLL for (int e = 0; e < 4; e++) add_product(sum[i * 4 + e], factor[e], row[i * 4 + e]);
      }
      // Rotates these rows behind the others.
      UNROLL for (int r = 0; r < ROWS - SOME; r++) row[r] = row[r + SOME];
      UNROLL for (int r = 0; r < SOME; r++) row[ROWS - SOME + r] = sum[r];
    }
  }
};

// A matrix of a chunk in shared memory: quads of a row are permuted, so that adjacent rows are read without conflicts.
INLINE int matrix_quad(int row, int quad) { return row * 4 + (quad ^ ((row >> 1) & 3)); }

// Row `slice` of a matrix, multiplied by the tokens' rows of columns. Unless all these rows are `finite`, tokens after `slice`,
// whose weight is zero, are skipped.
template <class V> INLINE V times_matrix(SharedBytes matrix, SharedBytes tokens, int slice, bool finite) {
  constexpr int TOKEN_BYTES = COUNT_OF<V> * 8;
  V sum[2] = {none<V>(), none<V>()};
  if (RARELY(!finite)) {
    NO_UNROLL for (int j = 0; j <= slice; j++) {
      const float weight = load_shared_f(matrix + matrix_quad(slice, j >> 2) * 16 + (j & 3) * 4);
      add_product(sum[0], weight, loaded<V>(tokens + j * TOKEN_BYTES));
    }
    return sum[0];
  }
  UNROLL for (int j = 0; j < CHUNK; j += 4) {
    const f4 weights = load_shared(matrix + matrix_quad(slice, j >> 2) * 16);
    UNROLL for (int e = 0; e < 4; e++) add_product(sum[e & 1], weights[e], loaded<V>(tokens + (j + e) * TOKEN_BYTES));
  }
  return sum[0] + sum[1];
}
