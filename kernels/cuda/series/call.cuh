// Arguments of the kernels of series, and transfers of tiles of tokens and channels between tensors and shared memory. The
// device twin of kernels/src/cuda/series/args.rs, field for field.
//
// Positions count tokens in processing order. A tile has some adjacent channels, its rows, and TILE positions. Its elements are
// loaded along the axis that is contiguous in memory, so that every order of axes is read in whole sectors. The values are
// stored in shared memory with a row per channel, and a lane runs along its own row.
#pragma once

#include "../common/index.cuh"
#include "../common/math.cuh"

enum {
  FOLD = 1,          // parts fold to their maps
  CARRY = 2,         // the state is carried over the maps of the parts
  REVERSE = 4,       // tokens run from the last to the first
  LOG = 8,           // factors are logarithms
  SOFTPLUS = 16,     // softplus is applied to the time steps
  B_OF_CHANNEL = 32, // b is [channel][state]
  C_OF_CHANNEL = 64, // c is [channel][state]
  SILU = 128,        // silu is applied to the outputs of a convolution
  NEWEST_LAST = 256, // the last weight of a filter applies to the current token
  ONE_FILTER = 512,  // all channels have the same filter
  STATES = 1024,     // writes the last inputs of a convolution instead of its outputs
};

// A tensor of tokens and channels; channel c is element c % dim of head c / dim.
struct Series {
  Tensor tensor;   // data is zero if absent
  Divisor by_dim;  // precomputed division by the field of this name
  int dim, dtype;
  int lines;       // whether the tokens of a channel are adjacent in memory, rather than the channels of a token
  int unused;
};

// Parts of the tokens: the first `more` have one position more than `each`.
struct Parts {
  int count, each, more;
  int listed;         // parts per launch
  Divisor by_listed;  // precomputed division by the field of this name
};

static_assert(sizeof(Series) == 56 && sizeof(Parts) == 24, "");

INLINE int part_start(const Parts& parts, int part) { return part * parts.each + min_of(part, parts.more); }

// Offset of the element before the first token of a channel, in elements.
INLINE long long channel_offset(const Series& s, int batch, int channel) {
  const int head = quotient_of(channel, s.by_dim);
  return row_offset(s.tensor, batch, head, 0) + (channel - head * s.dim);
}

// A tile: its sequence, its first channel, its number of channels and their capacity 2^room, its first position, and the one
// after its last.
struct Tile {
  int batch, channel, rows, room, first, end;
  int tokens;  // tokens of the sequence
  bool reverse;
};

INLINE long long element_of(const Series& s, const Tile& tile, int row, int position) {
  const int token = tile.reverse ? tile.tokens - 1 - position : position;
  return channel_offset(s, tile.batch, tile.channel + row) + token * s.tensor.token;
}

// Elements of a tile that a thread has in flight.
constexpr int AHEAD = 4;

// Calls take(row, position in the tile, value) for each element of a tile that belongs to thread `me` of `threads`. Values come
// from fetch(row, position in the tile), and are zero outside the sequence. A tile has 2^LENGTH positions.
template <int LENGTH, class Fetch, class Take>
INLINE void each_of_tile(const Tile& tile, bool lines, int me, int threads, Fetch fetch, Take take) {
  constexpr int TILE = 1 << LENGTH;
  const int count = TILE << tile.room;
  auto row_of = [&](int i) LAMBDA { return lines ? i >> LENGTH : i & ((1 << tile.room) - 1); };
  auto place_of = [&](int i) LAMBDA { return lines ? i & (TILE - 1) : i >> tile.room; };
  NO_UNROLL for (int begin = me; begin < count; begin += AHEAD * threads) {
    float x[AHEAD];
    UNROLL for (int j = 0; j < AHEAD; j++) {
      const int i = begin + j * threads, row = row_of(i), place = place_of(i);
      x[j] = 0.f;
      if (i < count && row < tile.rows && tile.first + place < tile.end) x[j] = fetch(row, place);
    }
    UNROLL for (int j = 0; j < AHEAD; j++) {
      const int i = begin + j * threads;
      if (i < count) take(row_of(i), place_of(i), x[j]);
    }
  }
}

// Loads a tile to rows of STRIDE values.
template <int LENGTH, int STRIDE> INLINE void load_tile(SharedBytes to, const Series& s, const Tile& tile, int me, int threads) {
  each_of_tile<LENGTH>(
      tile, s.lines != 0, me, threads,
      [&](int row, int place) LAMBDA { return element(s.tensor.data, element_of(s, tile, row, tile.first + place), s.dtype); },
      [&](int row, int place, float x) LAMBDA { store_shared_f(to + (row * STRIDE + place) * 4, x); });
}

// Replaces each value of a tile that this thread has loaded by map(row, value).
template <int LENGTH, int STRIDE, class Map>
INLINE void map_tile(SharedBytes at, const Series& s, const Tile& tile, int me, int threads, Map map) {
  NO_UNROLL for (int i = me; i < (1 << LENGTH) << tile.room; i += threads) {
    const int row = s.lines ? i >> LENGTH : i & ((1 << tile.room) - 1);
    const int place = s.lines ? i & ((1 << LENGTH) - 1) : i >> tile.room;
    const SharedBytes value = at + (row * STRIDE + place) * 4;
    store_shared_f(value, map(row, load_shared_f(value)));
  }
}

// Writes a tile from rows of STRIDE values.
template <int LENGTH, int STRIDE>
INLINE void store_tile(SharedBytes from, const Series& s, const Tile& tile, int me, int threads) {
  NO_UNROLL for (int i = me; i < (1 << LENGTH) << tile.room; i += threads) {
    const int row = s.lines ? i >> LENGTH : i & ((1 << tile.room) - 1);
    const int place = s.lines ? i & ((1 << LENGTH) - 1) : i >> tile.room;
    if (row < tile.rows && tile.first + place < tile.end)
      write_element(s.tensor.data, element_of(s, tile, row, tile.first + place),
                    load_shared_f(from + (row * STRIDE + place) * 4), s.dtype);
  }
}
