// Concatenates earlier and new rows: present[b][h][0 .. past + fresh]. A warp copies a row.
#include "../common/device.cuh"
#include "call.cuh"

constexpr int WARPS = 4;

KERNEL LAUNCH_BOUNDS(WARPS * 32, 4) void present__sm53(const Present copy) {
  const int lane = thread_index() & 31;
  const int tokens = copy.past_tokens + copy.fresh_tokens;
  const long long rows = (long long)copy.batch * copy.heads * tokens;
  const long long step = (long long)block_count() * WARPS;
  NO_UNROLL for (long long r = (long long)block_index() * WARPS + (thread_index() >> 5); r < rows; r += step) {
    const int token = (int)(r % tokens), head = (int)(r / tokens % copy.heads), batch = (int)(r / tokens / copy.heads);
    const bool old = token < copy.past_tokens;
    const Tensor& t = old ? copy.past : copy.fresh;
    const Tensor& p = copy.present;
    const int at = old ? token : token - copy.past_tokens;
    const Address from = t.data + (batch * t.batch + head * t.head + at * t.token) * copy.element_size;
    const Address to = p.data + (batch * p.batch + head * p.head + token * p.token) * copy.element_size;
    if (copy.element_size == 4) {
      NO_UNROLL for (int x = lane; x < copy.dim; x += 32) write_f32(to + x * 4, load_f32(from + x * 4));
    } else {
      NO_UNROLL for (int x = lane; x < copy.dim; x += 32) write_u16(to + x * 2, load_u16(from + x * 2));
    }
  }
}
