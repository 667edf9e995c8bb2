// Tiles of a chunk: rows of keys and queries in transit to shared memory.
#pragma once

#include "exp.cuh"
#include "place.cuh"

// Rows of a tile by chunk and token: byte strides of chunks, and positions that have a row.
struct Source {
  Rows rows;
  long long chunk;
  int end;
};

INLINE Source source_of(const Rows& rows, int tokens) { return Source{rows, rows.step * CHUNK, tokens}; }

template <int DIMS, int THREADS> struct Tile {
  enum {
    ROW_QUADS = DIMS / 4,
    BYTES = CHUNK * DIMS * 4,
    EACH = CHUNK * ROW_QUADS / THREADS,        // quads per thread
    ACROSS = ROW_QUADS < 32 ? ROW_QUADS : 32,  // lanes that load a row
    OF_ROW = ROW_QUADS / ACROSS,               // quads of a row per lane
    APART = THREADS / ACROSS,                  // distance between the rows of a thread
  };
  f4 quad[EACH];

  // The row of this thread's piece i, and the quad within it.
  static INLINE int row_of(int i) { return (int)(i / OF_ROW * APART + (unsigned)opaque(thread_index()) / ACROSS); }
  static INLINE int quad_of(int i) { return (int)(i % OF_ROW * ACROSS + (unsigned)opaque(thread_index()) % ACROSS); }
  // Byte offset of piece i from piece zero in a tile, and the position of piece zero.
  static INLINE int place_of(int i) { return (i / OF_ROW * APART * ROW_QUADS + i % OF_ROW * ACROSS) * 16; }
  static INLINE int first_place() { return (row_of(0) * ROW_QUADS + quad_of(0)) * 16; }

  // Loads a whole chunk, whose first piece is at `at` and whose pieces have a row stride of `across` bytes: f32 values, or
  // the words of 16-bit elements.
  INLINE void bring(Address at, int across, bool wide) {
    if (wide) {
      UNROLL for (int i = 0; i < EACH; i++) quad[i] = load_f4(at + i / OF_ROW * across + i % OF_ROW * (ACROSS * 16));
    } else {
      UNROLL for (int i = 0; i < EACH; i++) {
        const u2 words = load_u2(at + i / OF_ROW * across + i % OF_ROW * (ACROSS * 8));
        quad[i][0] = float_of_bits(words[0]);
        quad[i][1] = float_of_bits(words[1]);
      }
    }
  }

  // Nothing is in transit: the registers may hold anything from here on.
  INLINE void drop() {
    UNROLL for (int i = 0; i < EACH; i++) forget(quad[i]);
  }

  // Divides a row, spread over lanes by quads, by sqrt(sum of squares + epsilon).
  static INLINE void normalize(f4 (&x)[OF_ROW], float epsilon) {
    float sum = 0.f;
    UNROLL for (int o = 0; o < OF_ROW; o++)
      UNROLL for (int e = 0; e < 4; e++) sum = __builtin_fmaf(x[o][e], x[o][e], sum);
    UNROLL for (int bit = 1; bit < ACROSS; bit *= 2) sum += shuffle_xor(sum, bit);
    const float factor = 1.f / __builtin_sqrtf(sum + epsilon);
    UNROLL for (int o = 0; o < OF_ROW; o++) x[o] = x[o] * factor;
  }

  // Stores the loaded chunk in shared memory: f32 values unchanged, or each row through `finish`.
  INLINE void store(SharedBytes tile) const {
    const SharedBytes first = tile + first_place();
    UNROLL for (int i = 0; i < EACH; i++) store_shared(first + place_of(i), quad[i]);
  }
  template <class Finish> INLINE void store(SharedBytes tile, bool wide, int dtype, Finish finish) {
    const SharedBytes first = tile + first_place();
    NO_UNROLL for (int i = 0; i < EACH; i += OF_ROW) {  // each step moves the next row to the first place
      f4 x[OF_ROW];
      UNROLL for (int o = 0; o < OF_ROW; o++) x[o] = wide ? quad[o] : to_f32(u2{bits_of(quad[o][0]), bits_of(quad[o][1])}, dtype);
      UNROLL for (int o = OF_ROW; o < EACH; o++) quad[o - OF_ROW] = quad[o];
      finish(x);
      UNROLL for (int o = 0; o < OF_ROW; o++) store_shared(first + place_of(i + o), x[o]);
    }
  }

  // Copies any chunk straight to shared memory: rows past the last token, and elements past the last dim, are zero.
  template <class Finish> static INLINE void copy(SharedBytes tile, const Source& source, int chunk, Finish finish) {
    const Address first = source.rows.zero + chunk * source.chunk;
    const int rows = source.end - chunk * CHUNK;
    NO_UNROLL for (int i = 0; i < EACH; i += OF_ROW) {
      f4 x[OF_ROW];
      const int r = row_of(i);
      UNROLL for (int o = 0; o < OF_ROW; o++) {
        x[o] = zero4();
        if (r < rows) x[o] = unpacked(source.rows, load_row4(source.rows, first + r * source.rows.step, quad_of(i + o) * 4));
      }
      finish(x);
      UNROLL for (int o = 0; o < OF_ROW; o++) store_shared(tile + first_place() + place_of(i + o), x[o]);
    }
  }
};
