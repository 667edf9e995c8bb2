// Tensor Cores and copies to shared memory, as an addition to the device interface: compute capability 8.0 and later.
//
//   DYNAMIC_SHARED(name, bytes)   memory of the block whose size the launch states; `bytes` is that size
//   mma_f16(c, a, b0, b1)         c += a b: a 16 x 16 by 16 x 8 product of f16 values with f32 sums
//   load_matrices<TRANSPOSED>     four 8 x 8 matrices of 16-bit elements from shared memory; lane l has the address of row l % 8 of
//                                 matrix l / 8, and receives elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix, or of
//                                 its transpose
//   load_words                    16 bytes of shared memory, loaded here even if they were loaded before
//   copy16_async<OFFSET>          16 bytes from global to shared memory, both OFFSET bytes further on
//   copy4_async                   4 bytes from global to shared memory
//   copies_end copies_wait<N>     end of a group of such copies; waits until at most N groups of this lane are incomplete
//   pack_f16(a, b)                two f32 values as a word of f16 values, to nearest even, `a` in the low half
//   scale_and_add(x, y, z)        x = x y + z, rounded once, here and not later
//   raise_u32(Address, unsigned)  raises a word of global memory to at least that value
//
// A lane with g = lane / 4 and t = lane % 4 has these elements of a product:
//   c[0], c[1]: row g, columns 2 t and 2 t + 1           c[2], c[3]: row g + 8, the same columns
//   a[0]: row g, columns 2 t and 2 t + 1                 a[1]: row g + 8
//   a[2], a[3]: the same rows, columns 2 t + 8 and 2 t + 9
//   b0: column g, rows 2 t and 2 t + 1                   b1: the same column, rows 2 t + 8 and 2 t + 9
#pragma once

#include "device.cuh"

#ifdef ELSA_HOST
#include "tensor_cores_host.cuh"
#else

#define DYNAMIC_SHARED(name, bytes)                                                             \
  extern __attribute__((shared)) __attribute__((aligned(1024))) char name##_array[];            \
  const SharedBytes name = (SharedBytes)name##_array

INLINE unsigned shared_address(SharedBytes p) { return (unsigned)(unsigned long long)p; }

INLINE void mma_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool TRANSPOSED> INLINE void load_matrices(unsigned (&r)[4], SharedBytes at) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(at)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(at)) : "memory");
}

INLINE void load_words(unsigned (&x)[4], SharedBytes at) {
  asm volatile("ld.volatile.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(at)) : "memory");
}

template <int OFFSET> INLINE void copy16_async(SharedBytes to, Address from) {
  asm volatile("cp.async.cg.shared.global [%0+%2], [%1+%2], 16;"
               : : "r"(shared_address(to)), "l"(from), "n"(OFFSET) : "memory");
}
INLINE void copy4_async(SharedBytes to, Address from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(shared_address(to)), "l"(from) : "memory");
}
INLINE void copies_end() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int LEFT> INLINE void copies_wait() { asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory"); }

INLINE unsigned pack_f16(float low, float high) {
  unsigned x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}

INLINE void scale_and_add(float& x, float y, float z) {
  asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(y), "f"(z));
}

INLINE void raise_u32(Address a, unsigned x) {
  asm volatile("red.global.max.u32 [%0], %1;" : : "l"(a), "r"(x) : "memory");
}

#endif
