// The selective scan: x = exp(delta A) x + delta B u for each token and state element, and y = C x + D u.
//
// A group of 2^lanes lanes has a channel of a part of a sequence, with NUMBERS elements of its state in registers per lane.
// Shared memory holds the inputs and time steps of a tile, the latter as they enter the exponential, and the coefficients of its
// tokens, which all channels of a block share. The group sums over a state. Parts work as in a recurrence
// (series_recurrence__sm53.cu), with a map per state element.
#include "call.cuh"
#include "functions.cuh"

struct Selective {
  Divisor by_tiles, by_tiles_of_group, by_b, by_c;  // precomputed divisions by the fields of these names
  int tiles, tiles_of_group;  // tiles of a block's channels; tiles of a group of channels that share all coefficients
  int group, b_group;         // channels of a group; channels that share a b
  int c_group, lanes;         // channels that share a c; lanes of a channel, as a power of two
  int channels, states;
  int tokens, batch;
  int flags, unused;
  Parts parts;
  Series u, delta, z, out;
  Series b, c;                  // with B_OF_CHANNEL and C_OF_CHANNEL: data and type
  Address a, skip, bias;        // f32 [channel][state], [channel], [channel]; the last two are zero if absent
  Address past, present;        // f32 [batch][channel][state]; zero if absent
  Address maps;                 // f32 [2][batch][part][channel][state], as in a recurrence
};

static_assert(__builtin_offsetof(Selective, parts) == 80 && __builtin_offsetof(Selective, u) == 104, "");
static_assert(__builtin_offsetof(Selective, a) == 440 && sizeof(Selective) == 488, "");

constexpr int THREADS = 128, LENGTH = 3, TILE = 1 << LENGTH, STRIDE = TILE + 1;
// State elements per lane, as a power of two.
constexpr int DEPTH = 2, NUMBERS = 1 << DEPTH;
// Bytes of four series per channel, and of the coefficients of one lane's state elements. The shared memory has room for as many
// channels as threads with the coefficients of one lane, or as many channels as warps with those of 32 lanes.
constexpr int SERIES = 4 * STRIDE * 4, COEFFICIENTS = 2 * TILE * NUMBERS * 4;
constexpr int BYTES = THREADS * SERIES + COEFFICIENTS;
static_assert(BYTES >= THREADS / 32 * SERIES + 32 * COEFFICIENTS, "");

