// Index arithmetic: quotients by the divisors of a call, offsets of rows.
#pragma once

#include "device.cuh"

// n / d for n below 2^31; devices lack an instruction for it.
INLINE int quotient_of(int n, const Divisor& d) {
  return (int)((unsigned)((unsigned long long)((unsigned)n * 2) * d.multiplier >> 32) >> d.shift);
}

// Offset of a row's first element from the tensor's first, in elements.
INLINE long long row_offset(const Tensor& t, int batch, int head, int token) {
  return (long long)((unsigned)batch * (Address)t.batch + (unsigned)head * (Address)t.head) + token * t.token;
}
