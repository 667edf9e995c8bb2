// A host in place of a device: defines every name that device.cuh lists, for kernels that clang compiles as C++.
//
// Each thread of a block is a lane with its own stack. tests/standin/block.cpp runs the lanes of a block and implements
// barriers, votes and shuffles. All lanes of a warp, or of a block, must arrive at the same one, at the same place in
// the sources, or the launch ends with a message: a device would hang or mix values.
//
// A device address is a host address plus DEVICE_OFFSET, so that neither side can dereference the other's by mistake,
// and every access here is a host access that a sanitizer sees. Accesses must be aligned to their size, as on the
// device. Shared memory is filled with NaN for every block.
#pragma once

#include "tensor.cuh"

typedef float f4 __attribute__((ext_vector_type(4)));
typedef float f2 __attribute__((ext_vector_type(2)));
typedef unsigned u2 __attribute__((ext_vector_type(2)));
typedef char* SharedBytes;

#define KERNEL extern "C" __attribute__((visibility("hidden")))
#define LAUNCH_BOUNDS(threads, blocks)
#define INLINE inline
#define LAMBDA
#define UNROLL
#define NO_UNROLL
#define RARELY(x) (x)
#define SHARED(name, bytes)    \
  static const char name##_tag = 0; \
  const SharedBytes name = host::shared(&name##_tag, bytes)

namespace host {

constexpr Address DEVICE_OFFSET = 1ull << 48;

// Identity of a lane.
struct Lane {
  int thread, block, blocks;
};
const Lane& lane();

// Returns the array of the lane's block that `tag` identifies; the first lane to call this creates it.
char* shared(const char* tag, int bytes);

// A place in the sources. As a default argument, the place of the call.
struct Site {
  const char* file;
  int line, column;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                             int column = __builtin_COLUMN()) {
    return {file, line, column};
  }
};

void sync_block(Site at);
bool any_of_block(bool x, Site at);
void sync_warp(Site at);
bool any_of_warp(bool x, Site at);
unsigned ballot(bool x, Site at);
float shuffle_xor(float x, int mask, Site at);
unsigned shuffle_from(unsigned x, int lane, Site at);

// Ends the process because of an access that a device would reject.
[[noreturn]] void refuse(const char* what, Address a, int size);

template <class T> inline T& at(Address a) {
  if (a < DEVICE_OFFSET || a >= 2 * DEVICE_OFFSET) refuse("not a device address", a, sizeof(T));
  if (a % sizeof(T) != 0) refuse("misaligned", a, sizeof(T));
  return *(T*)(a - DEVICE_OFFSET);
}

template <class T> inline T& at_shared(char* p) {
  if ((Address)p % sizeof(T) != 0) refuse("misaligned, shared", (Address)p, sizeof(T));
  return *(T*)p;
}

}  // namespace host

INLINE int thread_index() { return host::lane().thread; }
INLINE int block_index() { return host::lane().block; }
INLINE int block_count() { return host::lane().blocks; }

using host::Site;
INLINE void sync_block(Site at = Site::here()) { host::sync_block(at); }
INLINE bool any_of_block(bool x, Site at = Site::here()) { return host::any_of_block(x, at); }
INLINE void sync_warp(Site at = Site::here()) { host::sync_warp(at); }
INLINE bool any_of_warp(bool x, Site at = Site::here()) { return host::any_of_warp(x, at); }
INLINE unsigned ballot(bool x, Site at = Site::here()) { return host::ballot(x, at); }
INLINE float shuffle_xor(float x, int mask, Site at = Site::here()) { return host::shuffle_xor(x, mask, at); }
INLINE unsigned shuffle_from(unsigned x, int lane, Site at = Site::here()) { return host::shuffle_from(x, lane, at); }

INLINE f4 load_shared(SharedBytes p) { return host::at_shared<f4>(p); }
INLINE void store_shared(SharedBytes p, f4 x) { host::at_shared<f4>(p) = x; }
INLINE f2 load_shared_f2(SharedBytes p) { return host::at_shared<f2>(p); }
INLINE void store_shared_f2(SharedBytes p, f2 x) { host::at_shared<f2>(p) = x; }
INLINE float load_shared_f(SharedBytes p) { return host::at_shared<float>(p); }
INLINE void store_shared_f(SharedBytes p, float x) { host::at_shared<float>(p) = x; }