KERNEL LAUNCH_BOUNDS(THREADS, 3) void series_selective__sm53(const Selective call) {
  SHARED(memory, BYTES);
  const int lanes = 1 << call.lanes, rows = THREADS >> call.lanes, wide = NUMBERS << call.lanes;
  const int of_tiles = quotient_of(block_index(), call.by_tiles), tile_number = block_index() - of_tiles * call.tiles;
  const int group = quotient_of(tile_number, call.by_tiles_of_group);
  const int in_group = (tile_number - group * call.tiles_of_group) * rows, first_channel = group * call.group + in_group;
  const int batch = quotient_of(of_tiles, call.parts.by_listed), own = of_tiles - batch * call.parts.listed;
  const bool fold = (call.flags & FOLD) != 0, carry = (call.flags & CARRY) != 0;
  const bool wanted = !fold && !carry && call.out.tensor.data != 0, last = own == call.parts.count - 1;
  if (!fold && !carry && !wanted && !last) return;
  const bool gated = wanted && call.z.tensor.data != 0;
  const bool b_fixed = (call.flags & B_OF_CHANNEL) != 0, c_fixed = (call.flags & C_OF_CHANNEL) != 0;
  const SharedBytes of_u = memory, of_delta = of_u + rows * STRIDE * 4, of_z = of_delta + rows * STRIDE * 4;
  const SharedBytes of_out = of_z + rows * STRIDE * 4, of_b = of_out + rows * STRIDE * 4, of_c = of_b + TILE * wide * 4;
  const int row = thread_index() >> call.lanes, lane = thread_index() & (lanes - 1), channel = first_channel + row;
  Tile tile{batch, first_channel, min_of(rows, call.group - in_group), 7 - call.lanes, 0, 0, call.tokens,
            (call.flags & REVERSE) != 0};
  const bool inside = row < tile.rows;
  auto has = [&](int i) LAMBDA { return inside && lane + (i << call.lanes) < call.states; };
  auto number = [&](int i) LAMBDA { return lane + (i << call.lanes); };
  auto map_at = [&](int which, int part, int i) LAMBDA {
    const long long of_part = (((long long)which * call.batch + batch) * call.parts.count + part) * call.channels + channel;
    return call.maps + (of_part * call.states + number(i)) * 4;
  };
  auto state_at = [&](int i) LAMBDA {
    return (((long long)batch * call.channels + channel) * call.states + number(i)) * 4;
  };

  float a[NUMBERS], b[NUMBERS], c[NUMBERS], x[NUMBERS], all[NUMBERS];
  UNROLL for (int i = 0; i < NUMBERS; i++) {
    a[i] = b[i] = c[i] = x[i] = 0.f;
    all[i] = 1.f;
    if (!has(i)) continue;
    const long long at = (long long)channel * call.states + number(i);
    a[i] = load_f32(call.a + at * 4);
    if (b_fixed) b[i] = element(call.b.tensor.data, at, call.b.dtype);
    if (c_fixed) c[i] = element(call.c.tensor.data, at, call.c.dtype);
    if (fold) continue;
    if (!carry && call.parts.count > 1) x[i] = read_f32(map_at(0, own, i));
    else if (call.past != 0) x[i] = read_f32(call.past + state_at(i));
  }
  const float skip = inside && call.skip != 0 ? load_f32(call.skip + channel * 4ll) : 0.f;
  auto coefficients = [&](SharedBytes to, const Series& s, int of_group) LAMBDA {
    Tile own_tile = tile;
    own_tile.channel = of_group * call.states;
    own_tile.rows = call.states;
    own_tile.room = call.lanes + DEPTH;
    each_of_tile<LENGTH>(
        own_tile, s.lines != 0, thread_index(), THREADS,
        [&](int n, int place) LAMBDA {
          return element(s.tensor.data, element_of(s, own_tile, n, tile.first + place), s.dtype);
        },
        [&](int n, int place, float y) LAMBDA { store_shared_f(to + (place * wide + n) * 4, y); });
  };

  const int behind = carry ? call.parts.count - 1 : own + 1;
  NO_UNROLL for (int part = carry ? 0 : own; part < behind; part++) {
    float after[NUMBERS];
    unsigned known = 0;
    if (carry) {
      bool unknown = false;
      UNROLL for (int i = 0; i < NUMBERS; i++) {
        after[i] = 0.f;
        if (!has(i)) continue;
        const float factor = read_f32(map_at(0, part, i));
        after[i] = step_of(factor, x[i], read_f32(map_at(1, part, i)));
        if (is_finite(factor) && is_finite(x[i])) known |= 1u << i;
        else unknown = true;
        write_f32(map_at(0, part, i), x[i]);
      }
      if (!any_of_block(unknown)) {
        UNROLL for (int i = 0; i < NUMBERS; i++) x[i] = after[i];
        continue;
      }
    }
    tile.end = part_start(call.parts, part + 1);
    NO_UNROLL for (tile.first = part_start(call.parts, part); tile.first < tile.end; tile.first += TILE) {
      load_tile<LENGTH, STRIDE>(of_u, call.u, tile, thread_index(), THREADS);
      load_tile<LENGTH, STRIDE>(of_delta, call.delta, tile, thread_index(), THREADS);
      map_tile<LENGTH, STRIDE>(of_delta, call.delta, tile, thread_index(), THREADS, [&](int r, float y) LAMBDA {
        if (call.bias != 0 && r < tile.rows) y += load_f32(call.bias + (first_channel + r) * 4ll);
        return (call.flags & SOFTPLUS) != 0 ? time_step_of(y) : y;
      });
      if (gated) {
        load_tile<LENGTH, STRIDE>(of_z, call.z, tile, thread_index(), THREADS);
        map_tile<LENGTH, STRIDE>(of_z, call.z, tile, thread_index(), THREADS, [&](int, float y) LAMBDA { return silu_of(y); });
      }
      if (!b_fixed) coefficients(of_b, call.b, quotient_of(first_channel, call.by_b));
      if (!c_fixed && wanted) coefficients(of_c, call.c, quotient_of(first_channel, call.by_c));
      sync_block();
      const int count = min_of(TILE, tile.end - tile.first);
      NO_UNROLL for (int t = 0; t < count; t++) {
        const int at = (row * STRIDE + t) * 4;
        const float delta = load_shared_f(of_delta + at), u = load_shared_f(of_u + at), added = product(delta, u);
        float y = 0.f;
        UNROLL for (int i = 0; i < NUMBERS; i++) {
          if (!has(i)) continue;
          const float gate = gate_of(product(delta, a[i]));
          if (fold) grown_of(gate, all[i]);
          const float factor = grown_of(gate, x[i]);
          const float by = b_fixed ? b[i] : load_shared_f(of_b + (t * wide + number(i)) * 4);
          x[i] = step_of(factor, x[i], product(added, by));
          if (fold) all[i] = factor_of(factor, all[i]);
          if (wanted) y = __builtin_fmaf(x[i], c_fixed ? c[i] : load_shared_f(of_c + (t * wide + number(i)) * 4), y);
        }
        if (wanted) {
          NO_UNROLL for (int mask = 1; mask < lanes; mask *= 2) y += shuffle_xor(y, mask);
          if (call.skip != 0) y = __builtin_fmaf(u, skip, y);
          if (gated) y *= load_shared_f(of_z + at);
          if (lane == 0) store_shared_f(of_out + at, y);
        }
      }
      sync_block();
      if (wanted) store_tile<LENGTH, STRIDE>(of_out, call.out, tile, thread_index(), THREADS);
    }
    UNROLL for (int i = 0; i < NUMBERS; i++)
      if (known >> i & 1) x[i] = after[i];
  }
  UNROLL for (int i = 0; i < NUMBERS; i++) {
    if (!has(i)) continue;
    if (fold) {
      write_f32(map_at(0, own, i), all[i]);
      write_f32(map_at(1, own, i), x[i]);
    } else if (carry) {
      write_f32(map_at(0, call.parts.count - 1, i), x[i]);
    } else if (last && call.present != 0) {
      write_f32(call.present + state_at(i), x[i]);
    }
  }
}
