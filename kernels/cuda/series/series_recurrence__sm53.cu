// The first-order recurrence, h = a h + b for each token and channel.
//
// A warp has 32 channels of a part of a sequence, one per lane, and processes tokens in tiles. Several parts take
// three launches: FOLD to the map of each part except the last, CARRY from the past state over the maps to the state
// before each part, and one that computes the parts from these. A product of factors may overflow where the state does
// not, or vanish where no factor does, which must not remove values that are not finite: CARRY then passes through the
// tokens of the part.
//
// A lane needs the tokens of its channel. If the channels of a token are adjacent in memory, it loads them itself.
// Otherwise a tile passes through shared memory, and so do elements that need conversion: a loop over shared memory
// has fewer instructions than one over registers, which must be unrolled.
#include "functions.cuh"
#include "recurrence.cuh"

constexpr int THREADS = 128, LENGTH = 4, TILE = 1 << LENGTH, STRIDE = TILE + 1, ROOM = 32 * STRIDE * 4;

KERNEL LAUNCH_BOUNDS(THREADS, 4) void series_recurrence__sm53(const Recurrence call) {
  SHARED(memory, THREADS / 32 * 2 * ROOM);
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  const int item = block_index() * (THREADS / 32) + warp;
  if (item >= call.items) return;
  const SharedBytes of_a = memory + warp * 2 * ROOM, of_b = of_a + ROOM;
  const int of_tiles = quotient_of(item, call.by_tiles), first_channel = (item - of_tiles * call.tiles) * 32;
  const int batch = quotient_of(of_tiles, call.parts.by_listed), own = of_tiles - batch * call.parts.listed;
  const bool fold = (call.flags & FOLD) != 0, log = (call.flags & LOG) != 0;
  const bool wanted = !fold && call.out.tensor.data != 0, last = own == call.parts.count - 1;
  if (!fold && !wanted && !last) return;
  const int channel = first_channel + lane;
  const bool inside = channel < call.channels;
  auto map_at = [&](int which) LAMBDA {
    return call.maps + ((((long long)which * call.batch + batch) * call.parts.count + own) * call.channels + channel) * 4;
  };
  const Address state = ((long long)batch * call.channels + channel) * 4;
  const Tile tile{batch, first_channel, min_of(32, call.channels - first_channel), 5, 0, 0, call.tokens,
                  (call.flags & REVERSE) != 0};
  float h = 0.f, all = 1.f;
  if (inside && !fold) {
    if (call.parts.count > 1) h = read_f32(map_at(0));
    else if (call.past != 0) h = read_f32(call.past + state);
  }
  // Series in different orders are read as if all had a channel's tokens apart.
  const bool lines = call.a.lines != 0 && call.b.lines != 0 && (!wanted || call.out.lines != 0);
  const Share share = share_of(lines, tile, LENGTH, STRIDE, lane, 5);
  const Address a_at = origin_of(call.a, tile, lines, LENGTH, lane), b_at = origin_of(call.b, tile, lines, LENGTH, lane);
  const Address out_at = wanted ? origin_of(call.out, tile, lines, LENGTH, lane) : 0;
  const SharedBytes of_lane = of_a + lane * STRIDE * 4;
  // The elements of a lane are those of its channel, unless a tile is staged in shared memory.
  const bool f32 = call.a.dtype == TYPE_F32 && call.b.dtype == TYPE_F32;
  const bool staged = lines || log || !f32 || (wanted && call.out.dtype != TYPE_F32);
  const int end = part_start(call.parts, own + 1);
  NO_UNROLL for (int first = part_start(call.parts, own); first < end; first += TILE) {
    float x[TILE], y[TILE];
    const int count = min_of(TILE, end - first), elements = elements_in(share, count);
    const Address a_now = a_at + first * by_position(call.a, tile.reverse);
    const Address b_now = b_at + first * by_position(call.b, tile.reverse);
    const long long by_a = by_element(call.a, share, tile.reverse), by_b = by_element(call.b, share, tile.reverse);
    // Positions beyond the tile leave the state as it is.
    const float one = log ? 0.f : 1.f;
    bool twice = false;
    if (f32) {
      load_elements(x, a_now, by_a, elements, one);
      load_elements(y, b_now, by_b, elements, 0.f);
    }
    if (staged) {
      const SharedBytes a_to = of_a + share.at, b_to = of_b + share.at;
      sync_warp();
      if (f32) {
        UNROLL for (int j = 0; j < TILE; j++) {
          store_shared_f(a_to + j * share.by, x[j]);
          store_shared_f(b_to + j * share.by, y[j]);
        }
      }
      NO_UNROLL for (int j = 0; j < TILE && !f32; j++) {
        const bool has = j < elements;
        store_shared_f(a_to + j * share.by, has ? element(a_now + j * by_a, 0, call.a.dtype) : one);
        store_shared_f(b_to + j * share.by, has ? element(b_now + j * by_b, 0, call.b.dtype) : 0.f);
      }
      NO_UNROLL for (int j = 0; j < TILE && log; j += 4) {
        UNROLL for (int i = j; i < j + 4; i++) x[i - j] = gate_of(load_shared_f(a_to + i * share.by));
        UNROLL for (int i = j; i < j + 4; i++) {
          twice = twice || x[i - j] < 0.f;
          store_shared_f(a_to + i * share.by, x[i - j]);
        }
      }
      sync_warp();
    }
    if (any_of_warp(twice)) {
      NO_UNROLL for (int t = 0; t < count; t++) {
        float a = load_shared_f(of_lane + t * 4);
        if (fold) grown_of(a, all);
        a = grown_of(a, h);
        h = step_of(a, h, load_shared_f(of_lane + (ROOM + t * 4)));
        if (fold) all = factor_of(a, all);
        store_shared_f(of_lane + t * 4, h);
      }
    } else {
      if (staged) {
        UNROLL for (int t = 0; t < TILE; t++) {
          x[t] = load_shared_f(of_lane + t * 4);
          y[t] = load_shared_f(of_lane + (ROOM + t * 4));
        }
      }
      UNROLL for (int t = 0; t < TILE; t++) {
        const float a = x[t];
        x[t] = h = step_of(a, h, y[t]);
        if (fold) all = factor_of(a, all);
      }
      if (staged) {
        UNROLL for (int t = 0; t < TILE; t++) store_shared_f(of_lane + t * 4, x[t]);
      }
    }
    if (wanted) {
      const Address to = out_at + first * by_position(call.out, tile.reverse);
      const long long by = by_element(call.out, share, tile.reverse);
      if (staged) {
        sync_warp();
        store_elements(of_a, share, to, by, call.out.dtype, elements);
      } else {
        UNROLL for (int t = 0; t < TILE; t++)
          if (t < elements) write_f32(to + t * by, x[t]);
      }
    }
  }
  if (!inside) return;
  if (fold) {
    write_f32(map_at(0), all);
    write_f32(map_at(1), h);
  } else if (last && call.present != 0) {
    write_f32(call.present + state, h);
  }
}
