// W in memory: the output row or the partial state.
#pragma once

#include "tile.cuh"

// Location of the lane's rows of W.
template <class S> INLINE typename Tiles<S>::Home Tiles<S>::home(const Share& share) {
  const int row = own_row(share, opaque(tid));
  const Sequence& q = share.sequence;
  Home x;
  x.left = q.queries - row;
  if (call.part_ms != 0) {
    x.step = (long long)call.splits * call.part_dim * 4;
    x.at = call.part_w + row_number(call, q, share.head, row) * x.step + (long long)share.split * call.part_dim * 4;
    x.width = call.part_dim;
    x.vec4 = true;
  } else {
    x.step = call.output.token * 4;
    x.at = call.output.data + row_offset(call.output, q.batch, share.head, q.query0 + row) * 4;
    x.width = call.value_dim;
    x.vec4 = (call.flags & OUTPUT_VEC4) != 0;
  }
  return x;
}

// With `add`, acc = acc + memory; then, with `store`, memory = acc and acc = 0.
template <class S> INLINE void Tiles<S>::exchange(const Home& x, bool add, bool store) {
  const int g = lane_col(opaque(tid));
  if (B16 || x.vec4) {
    const Address at = x.at + g * 16;
    auto there = [&](int i, int h) LAMBDA { return (int)(i < x.left) & (int)(dim_of(g, h * 4) < x.width); };
    constexpr int ROWS = BUDGET || D > 64 ? 4 : TM;  // rows with loads in flight at once, which is limited by registers
    UNROLL for (int i0 = 0; i0 < TM; i0 += ROWS) {
      f4 y[ROWS][AF];
      UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int h = 0; h < AF; h++) {
          clear(y[i][h]);
          if ((int)add & there(i0 + i, h)) y[i][h] = read_f4(at + (i0 + i) * x.step + dim_of(0, h * 4) * 4);
        }
      UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int h = 0; h < AF; h++) {
          float* a = acc[i0 + i] + h * 4;
          UNROLL for (int e = 0; e < 4; e++) a[e] += y[i][h][e];
          if ((int)store & there(i0 + i, h))
            write_f4(at + (i0 + i) * x.step + dim_of(0, h * 4) * 4, f4{a[0], a[1], a[2], a[3]});
          UNROLL for (int e = 0; e < 4; e++) a[e] = store ? 0.f : a[e];
        }
    }
  } else {
    NO_UNROLL for (int i = 0; i < TM; i++) {
      NO_UNROLL for (int j = 0; j < AN; j++) {
        float w = acc[0][0];
        if (i < x.left && dim_of(g, j) < x.width) {
          const Address a = x.at + i * x.step + dim_of(g, j) * 4;
          if (add) w += read_f32(a);
          if (store) write_f32(a, w);
        }
        UNROLL for (int n = 0; n + 1 < AN; n++) acc[0][n] = acc[0][n + 1];
        acc[0][AN - 1] = store ? 0.f : w;
      }
      UNROLL for (int j = 0; j < AN; j++) {
        const float w = acc[0][j];
        UNROLL for (int n = 0; n + 1 < TM; n++) acc[n][j] = acc[n + 1][j];
        acc[TM - 1][j] = w;
      }
    }
  }
}

// Multiplies row i in memory by `scale`, because its reference moved.
template <class S> INLINE void Tiles<S>::rescale(const Home& x, int i, int g, const float& scale) {
  NO_UNROLL for (int j = 0; j < AN; j++) {
    const Address a = x.at + i * x.step + dim_of(g, j) * 4;
    if (dim_of(g, j) < x.width) write_f32(a, read_f32(a) * scale);
  }
}
