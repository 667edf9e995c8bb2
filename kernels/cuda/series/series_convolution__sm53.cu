// The direct causal convolution, o_t = sum over k of alpha_k u_(t-k), for each channel.
//
// A warp has 32 channels, one per lane, and TILE outputs of each. TILE taps at a time are multiplied with the window of inputs
// that they need: 2 TILE - 1 positions in registers, half of which serve the next taps too, so that each value read is used by
// TILE multiply-adds. Taps are added from the newest input to the oldest.
//
// Inputs before the first token come from the past state. Without a past those products are left out, since a weight may be
// infinite. Only warps near the first token check for that.
//
// With STATES a warp writes the last inputs of a channel instead. In place, it reads 32 values before it writes them; values
// that remain move towards the oldest.
#include "call.cuh"
#include "functions.cuh"

struct Convolution {
  Divisor by_tiles, by_blocks, by_channels;  // precomputed divisions by the fields of these names
  int tiles, items;                          // tiles of 32 channels; all work items or, with STATES, tiles of all sequences
  int blocks, channels;                      // blocks of TILE tokens per sequence
  int tokens, taps;
  int flags, unused;
  Series u, out;
  Address filter, bias;    // f32 [channel or one][tap]; [channel], zero if absent
  Address past, present;   // f32 [batch][channel][taps - 1]; zero if absent
};

static_assert(__builtin_offsetof(Convolution, tiles) == 24 && __builtin_offsetof(Convolution, u) == 56, "");
static_assert(__builtin_offsetof(Convolution, filter) == 168 && sizeof(Convolution) == 200, "");

constexpr int THREADS = 128, LENGTH = 4, TILE = 1 << LENGTH, STRIDE = TILE + 1, ROOM = 32 * STRIDE * 4;

struct Window {
  float low[TILE], high[TILE];
};

// Adds the products of the `count` taps at `weights`. With EDGE, output j only uses the first `inputs` + j of these taps.
template <bool EDGE> INLINE void add(float (&sum)[TILE], const Window& window, SharedBytes weights, int count, int inputs) {
  UNROLL for (int k = 0; k < TILE; k++) {
    if (k < count) {
      const float weight = load_shared_f(weights + k * 4);
      UNROLL for (int j = 0; j < TILE; j++) {
        const int at = j - k + TILE - 1;
        const float next = __builtin_fmaf(weight, at < TILE ? window.low[at < TILE ? at : 0] : window.high[at < TILE ? 0 : at - TILE], sum[j]);
        sum[j] = EDGE && k >= inputs + j ? sum[j] : next;
      }
    }
  }
}

INLINE void states(const Convolution& call, int item, int lane) {
  const int batch = quotient_of(item, call.by_channels), channel = item - batch * call.channels;
  const int history = call.taps - 1, recent = min_of(call.tokens, history), missing = history - recent;
  const long long line = (long long)item * history * 4;
  const Tile tile{batch, channel, 1, 0, 0, 0, call.tokens, (call.flags & REVERSE) != 0};
  NO_UNROLL for (int first = 0; first < history; first += 32) {
    const int i = first + lane;
    float x = 0.f;
    if (i < missing) {
      if (call.past != 0) x = read_f32(call.past + line + (i + recent) * 4ll);
    } else if (i < history) {
      x = element(call.u.tensor.data, element_of(call.u, tile, 0, call.tokens - recent + i - missing), call.u.dtype);
    }
    sync_warp();
    if (i < history) write_f32(call.present + line + i * 4ll, x);
    sync_warp();
  }
}

