// CARRY of a recurrence: the state before each part, from the maps of the parts.
//
// A lane has a channel. What follows from a factor or a state that is not finite is found from the tokens of the part
// (series_recurrence__sm53.cu).
#include "carry.cuh"
#include "recurrence.cuh"

constexpr int THREADS = 128;
// Tokens that a lane has in flight.
constexpr int TOKENS = 4;

// Passes a channel through the tokens of a part.
INLINE float through_tokens(const Recurrence& call, int batch, int channel, int part, float h) {
  const bool reverse = (call.flags & REVERSE) != 0, log = (call.flags & LOG) != 0;
  const int begin = part_start(call.parts, part), end = part_start(call.parts, part + 1);
  auto at = [&](const Series& s) LAMBDA {
    const int token = reverse ? call.tokens - 1 - begin : begin;
    return s.tensor.data + (channel_offset(s, batch, channel) + token * s.tensor.token) * element_size(s.dtype);
  };
  Address a_at = at(call.a), b_at = at(call.b);
  const long long by_a = by_position(call.a, reverse), by_b = by_position(call.b, reverse);
  NO_UNROLL for (int count = end - begin; count > 0; count -= TOKENS) {
    float a[TOKENS], b[TOKENS];
    UNROLL for (int t = 0; t < TOKENS; t++) {
      const int to = min_of(t, count - 1);
      a[t] = element(a_at + to * by_a, 0, call.a.dtype);
      b[t] = element(b_at + to * by_b, 0, call.b.dtype);
    }
    UNROLL for (int t = 0; t < TOKENS; t++) {
      if (t >= count) continue;
      const float factor = log ? grown_of(gate_of(a[t]), h) : a[t];
      h = step_of(factor, h, b[t]);
    }
    a_at += TOKENS * by_a;
    b_at += TOKENS * by_b;
  }
  return h;
}

KERNEL LAUNCH_BOUNDS(THREADS, 4) void series_recurrence__sm53_carry(const Recurrence call) {
  const int index = block_index() * THREADS + thread_index();
  const bool inside = index < call.batch * call.channels;
  const int batch = inside ? index / call.channels : 0, channel = inside ? index - batch * call.channels : 0;
  const int behind = call.parts.count - 1;
  const Address by = (Address)call.channels * 4, addends = (Address)call.batch * call.parts.count * by;
  Address map = call.maps + (Address)batch * call.parts.count * by + channel * 4ll;
  float h = call.past != 0 ? read_f32(call.past + ((long long)batch * call.channels + channel) * 4) : 0.f;
  NO_UNROLL for (int part = 0; part < behind;) {
    const int taken = over_maps<16>(map, by, addends, behind - part, inside, h);
    if (taken > 0) {
      part += taken;
      continue;
    }
    const float factor = read_f32(map), next = step_of(factor, h, read_f32(map + addends));
    const bool known = is_finite(factor) && is_finite(h);
    if (inside) write_f32(map, h);
    if (any_of_warp(!known)) {
      const float through = through_tokens(call, batch, channel, part, h);
      h = known ? next : through;
    } else {
      h = next;
    }
    part++;
    map += by;
  }
  if (inside) write_f32(map, h);
}
