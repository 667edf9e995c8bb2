// Output of finished rows.
#pragma once

#include "../common/state.cuh"
#include "place.cuh"

// Writes x to columns first .. first + 3 of an output row, up to value_dim.
INLINE void write_output4(const Call& call, Address row, int first, f4 x, int dtype) {
  if ((call.flags & OUTPUT_VEC4) && first < call.value_dim) {
    if (dtype == TYPE_F32) {
      write_f4(row + first * 4, x);
    } else {
      u2 y;
      y[0] = narrow(x[0], dtype) | narrow(x[1], dtype) << 16;
      y[1] = narrow(x[2], dtype) | narrow(x[3], dtype) << 16;
      write_u2(row + first * 2, y);
    }
    return;
  }
  UNROLL for (int i = 0; i < 4; i++)
    if (first + i < call.value_dim) write_element(row, first + i, x[i], dtype);
}

// Writes W / S to columns first .. first + 3 of an output row, zero for an empty state. Each column is divided,
// because the product of W with 1 / S would round twice. Zeros are positive.
INLINE void write_quotient4(const Call& call, Address row, int first, f4 w, float s, bool empty, int dtype) {
  f4 y;
  UNROLL for (int i = 0; i < 4; i++) y[i] = empty ? 0.f : w[i] / s + 0.f;
  write_output4(call, row, first, y, dtype);
}
