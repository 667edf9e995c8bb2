// CARRY of a selective scan with 16 state elements (selective_s16.cuh): the state before each part, from the maps of the parts.
//
// A lane has an element of a state. If a state may not be finite, the warp takes one part, and passes through its tokens for the
// elements whose map does not determine them (series_recurrence__sm53.cu).
#include "../common/elements.cuh"
#include "carry.cuh"
#include "selective.cuh"

constexpr int THREADS = 128, NUMBERS = 16;
// Tokens that a lane has in flight.
constexpr int TOKENS = 4;

// Passes the elements of a warp through the tokens of a part.
INLINE float through_tokens(const Selective& call, int batch, int channel, int number, int part, float x) {
  const bool reverse = (call.flags & REVERSE) != 0;
  const int begin = part_start(call.parts, part), end = part_start(call.parts, part + 1);
  const int of_group = quotient_of(channel, call.by_b) * NUMBERS + number;
  auto at = [&](const Series& s, int of) LAMBDA {
    const int token = reverse ? call.tokens - 1 - begin : begin;
    return s.tensor.data + (channel_offset(s, batch, of) + token * s.tensor.token) * 4;
  };
  Address u_at = at(call.u, channel), delta_at = at(call.delta, channel), b_at = at(call.b, of_group);
  const long long by_u = by_position(call.u, reverse), by_delta = by_position(call.delta, reverse);
  const long long by_b = by_position(call.b, reverse);
  const float a = load_f32(call.a + ((long long)channel * NUMBERS + number) * 4);
  const float bias = call.bias != 0 ? load_f32(call.bias + channel * 4ll) : 0.f;
  float all = 1.f;
  NO_UNROLL for (int count = end - begin; count > 0; count -= TOKENS) {
    float u[TOKENS], delta[TOKENS], b[TOKENS];
    load_elements(u, u_at, by_u, count, 0.f);
    load_elements(delta, delta_at, by_delta, count, 0.f);
    load_elements(b, b_at, by_b, count, 0.f);
    UNROLL for (int t = 0; t < TOKENS; t++) {
      float step = delta[t] + bias;
      if ((call.flags & SOFTPLUS) != 0) step = time_step_of(step);
      if (t < count) careful_step(step, a, product(product(step, u[t]), b[t]), x, all);
    }
    u_at += TOKENS * by_u;
    delta_at += TOKENS * by_delta;
    b_at += TOKENS * by_b;
  }
  return x;
}

KERNEL LAUNCH_BOUNDS(THREADS, 5) void series_selective_s16__sm53_carry(const Selective call) {
  const int number = thread_index() % NUMBERS, index = block_index() * (THREADS / NUMBERS) + thread_index() / NUMBERS;
  const bool inside = index < call.batch * call.channels;
  const int batch = inside ? index / call.channels : 0, channel = inside ? index - batch * call.channels : 0;
  const int behind = call.parts.count - 1;
  const Address by = (Address)call.channels * (NUMBERS * 4), addends = (Address)call.batch * call.parts.count * by;
  Address map = call.maps + (Address)batch * call.parts.count * by + ((long long)channel * NUMBERS + number) * 4;
  float x = 0.f;
  if (call.past != 0) x = read_f32(call.past + (((long long)batch * call.channels + channel) * NUMBERS + number) * 4);
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
