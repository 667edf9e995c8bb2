// Queries in shared memory: scaled, transposed to [dim][row], permuted like the keys.
#pragma once

#include "tile.cuh"

// Stores item n: four rows x, at the four dims from 4 (n % DF) on.
template <class S> INLINE void Tiles<S>::store_q(int n, const Raw4 (&x)[4]) {
  const int c = n % DF, r = n / DF;
  if constexpr (PAIRS) {
    const SharedBytes p = sm + c * 2 * Q_STRIDE + ((r ^ (c >> 1 & 7)) << 4);
    UNROLL for (int e = 0; e < 2; e++) store_shared(p + e * Q_STRIDE, words4(x[0][e], x[1][e], x[2][e], x[3][e]));
  } else {
    const SharedBytes p = sm + c * 4 * Q_STRIDE + ((r ^ (c & 7)) << 4);
    f4 y[4];
    UNROLL for (int e = 0; e < 4; e++) y[e] = to_f32(x[e], call.dtype) * call.query_factor;
    UNROLL for (int e = 0; e < 4; e++) store_shared(p + e * Q_STRIDE, f4{y[0][e], y[1][e], y[2][e], y[3][e]});
  }
}

// Stores the queries of the block. Rows past the last one repeat it if rows are read four elements at a time.
template <class S> INLINE void Tiles<S>::store_queries(const Call& call, const Share& outset) {
  const Sequence& s = outset.sequence;
  const int row0 = first_row(outset);
  const Address q = query_row(call, s, outset.head, row0, SIZE);
  const int last = s.queries - 1 - row0;
  if (call.flags & QUERY_VEC4) {
    constexpr int BATCH = NT % DF == 0 && Q_ITEMS % 2 == 0 ? 2 : 1;
    const int step = (int)call.query.token * SIZE;
    NO_UNROLL for (int n = tid; n < Q_ITEMS * NT; n += BATCH * NT) {
      Raw4 x[BATCH][4];
      const int c = n % DF;
      if (c * 4 < call.head_dim) {
        UNROLL for (int i = 0; i < BATCH; i++)
          UNROLL for (int e = 0; e < 4; e++)
            load4(x[i][e], q + (long long)min_of((n + i * NT) / DF * 4 + e, last) * step + c * (4 * SIZE));
      } else {
        UNROLL for (int i = 0; i < BATCH; i++)
          UNROLL for (int e = 0; e < 4; e++) clear(x[i][e]);
      }
      UNROLL for (int i = 0; i < BATCH; i++) store_q(n + i * NT, x[i]);
    }
  } else {
    NO_UNROLL for (int n = tid; n < Q_ITEMS * NT; n += NT) {
      Raw4 x[4];
      NO_UNROLL for (int e = 0; e < 4; e++) {
        const int r = n / DF * 4 + e;
        UNROLL for (int i = 0; i + 1 < 4; i++) x[i] = x[i + 1];
        load4_checked(x[3], q + r * call.query.token * SIZE, n % DF * 4, r <= last ? call.head_dim : 0, false);
      }
      store_q(n, x);
    }
  }
}