INLINE f4 load_f4(Address a) { return host::at<f4>(a); }
INLINE float load_f32(Address a) { return host::at<float>(a); }
INLINE int load_i32(Address a) { return host::at<int>(a); }
INLINE u2 load_u2(Address a) { return host::at<u2>(a); }
INLINE unsigned load_u16(Address a) { return host::at<unsigned short>(a); }
INLINE unsigned load_u8(Address a) { return host::at<unsigned char>(a); }
INLINE void prefetch(Address a) { (void)*(volatile unsigned char*)&host::at<unsigned char>(a); }

INLINE f4 read_f4(Address a) { return host::at<f4>(a); }
INLINE f2 read_f2(Address a) { return host::at<f2>(a); }
INLINE float read_f32(Address a) { return host::at<float>(a); }
INLINE f4 fetch_f4(Address a) { return host::at<f4>(a); }
INLINE f2 fetch_f2(Address a) { return host::at<f2>(a); }
INLINE float after_loads(float x, unsigned) { return x; }
INLINE void write_f4(Address a, f4 x) { host::at<f4>(a) = x; }
INLINE void write_f2(Address a, f2 x) { host::at<f2>(a) = x; }
INLINE void write_f32(Address a, float x) { host::at<float>(a) = x; }
INLINE void write_u2(Address a, u2 x) { host::at<u2>(a) = x; }
INLINE void add_u32(Address a, int x) { host::at<unsigned>(a) += (unsigned)x; }
// The counter orders accesses on the host.
INLINE void fence_device() {}
INLINE unsigned count_round(Address a, unsigned last) {
  unsigned* counter = &host::at<unsigned>(a);
  unsigned x = __atomic_load_n(counter, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(counter, &x, x >= last ? 0 : x + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
  return x;
}
INLINE void write_u16(Address a, unsigned x) { host::at<unsigned short>(a) = (unsigned short)x; }
INLINE void write_u8(Address a, unsigned x) { host::at<unsigned char>(a) = (unsigned char)x; }

// Results below 2^-126 are zero, as on the device; other results are more accurate than there.
INLINE float exp2_fast(float x) {
  const float y = __builtin_exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
}
INLINE float reciprocal_fast(float x) { return 1.f / x; }
INLINE float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.f, x) : x; }
INLINE float fma_flushed(float a, float b, float c) { return flushed(__builtin_fmaf(flushed(a), flushed(b), flushed(c))); }
INLINE float f16_to_float(unsigned x) { return (float)__builtin_bit_cast(_Float16, (unsigned short)x); }
INLINE unsigned float_to_f16(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); }
INLINE unsigned f16_fma(unsigned a, unsigned b, unsigned c) {
  const double x = __builtin_fma((double)f16_to_float(a), (double)f16_to_float(b), (double)f16_to_float(c));
  return __builtin_bit_cast(unsigned short, (_Float16)x);
}
INLINE unsigned half2_fma(unsigned a, unsigned b, unsigned c) {
  return f16_fma(a & 0xffff, b & 0xffff, c & 0xffff) | f16_fma(a >> 16, b >> 16, c >> 16) << 16;
}

INLINE int opaque(int x) { return x; }
INLINE float anything() { return __builtin_nanf(""); }
INLINE void forget(f4& x) { x = f4{0.f, 0.f, 0.f, 0.f}; }
INLINE void forget(f2& x) { x = f2{0.f, 0.f}; }
INLINE void forget(u2& x) { x = u2{0, 0}; }

INLINE unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }
INLINE float float_of_bits(unsigned x) { return __builtin_bit_cast(float, x); }
INLINE unsigned long long bits_of_double(double x) { return __builtin_bit_cast(unsigned long long, x); }
INLINE double double_of_bits(unsigned long long x) { return __builtin_bit_cast(double, x); }
