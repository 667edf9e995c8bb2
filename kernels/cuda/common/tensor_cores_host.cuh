// The host's version of tensor_cores.cuh. Copies to shared memory complete at once.
//
// The model of a Tensor Core: products are exact. The sixteen products and the sum before them are truncated to a multiple of
// 2^(e - 24), where 2^e is the binade of the largest of them, then summed exactly, and the sum is truncated to f32.
#pragma once

#define DYNAMIC_SHARED(name, bytes) SHARED(name, bytes)

// Truncates x to a multiple of 2^n.
inline double truncated(double x, int n) { return __builtin_ldexp(__builtin_trunc(__builtin_ldexp(x, -n)), n); }

INLINE void mma_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Site at = Site::here()) {
  const int lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
  unsigned rows[4][4], columns[2][2][4];  // [register][lane of the row]; [column][register][lane of the column]
  for (int r = 0; r < 4; r++)
    for (int l = 0; l < 4; l++) rows[r][l] = host::shuffle_from(a[r], g * 4 + l, at);
  for (int column = 0; column < 2; column++)
    for (int l = 0; l < 4; l++) {
      columns[column][0][l] = host::shuffle_from(b0, (2 * t + column) * 4 + l, at);
      columns[column][1][l] = host::shuffle_from(b1, (2 * t + column) * 4 + l, at);
    }
  for (int i = 0; i < 4; i++) {
    double terms[17] = {c[i]}, largest = __builtin_fabs(c[i]), sum = 0.;
    for (int k = 0; k < 16; k++) {
      const int half = k >> 3, l = (k & 7) >> 1, shift = 16 * (k & 1);
      const double x = f16_to_float(rows[(i >> 1) + 2 * half][l] >> shift & 0xffff);
      terms[k + 1] = x * f16_to_float(columns[i & 1][half][l] >> shift & 0xffff);
      largest = __builtin_fmax(largest, __builtin_fabs(terms[k + 1]));
    }
    if (largest == 0.) continue;
    for (const double x : terms) sum += truncated(x, __builtin_ilogb(largest) - 24);
    c[i] = (float)(sum == 0. ? 0. : truncated(sum, __builtin_ilogb(sum) - 23));
  }
}

template <bool TRANSPOSED> INLINE void load_matrices(unsigned (&r)[4], SharedBytes from, Site at = Site::here()) {
  const int lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
  const unsigned long long all = (unsigned long long)from;
  auto row = [&](int matrix, int i) {
    const int of = matrix * 8 + i;
    const unsigned low = host::shuffle_from((unsigned)all, of, at), high = host::shuffle_from((unsigned)(all >> 32), of, at);
    return (SharedBytes)(low | (unsigned long long)high << 32);
  };
  host::sync_warp(at);
  for (int matrix = 0; matrix < 4; matrix++) {
    if constexpr (TRANSPOSED) {
      const SharedBytes first = row(matrix, 2 * t), second = row(matrix, 2 * t + 1);
      r[matrix] = host::at_shared<unsigned short>(first + 2 * g) | (unsigned)host::at_shared<unsigned short>(second + 2 * g) << 16;
    } else {
      r[matrix] = host::at_shared<unsigned>(row(matrix, g) + 4 * t);
    }
  }
  host::sync_warp(at);
}

INLINE void load_words(unsigned (&x)[4], SharedBytes at) {
  const f4 y = load_shared(at);
  for (int i = 0; i < 4; i++) x[i] = __builtin_bit_cast(unsigned, (float)y[i]);
}

template <int OFFSET> INLINE void copy16_async(SharedBytes to, Address from) {
  store_shared(to + OFFSET, read_f4(from + OFFSET));
}
INLINE void copy4_async(SharedBytes to, Address from) { store_shared_f(to, read_f32(from)); }
INLINE void copies_end() {}
template <int LEFT> INLINE void copies_wait() {}

INLINE unsigned pack_f16(float low, float high) { return float_to_f16(low) | float_to_f16(high) << 16; }
INLINE void scale_and_add(float& x, float y, float z) { x = __builtin_fmaf(x, y, z); }
INLINE void raise_u32(Address a, unsigned x) {
  unsigned& word = host::at<unsigned>(a);
  unsigned old = __atomic_load_n(&word, __ATOMIC_RELAXED);
  while (old < x && !__atomic_compare_exchange_n(&word, &old, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
