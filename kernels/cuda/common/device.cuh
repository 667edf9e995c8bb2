// The device interface of the kernels: threads, votes, barriers, shared memory, loads, conversions.
//
// The part below is for clang's CUDA without NVIDIA's headers, limited to what sm_53 supports. With ELSA_HOST the same sources
// compile for a host, and "host.cuh" replaces this part. It must define, with the given meaning:
//
//   f4, f2             vectors of four and two f32 values; the kernels use them by index and by + and *
//   u2                 vector of two 32-bit words
//   KERNEL INLINE LAMBDA UNROLL NO_UNROLL LAUNCH_BOUNDS(threads, blocks)
//   SharedBytes        pointer to bytes of shared memory;  SHARED(name, bytes) declares an array per block,
//                      aligned to 1024 bytes, with `name` as its SharedBytes
//   thread_index block_index            thread within its block, block within the grid (both in x)
//   block_count                         blocks of the grid
//   sync_block any_of_block(bool)       barrier of the block; the same with an "or" over all threads
//   sync_warp any_of_warp(bool)         barrier of the warp; vote of the warp
//   ballot(bool)                        the votes of the warp, lane n's in bit n
//   shuffle_xor(float, mask)            the value of lane ^ mask
//   shuffle_from(unsigned, lane)        the value of a lane; each lane may read from a different one
//   load_shared store_shared            16 bytes; load_shared_f2 store_shared_f2: 8 bytes; load_shared_f store_shared_f: 4 bytes
//   load_f4 load_f32 load_i32 load_u2 load_u16 load_u8     from global memory that nothing writes during the launch
//   prefetch(Address)  a hint that the line will be loaded from global memory
//   read_f4 read_f2 read_f32, write_f4 write_f2 write_f32 write_u2 write_u16 write_u8    any global memory
//   fetch_f4 fetch_f2                   global memory that other blocks of the launch have written
//   add_u32(Address, int)               adds to a word of global memory that only one thread accesses, without waiting
//   fence_device()                      every thread of the device sees this thread's earlier accesses before its later ones
//   count_round(Address, unsigned last) the value of a counter before it becomes one more, or zero after `last`; atomic
//   exp2_fast(x)       2^x with a relative error of at most 2^-22; results below 2^-126 are zero
//   reciprocal_fast(x) 1 / x for normal x with a relative error of at most 2^-23
//   fma_flushed(a, b, c)                a * b + c, rounded once; subnormal arguments and results are zero
//   f16_to_float float_to_f16           16-bit patterns of f16 values, to nearest even
//   half2_fma(a, b, c)                  two f16 values at a time: a * b + c, rounded once each
//   opaque(int)        the value itself, which the compiler must recompute here rather than keep
//   forget(f4&) forget(f2&) forget(u2&)  the vector may hold anything from here on
//   anything()         any value: none is computed for it
//   after_loads(float, bits)            the value itself, which waits for all loads whose bits are combined by or
//   bits_of float_of_bits bits_of_double double_of_bits
#pragma once

#include "tensor.cuh"

#ifdef ELSA_HOST
#include "host.cuh"
#else

typedef float f4 __attribute__((ext_vector_type(4)));
typedef float f2 __attribute__((ext_vector_type(2)));
typedef unsigned u2 __attribute__((ext_vector_type(2)));
typedef __attribute__((address_space(3))) char* SharedBytes;

#define KERNEL extern "C" __attribute__((global))
#define LAUNCH_BOUNDS(threads, blocks) __attribute__((launch_bounds(threads, blocks)))
#define INLINE __attribute__((device)) __attribute__((always_inline)) inline
#define LAMBDA __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define RARELY(x) __builtin_expect((x), 0)  // unlikely code is moved out of the way
#define SHARED(name, bytes)                                                                        \
  static __attribute__((shared)) __attribute__((aligned(1024))) char name##_array[bytes];          \
  const SharedBytes name = (SharedBytes)name##_array

