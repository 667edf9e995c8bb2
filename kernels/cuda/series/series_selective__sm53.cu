// The selective scan: x = exp(delta A) x + delta B u for each token and state element, and y = C x + D u.
//
// A group of 2^lanes lanes, at least four, has a channel of a part of a sequence. Each lane has NUMBERS adjacent
// elements of its state in registers. Shared memory holds the inputs and time steps of a tile, and the coefficients of
// its tokens, which all channels of a block share. Four tokens at a time are read from there, and their outputs are
// summed over the lanes of a channel so that each of four lanes gets the sum of one token.
//
// A gate is 2^(delta rate) with rate = A log2 e. The fast loop requires gates of at most one and states that stay
// finite. The careful loop computes a tile if the block finds a rate or a time step that allows a larger gate, or
// afterwards a state that is not finite. It clears a state by selection where the gate is zero, and applies a gate
// that overflows as two factors.
//
// Parts work as in a recurrence (series_recurrence__sm53.cu), with a map per state element. The maps of FOLD need less
// care: a state that is not finite stays so, and CARRY then passes through the tokens of the part.
#include "../common/elements.cuh"
#include "functions.cuh"
#include "selective.cuh"

constexpr int THREADS = 128;
// State elements per lane, as a power of two.
constexpr int DEPTH = 2, NUMBERS = 1 << DEPTH;
// A tile has 2^LENGTH positions. A thread has up to EACH elements of a series.
constexpr int LENGTH = 4, TILE = 1 << LENGTH, EACH = 4;
// Bytes of a channel of a tile: the inputs, and from these offsets on the time steps, gates and outputs. A row is so
// long that four values of each of eight rows come from different banks.
constexpr int STEPS = 80, GATES = 160, OUTPUTS = 240, ROW = 336;
// Bytes of the coefficients b or c: of the tokens of a tile, with 32 lanes, or of all channels of a block.
constexpr int OF_TOKENS = 32 * NUMBERS * TILE * 4, OF_CHANNELS = THREADS * NUMBERS * 4;
constexpr int BYTES = THREADS / 32 * ROW + 2 * OF_TOKENS;
static_assert(BYTES >= THREADS / 4 * ROW + 2 * OF_CHANNELS, "");
// The rate of elements beyond the last, which remain zero.
constexpr float CLEARING = -1e30f;