KERNEL LAUNCH_BOUNDS(THREADS, 4) void series_convolution__sm53(const Convolution call) {
  SHARED(memory, THREADS / 32 * 2 * ROOM);
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  const int item = block_index() * (THREADS / 32) + warp;
  if (item >= call.items) return;
  if ((call.flags & STATES) != 0) {
    states(call, item, lane);
    return;
  }
  const SharedBytes inputs = memory + warp * 2 * ROOM, weights = inputs + ROOM;
  const int of_tiles = quotient_of(item, call.by_tiles), first_channel = (item - of_tiles * call.tiles) * 32;
  const int batch = quotient_of(of_tiles, call.by_blocks), first = (of_tiles - batch * call.blocks) * TILE;
  const int history = call.taps - 1;
  const bool past = call.past != 0, newest_last = (call.flags & NEWEST_LAST) != 0, one = (call.flags & ONE_FILTER) != 0;
  Tile tile{batch, first_channel, min_of(32, call.channels - first_channel), 5, 0, 0, call.tokens, (call.flags & REVERSE) != 0};

  // Loads the inputs of the lane's channel at the positions from `from` on.
  auto load_inputs = [&](float (&to)[TILE], int from) LAMBDA {
    sync_warp();
    tile.first = from;
    tile.end = call.tokens;
    each_of_tile<LENGTH>(
        tile, call.u.lines != 0, lane, 32,
        [&](int row, int place) LAMBDA {
          const int position = from + place;
          if (position >= 0) return element(call.u.tensor.data, element_of(call.u, tile, row, position), call.u.dtype);
          if (!past || position < -history) return 0.f;
          const long long line = ((long long)batch * call.channels + first_channel + row) * history;
          return read_f32(call.past + (line + history + position) * 4);
        },
        [&](int row, int place, float x) LAMBDA { store_shared_f(inputs + (row * STRIDE + place) * 4, x); });
    sync_warp();
    UNROLL for (int i = 0; i < TILE; i++) to[i] = load_shared_f(inputs + (lane * STRIDE + i) * 4);
  };
  auto load_weights = [&](int tap) LAMBDA {
    Tile of_filter = tile;
    of_filter.first = tap;
    of_filter.end = call.taps;
    each_of_tile<LENGTH>(
        of_filter, true, lane, 32,
        [&](int row, int place) LAMBDA {
          const long long filter = one ? 0 : (long long)(first_channel + row) * call.taps;
          return load_f32(call.filter + (filter + (newest_last ? history - tap - place : tap + place)) * 4);
        },
        [&](int row, int place, float x) LAMBDA { store_shared_f(weights + (row * STRIDE + place) * 4, x); });
  };

  float sum[TILE];
  UNROLL for (int j = 0; j < TILE; j++) sum[j] = 0.f;
  Window window;
  UNROLL for (int i = 0; i < TILE; i++) window.low[i] = 0.f;
  const int taps = past ? call.taps : min_of(call.taps, first + TILE);
  // The first step only loads the upper half of the first window.
  NO_UNROLL for (int tap = -TILE; tap < taps; tap += TILE) {
    UNROLL for (int i = 0; i < TILE; i++) window.high[i] = window.low[i];
    load_inputs(window.low, first - tap - (TILE - 1));
    if (tap < 0) continue;
    load_weights(tap);
    sync_warp();
    const int count = min_of(TILE, taps - tap), before = first - tap + 1;
    if (past || before >= TILE) add<false>(sum, window, weights + lane * STRIDE * 4, count, before);
    else add<true>(sum, window, weights + lane * STRIDE * 4, count, before);
  }
  sync_warp();
  const float bias = call.bias != 0 && lane < tile.rows ? load_f32(call.bias + (first_channel + lane) * 4ll) : 0.f;
  NO_UNROLL for (int j = 0; j < TILE; j++) {
    const float x = call.bias != 0 ? sum[0] + bias : sum[0];
    UNROLL for (int i = 1; i < TILE; i++) sum[i - 1] = sum[i];
    store_shared_f(inputs + (lane * STRIDE + j) * 4, (call.flags & SILU) != 0 ? silu_of(x) : x);
  }
  sync_warp();
  tile.first = first;
  tile.end = call.tokens;
  store_tile<LENGTH, STRIDE>(inputs, call.out, tile, lane, 32);
}