#define SHARED_AS(type) __attribute__((address_space(3))) type
#define GLOBAL_AS(type) __attribute__((address_space(1))) type

INLINE int thread_index() { return __nvvm_read_ptx_sreg_tid_x(); }
INLINE int block_index() { return __nvvm_read_ptx_sreg_ctaid_x(); }
INLINE int block_count() { return __nvvm_read_ptx_sreg_nctaid_x(); }
INLINE void sync_block() { __syncthreads(); }
INLINE bool any_of_block(bool x) { return __nvvm_bar0_or(x) != 0; }
INLINE void sync_warp() { __nvvm_bar_warp_sync(0xffffffffu); }
INLINE bool any_of_warp(bool x) { return __nvvm_vote_any_sync(0xffffffffu, x); }
INLINE unsigned ballot(bool x) { return __nvvm_vote_ballot_sync(0xffffffffu, x); }
INLINE float shuffle_xor(float x, int mask) { return __nvvm_shfl_sync_bfly_f32(0xffffffffu, x, mask, 0x1f); }
INLINE unsigned shuffle_from(unsigned x, int lane) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, x, lane, 0x1f); }

INLINE f4 load_shared(SharedBytes p) { return *(SHARED_AS(f4)*)p; }
INLINE void store_shared(SharedBytes p, f4 x) { *(SHARED_AS(f4)*)p = x; }
INLINE f2 load_shared_f2(SharedBytes p) { return *(SHARED_AS(f2)*)p; }
INLINE void store_shared_f2(SharedBytes p, f2 x) { *(SHARED_AS(f2)*)p = x; }
INLINE float load_shared_f(SharedBytes p) { return *(SHARED_AS(float)*)p; }
INLINE void store_shared_f(SharedBytes p, float x) { *(SHARED_AS(float)*)p = x; }

INLINE f4 load_f4(Address a) { return __nvvm_ldg_f4((const f4*)a); }
INLINE float load_f32(Address a) { return __nvvm_ldg_f((const float*)a); }
INLINE int load_i32(Address a) { return __nvvm_ldg_i((const int*)a); }
INLINE u2 load_u2(Address a) { return __nvvm_ldg_ui2((const u2*)a); }
INLINE unsigned load_u16(Address a) { return __nvvm_ldg_us((const unsigned short*)a); }
INLINE unsigned load_u8(Address a) { return __nvvm_ldg_uc((const unsigned char*)a); }

INLINE void prefetch(Address a) { asm volatile("prefetch.global.L2 [%0];" : : "l"(a)); }

INLINE f4 read_f4(Address a) { return *(GLOBAL_AS(const f4)*)a; }
INLINE f2 read_f2(Address a) { return *(GLOBAL_AS(const f2)*)a; }
INLINE float read_f32(Address a) { return *(GLOBAL_AS(const float)*)a; }
// These loads bypass the first cache, which does not see other SMs' writes.
INLINE f4 fetch_f4(Address a) {
  float x, y, z, w;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "l"(a) : "memory");
  return f4{x, y, z, w};
}
INLINE f2 fetch_f2(Address a) {
  float x, y;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "l"(a) : "memory");
  return f2{x, y};
}
INLINE void write_f4(Address a, f4 x) { *(GLOBAL_AS(f4)*)a = x; }
INLINE void write_f2(Address a, f2 x) { *(GLOBAL_AS(f2)*)a = x; }
INLINE void write_f32(Address a, float x) { *(GLOBAL_AS(float)*)a = x; }
INLINE void write_u2(Address a, u2 x) { *(GLOBAL_AS(u2)*)a = x; }
INLINE void write_u16(Address a, unsigned x) { *(GLOBAL_AS(unsigned short)*)a = (unsigned short)x; }
INLINE void write_u8(Address a, unsigned x) { *(GLOBAL_AS(unsigned char)*)a = (unsigned char)x; }

