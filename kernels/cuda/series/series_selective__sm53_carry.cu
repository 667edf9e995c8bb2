// CARRY of a selective scan: the state before each part, from the maps of the parts.
//
// A lane has an element of a state. If a state may not be finite, the warp takes one part, and passes through its
// tokens for the elements whose map does not determine them (series_recurrence__sm53.cu).
#include "../common/elements.cuh"
#include "carry.cuh"
#include "selective.cuh"

constexpr int THREADS = 128;
// Tokens that a lane has in flight.
constexpr int TOKENS = 4;

// Passes an element of a state through the tokens of a part. Elements beyond the last stay zero.
INLINE float through_tokens(const Selective& call, int batch, int channel, int number, int part, float x) {
  const bool reverse = (call.flags & REVERSE) != 0, b_fixed = (call.flags & B_OF_CHANNEL) != 0;
  const int begin = part_start(call.parts, part), end = part_start(call.parts, part + 1);
  const bool has = number < call.states;
  const long long element_of_a = (long long)channel * call.states + (has ? number : 0);
  auto at = [&](const Series& s, int of) LAMBDA {
    const int token = reverse ? call.tokens - 1 - begin : begin;
    return s.tensor.data + (channel_offset(s, batch, of) + token * s.tensor.token) * element_size(s.dtype);
  };
  Address u_at = at(call.u, channel), delta_at = at(call.delta, channel);
  Address b_at = b_fixed ? call.b.tensor.data + element_of_a * element_size(call.b.dtype)
                         : at(call.b, quotient_of(channel, call.by_b) * call.states + (has ? number : 0));
  const long long by_u = by_position(call.u, reverse), by_delta = by_position(call.delta, reverse);
  const long long by_b = b_fixed ? 0 : by_position(call.b, reverse);
  const float a = load_f32(call.a + element_of_a * 4);
  const float bias = call.bias != 0 ? load_f32(call.bias + channel * 4ll) : 0.f;
  float all = 1.f;
  NO_UNROLL for (int count = end - begin; count > 0; count -= TOKENS) {
    float u[TOKENS], delta[TOKENS], b[TOKENS];
    UNROLL for (int t = 0; t < TOKENS; t++) {
      const int to = min_of(t, count - 1);
      u[t] = element(u_at + to * by_u, 0, call.u.dtype);
      delta[t] = element(delta_at + to * by_delta, 0, call.delta.dtype);
      b[t] = element(b_at + to * by_b, 0, call.b.dtype);
    }
    NO_UNROLL for (int t = 0; t < min_of(TOKENS, count); t++) {
      float step = delta[0] + bias;
      if ((call.flags & SOFTPLUS) != 0) step = time_step_of(step);
      careful_step(step, a, product(product(step, u[0]), b[0]), x, all);
      UNROLL for (int i = 0; i + 1 < TOKENS; i++) {
        u[i] = u[i + 1];
        delta[i] = delta[i + 1];
        b[i] = b[i + 1];
      }
    }
    u_at += TOKENS * by_u;
    delta_at += TOKENS * by_delta;
    b_at += TOKENS * by_b;
  }
  return has ? x : 0.f;
}

KERNEL LAUNCH_BOUNDS(THREADS, 4) void series_selective__sm53_carry(const Selective call) {
  const int axis = call.lanes + 2, wide = 1 << axis, index = block_index() * THREADS + thread_index();
  const int number = index & (wide - 1), of_batch = index >> axis;
  const bool inside = of_batch < call.batch * call.channels;
  const int batch = inside ? of_batch / call.channels : 0, channel = inside ? of_batch - batch * call.channels : 0;
  const int behind = call.parts.count - 1;
  const Address by = (Address)call.channels * (wide * 4), addends = (Address)call.batch * call.parts.count * by;
  Address map = call.maps + (Address)batch * call.parts.count * by + ((long long)channel * wide + number) * 4;
  float x = 0.f;
  if (call.past != 0 && number < call.states)
    x = read_f32(call.past + (((long long)batch * call.channels + channel) * call.states + number) * 4);
  NO_UNROLL for (int part = 0; part < behind;) {
    const int taken = over_maps<16>(map, by, addends, behind - part, inside, x);
    if (taken > 0) {
      part += taken;
      continue;
    }
    const float of_x = read_f32(map), added = read_f32(map + addends);
    const bool known = (of_x - of_x) + (added - added) + (x - x) == 0.f;
    if (inside) write_f32(map, x);
    const float next = step_of(of_x, x, added);
    if (any_of_warp(!known)) {
      const float through = through_tokens(call, batch, channel, number, part, x);
      x = known ? next : through;
    } else {
      x = next;
    }
    part++;
    map += by;
  }
  if (inside) write_f32(map, x);
}
