// The first-order recurrence, h = a h + b for each token and channel.
//
// A warp has 32 channels of a part of a sequence, one per lane, and processes tokens in tiles. Several parts take three
// launches: FOLD to the map of each part except the last, CARRY from the past state over the maps to the state before each
// part, and one that computes the parts from these. A product of factors may overflow where the state does not, or vanish
// where no factor does, which must not remove values that are not finite: CARRY then passes through the tokens of the part.
#include "call.cuh"
#include "functions.cuh"

struct Recurrence {
  Divisor by_tiles;     // precomputed division by the field of this name
  int tiles, items;     // tiles of 32 channels; tiles in all sequences and listed parts
  int channels, tokens;
  int batch, flags;
  Parts parts;
  Series a, b, out;
  Address past, present;  // f32 [batch][channel]; zero if absent
  Address maps;           // f32 [2][batch][part][channel]: factors, later replaced by the states before the parts; addends
};

static_assert(__builtin_offsetof(Recurrence, parts) == 32 && __builtin_offsetof(Recurrence, a) == 56, "");
static_assert(__builtin_offsetof(Recurrence, past) == 224 && sizeof(Recurrence) == 248, "");

constexpr int THREADS = 128, LENGTH = 4, TILE = 1 << LENGTH, STRIDE = TILE + 1, ROOM = 32 * STRIDE * 4;

KERNEL LAUNCH_BOUNDS(THREADS, 4) void series_recurrence__sm53(const Recurrence call) {
  SHARED(memory, THREADS / 32 * 2 * ROOM);
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  const int item = block_index() * (THREADS / 32) + warp;
  if (item >= call.items) return;
  const SharedBytes of_a = memory + warp * 2 * ROOM, of_b = of_a + ROOM;
  const int of_tiles = quotient_of(item, call.by_tiles), first_channel = (item - of_tiles * call.tiles) * 32;
  const int batch = quotient_of(of_tiles, call.parts.by_listed), own = of_tiles - batch * call.parts.listed;
  const bool fold = (call.flags & FOLD) != 0, carry = (call.flags & CARRY) != 0, log = (call.flags & LOG) != 0;
  const bool wanted = !fold && !carry && call.out.tensor.data != 0, last = own == call.parts.count - 1;
  if (!fold && !carry && !wanted && !last) return;
  const int channel = first_channel + lane;
  const bool inside = channel < call.channels;
  auto map_at = [&](int which, int part) LAMBDA {
    return call.maps + ((((long long)which * call.batch + batch) * call.parts.count + part) * call.channels + channel) * 4;
  };
  const Address state = ((long long)batch * call.channels + channel) * 4;

  Tile tile{batch, first_channel, min_of(32, call.channels - first_channel), 5, 0, 0, call.tokens, (call.flags & REVERSE) != 0};
  float h = 0.f, all = 1.f;
  if (inside && !fold) {
    if (!carry && call.parts.count > 1) h = read_f32(map_at(0, own));
    else if (call.past != 0) h = read_f32(call.past + state);
  }
  const int behind = carry ? call.parts.count - 1 : own + 1;
  NO_UNROLL for (int part = carry ? 0 : own; part < behind; part++) {
    float after = 0.f;
    bool known = false;
    if (carry) {
      if (inside) {
        const float a = read_f32(map_at(0, part));
        after = step_of(a, h, read_f32(map_at(1, part)));
        known = is_finite(a) && is_finite(h);
        write_f32(map_at(0, part), h);
      }
      if (!any_of_warp(inside && !known)) {
        h = after;
        continue;
      }
    }
    tile.end = part_start(call.parts, part + 1);
    NO_UNROLL for (tile.first = part_start(call.parts, part); tile.first < tile.end; tile.first += TILE) {
      sync_warp();
      load_tile<LENGTH, STRIDE>(of_a, call.a, tile, lane, 32);
      if (log) map_tile<LENGTH, STRIDE>(of_a, call.a, tile, lane, 32, [&](int, float x) LAMBDA { return gate_of(x); });
      load_tile<LENGTH, STRIDE>(of_b, call.b, tile, lane, 32);
      sync_warp();
      const int count = min_of(TILE, tile.end - tile.first);
      NO_UNROLL for (int t = 0; t < count; t++) {
        const int at = (lane * STRIDE + t) * 4;
        float a = load_shared_f(of_a + at);
        if (log) {
          if (fold) grown_of(a, all);
          a = grown_of(a, h);
        }
        h = step_of(a, h, load_shared_f(of_b + at));
        if (fold) all = factor_of(a, all);
        if (wanted) store_shared_f(of_b + at, h);
      }
      if (wanted) {
        sync_warp();
        store_tile<LENGTH, STRIDE>(of_b, call.out, tile, lane, 32);
      }
    }
    if (known) h = after;
  }
  if (!inside) return;
  if (fold) {
    write_f32(map_at(0, own), all);
    write_f32(map_at(1, own), h);
  } else if (carry) {
    write_f32(map_at(0, call.parts.count - 1), h);
  } else if (last && call.present != 0) {
    write_f32(call.present + state, h);
  }
}