INLINE void add_u32(Address a, int x) { asm volatile("red.global.add.u32 [%0], %1;" : : "l"(a), "r"(x) : "memory"); }

INLINE void fence_device() { __nvvm_membar_gl(); }
INLINE unsigned count_round(Address a, unsigned last) {
  unsigned x;
  asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(x) : "l"(a), "r"(last) : "memory");
  return x;
}

INLINE float exp2_fast(float x) { return __nvvm_ex2_approx_ftz_f(x); }
INLINE float reciprocal_fast(float x) { return __nvvm_rcp_approx_ftz_f(x); }
INLINE float fma_flushed(float a, float b, float c) { return __nvvm_fma_rn_ftz_f(a, b, c); }
INLINE float f16_to_float(unsigned x) { return (float)__builtin_bit_cast(_Float16, (unsigned short)x); }
INLINE unsigned float_to_f16(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); }
INLINE unsigned half2_fma(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

INLINE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

INLINE float anything() {
  float x;
  asm volatile("mov.f32 %0, 0f7FC00000;" : "=f"(x));
  return x;
}
INLINE void forget(f4& x) {
  f4 any;
  x = any;
}
INLINE void forget(f2& x) {
  f2 any;
  x = any;
}
INLINE void forget(u2& x) {
  u2 any;
  x = any;
}

INLINE unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }
INLINE float float_of_bits(unsigned x) { return __builtin_bit_cast(float, x); }
// The assembler cannot know that the sum is x. Otherwise it would use the first load, and wait for it, before it begins
// the others.
INLINE float after_loads(float x, unsigned loaded) {
  unsigned sign, zero;
  asm("shr.u32 %0, %1, 31;" : "=r"(sign) : "r"(loaded));
  asm("mul.hi.u32 %0, %1, 2;" : "=r"(zero) : "r"(sign));
  return float_of_bits(bits_of(x) + zero);
}
INLINE unsigned long long bits_of_double(double x) { return __builtin_bit_cast(unsigned long long, x); }
INLINE double double_of_bits(unsigned long long x) { return __builtin_bit_cast(double, x); }

#endif

// a * b with its own rounding: it never becomes part of a fused multiply-add.
INLINE float product(float a, float b) {
#ifdef ELSA_HOST
  float x = a * b;
  asm("" : "+m"(x));
  return x;
#else
  return __nvvm_mul_rn_f(a, b);
#endif
}

INLINE float max2(float a, float b) { return __builtin_fmaxf(a, b); }
INLINE int max_of(int a, int b) { return a > b ? a : b; }
INLINE int min_of(int a, int b) { return a < b ? a : b; }

// A bf16 value is the upper half of an f32 value.
INLINE float bf16_to_float(unsigned x) { return float_of_bits(x << 16); }
INLINE unsigned float_to_bf16(float x) {
  const unsigned b = bits_of(x);
  if (x != x) return (b >> 16) | 0x40;  // a NaN stays NaN
  return (b + 0x7fff + ((b >> 16) & 1)) >> 16;
}

// Converts a 16-bit element of the call's type to f32, and back.
INLINE float widen(unsigned x, int dtype) { return dtype == TYPE_F16 ? f16_to_float(x) : bf16_to_float(x); }
INLINE unsigned narrow(float x, int dtype) { return dtype == TYPE_F16 ? float_to_f16(x) : float_to_bf16(x); }

// Element `i` of a tensor of the call's type that starts at `a`.
INLINE float element(Address a, long long i, int dtype) {
  return dtype == TYPE_F32 ? load_f32(a + i * 4) : widen(load_u16(a + i * 2), dtype);
}
INLINE void write_element(Address a, long long i, float x, int dtype) {
  if (dtype == TYPE_F32) write_f32(a + i * 4, x);
  else write_u16(a + i * 2, narrow(x, dtype));
}
INLINE int element_size(int dtype) { return dtype == TYPE_F32 ? 4 : 2; }
