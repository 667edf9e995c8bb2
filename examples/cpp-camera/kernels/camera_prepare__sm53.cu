// From a picture to embedded tokens. A block makes a token: its threads share the inputs of the patch, then each sums
// up some of the outputs, in the order of the inputs.
#include "common/device.cuh"
#include "picture.cuh"

using namespace camera;

constexpr int THREADS = 128;

INLINE Address load_address(Address a) {
  const u2 words = load_u2(a);
  return words[0] | (Address)words[1] << 32;
}

INLINE Frame load_frame(Address a) {
  Frame frame;
  frame.planes[0] = load_address(a);
  frame.planes[1] = load_address(a + 8);
  frame.pitches[0] = load_i32(a + 16);
  frame.pitches[1] = load_i32(a + 20);
  frame.width = load_i32(a + 24);
  frame.height = load_i32(a + 28);
  frame.format = load_i32(a + 32);
  frame.luma_offset = load_f32(a + 36);
  frame.luma_scale = load_f32(a + 40);
  frame.red_v = load_f32(a + 44);
  frame.green_u = load_f32(a + 48);
  frame.green_v = load_f32(a + 52);
  frame.blue_u = load_f32(a + 56);
  return frame;
}

static_assert(__builtin_offsetof(Frame, pitches) == 16 && __builtin_offsetof(Frame, width) == 24, "");
static_assert(__builtin_offsetof(Frame, format) == 32 && __builtin_offsetof(Frame, blue_u) == 56, "");

KERNEL LAUNCH_BOUNDS(THREADS, 4) void camera_prepare__sm53(const Prepare call) {
  SHARED(memory, MOST_INPUTS * 4);
  const int token = block_index(), inputs = token == 0 ? 0 : call.channels * call.patch * call.patch;
  if (inputs > 0) {
    const Frame frame = load_frame(call.frame);
    NO_UNROLL for (int i = thread_index(); i < inputs; i += THREADS)
      store_shared_f(memory + i * 4, input_of(frame, call, token - 1, i));
  }
  sync_block();
  NO_UNROLL for (int o = thread_index(); o < call.width; o += THREADS) {
    const Address at = (Address)(token * (long long)call.width + o) * 4;
    float sum = load_f32(call.start + at);
    NO_UNROLL for (int i = 0; i < inputs; i++) {
      const float weight = load_f32(call.weight + (Address)(i * (long long)call.width + o) * 4);
      sum += product(load_shared_f(memory + i * 4), weight);
    }
    write_f32(call.tokens + at, sum);
  }
}