KERNEL LAUNCH_BOUNDS(THREADS, 4) void series_selective__sm53(const Selective call) {
  SHARED(memory, BYTES);
  const int lanes = 1 << call.lanes, rows = THREADS >> call.lanes, wide = NUMBERS << call.lanes;
  const int of_tiles = quotient_of(block_index(), call.by_tiles), tile_number = block_index() - of_tiles * call.tiles;
  const int group = quotient_of(tile_number, call.by_tiles_of_group);
  const int in_group = (tile_number - group * call.tiles_of_group) * rows, first_channel = group * call.group + in_group;
  const int batch = quotient_of(of_tiles, call.parts.by_listed), own = of_tiles - batch * call.parts.listed;
  const bool fold = (call.flags & FOLD) != 0, softplus = (call.flags & SOFTPLUS) != 0;
  const bool wanted = !fold && call.out.tensor.data != 0, last = own == call.parts.count - 1;
  if (!fold && !wanted && !last) return;
  const bool gated = wanted && call.z.tensor.data != 0;
  const bool b_fixed = (call.flags & B_OF_CHANNEL) != 0, c_fixed = (call.flags & C_OF_CHANNEL) != 0;
  const SharedBytes of_b = memory + rows * ROW, of_c = of_b + max_of(wide * TILE * 4, OF_CHANNELS);
  const int row = thread_index() >> call.lanes, lane = thread_index() & (lanes - 1), channel = first_channel + row;
  const Tile tile{batch, first_channel, min_of(rows, call.group - in_group), 7 - call.lanes, 0, 0, call.tokens,
                  (call.flags & REVERSE) != 0};
  const bool inside = row < tile.rows;
  // Elements of a series per thread, and the lane's first state element.
  const int each = (rows * TILE - thread_index() + THREADS - 1) / THREADS, number = lane * NUMBERS;
  auto has = [&](int i) LAMBDA { return inside && number + i < call.states; };
  auto map_at = [&](int which) LAMBDA {
    const long long of_part = (((long long)which * call.batch + batch) * call.parts.count + own) * call.channels + channel;
    return call.maps + (of_part * wide + number) * 4;
  };
  const long long state = (((long long)batch * call.channels + channel) * call.states + number) * 4;

  auto rate_of = [&](int i) LAMBDA { return load_f32(call.a + ((long long)channel * call.states + number + i) * 4); };
  f4 rate = zero4(), x = zero4(), all = f4{1.f, 1.f, 1.f, 1.f};
  bool other = false;
  UNROLL for (int i = 0; i < NUMBERS; i++) {
    const long long at = (long long)channel * call.states + number + i;
    const int to = (thread_index() * NUMBERS + i) * 4;
    if (b_fixed) store_shared_f(of_b + to, has(i) ? element(call.b.tensor.data, at, call.b.dtype) : 0.f);
    if (c_fixed) store_shared_f(of_c + to, has(i) ? element(call.c.tensor.data, at, call.c.dtype) : 0.f);
    rate[i] = CLEARING;
    if (!has(i)) continue;
    const float a = rate_of(i);
    rate[i] = product(a, LOG2E);
    other = other || !(a <= 0.f && a >= -1e37f);
    if (!fold && call.parts.count == 1 && call.past != 0) x[i] = read_f32(call.past + state + i * 4);
  }
  if (inside && !fold && call.parts.count > 1) x = read_f4(map_at(0));
  // Coefficients of the lane for a token, and their distance from those of the next token.
  const int fixed_at = thread_index() * NUMBERS;
  const SharedBytes own_b = of_b + (b_fixed ? fixed_at : number) * 4, own_c = of_c + (c_fixed ? fixed_at : number) * 4;
  const int next_b = b_fixed ? 0 : wide * 4, next_c = c_fixed ? 0 : wide * 4;
  // Series in different orders are read as if all had a channel's tokens apart.
  const bool lines = call.u.lines != 0 && call.delta.lines != 0 && (!gated || call.z.lines != 0) &&
                     (!wanted || call.out.lines != 0);
  // What follows from the number of the thread is computed for each tile, because registers are few.
  auto share_now = [&]() LAMBDA { return share_of(lines, tile, LENGTH, ROW / 4, opaque(thread_index()), 7); };
  auto address = [&](const Series& s, int first) LAMBDA {
    return origin_of(s, tile, lines, LENGTH, opaque(thread_index())) + first * by_position(s, tile.reverse);
  };
  const int end = part_start(call.parts, own + 1);
  NO_UNROLL for (int first = part_start(call.parts, own); first < end; first += TILE) {
    const int count = min_of(TILE, end - first);
    bool careful = other;
    // Coefficients b and c. In shared memory, positions are rows.
    NO_UNROLL for (int which = b_fixed; which < (c_fixed || !wanted ? 1 : 2); which++) {
      const Series& s = which == 0 ? call.b : call.c;
      const SharedBytes to = which == 0 ? of_b : of_c;
      const int of_group = quotient_of(first_channel, which == 0 ? call.by_b : call.by_c), me = opaque(thread_index());
      const Tile of_states{batch, of_group * call.states, call.states, call.lanes + DEPTH, 0, 0, call.tokens, tile.reverse};
      const bool own_lines = s.lines != 0;
      const Share own = share_of(own_lines, of_states, LENGTH, 1, me, 7);
      const int axis = own_lines ? LENGTH : call.lanes + DEPTH, row = own_lines ? me >> axis : me & (wide - 1);
      const int n = elements_in(own, count), by = (own_lines ? 4 : wide * 4) << own.shift;
      const long long by_next = by_element(s, own, tile.reverse);
      Address at = origin_of(s, of_states, own_lines, LENGTH, me) + first * by_position(s, tile.reverse);
      SharedBytes place = to + (own.place * wide + row) * 4;
      NO_UNROLL for (int j = 0; j < wide * TILE / THREADS; j += 2, place += 2 * by, at += 2 * by_next) {
        const float y = j < n ? element(at, 0, s.dtype) : 0.f, next = j + 1 < n ? element(at + by_next, 0, s.dtype) : 0.f;
        store_shared_f(place, y);
        store_shared_f(place + by, next);
      }
    }
    {
      const Share share = share_now();
      const int elements = elements_in(share, count);
      const SharedBytes to = memory + share.at;
      const Address u_at = address(call.u, first), delta_at = address(call.delta, first);
      const Address z_at = gated ? address(call.z, first) : 0;
      const long long by_u = by_element(call.u, share, tile.reverse), by_delta = by_element(call.delta, share, tile.reverse);
      const long long by_z = by_element(call.z, share, tile.reverse);
      const bool f32 = call.u.dtype == TYPE_F32 && call.delta.dtype == TYPE_F32 && (!gated || call.z.dtype == TYPE_F32);
      float u[EACH], delta[EACH], z[EACH];
      if (f32) {
        load_elements(u, u_at, by_u, elements, 0.f);
        load_elements(delta, delta_at, by_delta, elements, 0.f);
        if (gated) load_elements(z, z_at, by_z, elements, 0.f);
      }
      NO_UNROLL for (int j = 0; j < each && !f32; j++) {
        const bool has = j < elements;
        const SharedBytes at = to + j * share.by;
        store_shared_f(at, has ? element(u_at + j * by_u, 0, call.u.dtype) : 0.f);
        store_shared_f(at + STEPS, has ? element(delta_at + j * by_delta, 0, call.delta.dtype) : 0.f);
        if (gated) store_shared_f(at + GATES, has ? element(z_at + j * by_z, 0, call.z.dtype) : 0.f);
      }
      UNROLL for (int j = 0; j < EACH; j++) {
        if (j >= each || !f32) continue;
        store_shared_f(to + j * share.by, u[j]);
        store_shared_f(to + (j * share.by + STEPS), delta[j]);
        if (gated) store_shared_f(to + (j * share.by + GATES), z[j]);
      }
      // What this loop does to an element would be too many instructions in the ones above, which are unrolled. The
      // zeros of positions beyond the tile leave the states as they are.
      NO_UNROLL for (int j = 0; j < elements; j++) {
        const SharedBytes at = to + j * share.by;
        float y = load_shared_f(at + STEPS);
        if (call.bias != 0) {
          const int of_row = lines ? (thread_index() >> LENGTH) + (j << share.shift) : thread_index() & (rows - 1);
          y += load_f32(call.bias + (first_channel + of_row) * 4ll);
        }
        if (softplus) y = time_step_of(y);
        careful = careful || !(y >= 0.f);
        store_shared_f(at + STEPS, y);
        if (gated) store_shared_f(at + GATES, silu_of(load_shared_f(at + GATES)));
      }
    }
    auto finish = [&](int t, float sum) LAMBDA {
      const SharedBytes at = memory + (row * ROW + t * 4);
      if (call.skip != 0 && inside) sum = __builtin_fmaf(load_shared_f(at), load_f32(call.skip + channel * 4ll), sum);
      if (gated) sum *= load_shared_f(at + GATES);
      store_shared_f(at + OUTPUTS, sum);
    };
    const f4 before = x;
    if (!any_of_block(careful)) {
      NO_UNROLL for (int t = 0; t < count; t += 4) {
        const SharedBytes at = memory + (row * ROW + t * 4);
        const f4 delta = load_shared(at + STEPS), u = load_shared(at);
        float y[4];
        UNROLL for (int j = 0; j < 4; j++) {
          const float added = product(delta[j], u[j]);
          const f4 by = load_shared(own_b + (t + j) * next_b);
          if (fold) {
            UNROLL for (int i = 0; i < NUMBERS; i++) {
              const float gate = power_of(product(delta[j], rate[i]));
              all[i] = fma_flushed(gate, all[i], 0.f);
              x[i] = fma_flushed(gate, x[i], product(added, by[i]));
            }
          } else {
            const f4 to = load_shared(own_c + (t + j) * next_c);
            y[j] = 0.f;
            UNROLL for (int i = 0; i < NUMBERS; i++) {
              x[i] = fma_flushed(power_of(product(delta[j], rate[i])), x[i], product(added, by[i]));
              y[j] = __builtin_fmaf(x[i], to[i], y[j]);
            }
          }
        }
        if (!wanted) continue;
        const bool odd = (lane & 1) != 0, second = (lane & 2) != 0;
        const float low = (odd ? y[1] : y[0]) + shuffle_xor(odd ? y[0] : y[1], 1);
        const float high = (odd ? y[3] : y[2]) + shuffle_xor(odd ? y[2] : y[3], 1);
        float sum = (second ? high : low) + shuffle_xor(second ? low : high, 2);
        NO_UNROLL for (int mask = 4; mask < lanes; mask *= 2) sum += shuffle_xor(sum, mask);
        if (lane < 4) finish(t + lane, sum);
      }
      careful = false;
      UNROLL for (int i = 0; i < NUMBERS; i++) careful = careful || !is_finite(x[i]);
      if (fold) careful = false;
    } else {
      careful = true;
    }
    if (any_of_block(careful)) {
      x = before;
      float a[NUMBERS];
      UNROLL for (int i = 0; i < NUMBERS; i++) a[i] = has(i) ? rate_of(i) : CLEARING;
      NO_UNROLL for (int t = 0; t < count; t++) {
        const SharedBytes at = memory + (row * ROW + t * 4);
        const float delta = load_shared_f(at + STEPS), added = product(delta, load_shared_f(at));
        const f4 by = load_shared(own_b + t * next_b), to = load_shared(own_c + t * next_c);
        float y = 0.f;
        UNROLL for (int i = 0; i < NUMBERS; i++) {
          float of_x = x[i], factor = all[i];
          careful_step(delta, a[i], product(added, by[i]), of_x, factor);
          x[i] = of_x;
          all[i] = factor;
          y = __builtin_fmaf(x[i], to[i], y);
        }
        NO_UNROLL for (int mask = 1; mask < lanes; mask *= 2) y += shuffle_xor(y, mask);
        if (wanted && lane == 0) finish(t, y);
      }
      sync_block();
    }
    if (wanted) {
      const Share share = share_now();
      const long long by = by_element(call.out, share, tile.reverse);
      store_elements(memory + OUTPUTS, share, address(call.out, first), by, call.out.dtype, elements_in(share, count));
    }
  }
  if (!inside) return;
  if (fold) {
    write_f4(map_at(0), all);
    write_f4(map_at(1), x);
  } else if (last && call.present != 0) {
    UNROLL for (int i = 0; i < NUMBERS; i++)
      if (has(i)) write_f32(call.present + state + i * 4, x[i]);
  }
}
