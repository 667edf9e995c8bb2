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

// The elements that a thread moves in every tile. Neighbouring threads move elements that are neighbours in memory, and the
// elements of a thread are either in one row or at one position. In shared memory, a tile has a row per channel.
struct Share {
  int lines;        // whether the elements are at one position
  int place;        // position of element 0
  int shift, most;  // distance of the elements, as a power of two; number of elements, or their positions if they are in one row
  int at, by;       // bytes of element 0 in shared memory, and from an element to the next one
};

// The elements of thread `me` of 2^threads, in tiles of 2^length positions and in rows of `stride` values.
INLINE Share share_of(bool lines, const Tile& tile, int length, int stride, int me, int threads) {
  const int axis = lines ? length : tile.room, low = me & ((1 << axis) - 1), high = me >> axis;
  const int row = lines ? high : low, place = lines ? low : high, shift = threads - axis;
  const int most = lines ? (tile.rows - row + (1 << shift) - 1) >> shift : row < tile.rows ? 1 << length : 0;
  return Share{lines, place, shift, most, (row * stride + place) * 4, (lines ? stride : 1) * 4 << shift};
}

// The number of elements in a tile with `count` positions.
INLINE int elements_in(const Share& share, int count) {
  if (share.lines) return share.place < count ? share.most : 0;
  return (min_of(share.most, count) - share.place + (1 << share.shift) - 1) >> share.shift;
}

// Bytes from a position of a series to the next one.
INLINE long long by_position(const Series& s, bool reverse) {
  return (reverse ? -s.tensor.token : s.tensor.token) * element_size(s.dtype);
}

// The address of element 0 in the tile that begins at position 0.
INLINE Address origin_of(const Series& s, const Tile& tile, bool lines, int length, int me) {
  const int axis = lines ? length : tile.room, low = me & ((1 << axis) - 1), high = me >> axis;
  const int row = min_of(lines ? high : low, tile.rows - 1), place = lines ? low : high;
  const int token = tile.reverse ? tile.tokens - 1 - place : place;
  return s.tensor.data + (channel_offset(s, tile.batch, tile.channel + row) + token * s.tensor.token) * element_size(s.dtype);
}

// Bytes from an element of a thread to the next one. Rows at one position are heads.
INLINE long long by_element(const Series& s, const Share& share, bool reverse) {
  return (share.lines ? s.tensor.head * element_size(s.dtype) : by_position(s, reverse)) << share.shift;
}

// Loads N f32 elements from `at`; those from number `count` on are `rest`.
template <int N> INLINE void load_elements(float (&x)[N], Address at, long long by, int count, float rest) {
  UNROLL for (int i = 0; i < N; i++) {
    x[i] = rest;
    if (i < count) x[i] = load_f32(at + i * by);
  }
}

// Writes `count` elements to `at`.
INLINE void store_elements(SharedBytes from, const Share& share, Address at, long long by, int dtype, int count) {
  NO_UNROLL for (int i = 0; i < count; i++) write_element(at + i * by, 0, load_shared_f(from + (share.at + i * share.by)), dtype);
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
