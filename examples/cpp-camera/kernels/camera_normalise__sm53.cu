// Layer normalisation. A warp has a row.
#include "common/device.cuh"
#include "calls.cuh"

using namespace camera;

INLINE float sum_of_warp(float x) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

KERNEL LAUNCH_BOUNDS(32, 32) void camera_normalise__sm53(const Normalise call) {
  const Address row = (Address)(block_index() * (long long)call.width) * 4;
  float sum = 0.f, squares = 0.f;
  NO_UNROLL for (int i = thread_index(); i < call.width; i += 32) sum += load_f32(call.x + row + (Address)i * 4);
  const float mean = sum_of_warp(sum) / (float)call.width;
  NO_UNROLL for (int i = thread_index(); i < call.width; i += 32) {
    const float x = load_f32(call.x + row + (Address)i * 4) - mean;
    squares += x * x;
  }
  const float factor = 1.f / __builtin_sqrtf(sum_of_warp(squares) / (float)call.width + call.epsilon);
  NO_UNROLL for (int i = thread_index(); i < call.width; i += 32) {
    const Address at = (Address)i * 4;
    const float x = load_f32(call.x + row + at) - mean;
    write_f32(call.y + row + at, x * factor * load_f32(call.weight + at) + load_f32(call.bias + at));
  }
}
