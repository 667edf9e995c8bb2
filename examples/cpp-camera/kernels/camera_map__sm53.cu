// A linear map with what follows it. A thread has an output; neighbouring threads read neighbouring weights.
#include "series/functions.cuh"
#include "calls.cuh"

using namespace camera;

constexpr int THREADS = 128;

// erf x with an error of at most 6e-7: the rational approximation of Hastings (Abramowitz and Stegun 1964, 7.1.26).
INLINE float erf_of(float x) {
  const float a = __builtin_fabsf(x), t = 1.f / __builtin_fmaf(0.3275911f, a, 1.f);
  float p = 1.061405429f;
  p = __builtin_fmaf(p, t, -1.453152027f);
  p = __builtin_fmaf(p, t, 1.421413741f);
  p = __builtin_fmaf(p, t, -0.284496736f);
  p = __builtin_fmaf(p, t, 0.254829592f);
  const float y = 1.f - p * t * exp_of(-a * a);
  return x < 0.f ? -y : y;
}

KERNEL LAUNCH_BOUNDS(THREADS, 4) void camera_map__sm53(const Map call) {
  const int at = block_index() * THREADS + thread_index();
  if (at >= call.rows * call.outputs) return;
  const int row = at / call.outputs, o = at - row * call.outputs;
  const Address x = call.x + (Address)(row * (long long)call.inputs) * 4, y = call.y + (Address)at * 4;
  float sum = load_f32(call.bias + (Address)o * 4);
  const int inputs = call.sums == 0 ? call.inputs : 0;
  if (call.sums != 0) sum += load_f32(call.sums + (Address)at * 4);
  NO_UNROLL for (int i = 0; i < inputs; i++) {
    const float weight = load_f32(call.weight + (Address)(i * (long long)call.outputs + o) * 4);
    sum = __builtin_fmaf(load_f32(x + (Address)i * 4), weight, sum);
  }
  if ((call.flags & MAP_GELU) != 0) sum *= 0.5f * (1.f + erf_of(sum * 0.70710678f));
  if ((call.flags & MAP_ADD) != 0) sum += read_f32(y);
  write_f32(y, sum);
}
