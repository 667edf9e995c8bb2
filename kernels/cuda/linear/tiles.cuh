// Tiles of a chunk: rows of keys and queries on their way to shared memory.
#pragma once

#include "exp.cuh"
#include "place.cuh"

// Rows of a tile by chunk and token: bytes from one chunk to the next, and positions that have a row.
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
    EACH = CHUNK * ROW_QUADS / THREADS,        // quads of a thread
    ACROSS = ROW_QUADS < 32 ? ROW_QUADS : 32,  // lanes that bring a row
    OF_ROW = ROW_QUADS / ACROSS,               // quads of a row that a lane brings
    APART = THREADS / ACROSS,                  // rows from one of a thread to the next
  };
  f4 quad[EACH];

  // The row and the quad in it of this thread's piece i.
  static INLINE int row_of(int i) { return i / OF_ROW * APART + opaque(thread_index()) / ACROSS; }
  static INLINE int quad_of(int i) { return i % OF_ROW * ACROSS + opaque(thread_index()) % ACROSS; }
  static INLINE SharedBytes place(SharedBytes tile, int i) { return tile + (row_of(i) * ROW_QUADS + quad_of(i)) * 16; }

  // Brings a whole chunk, of whose pieces the first lies at `at`, and the rows of a piece `across` bytes behind one another:
  // f32 values, or the words of 16-bit elements.
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

  // Nothing is on its way: the registers may hold anything from here on.
  INLINE void drop() {
    UNROLL for (int i = 0; i < EACH; i++) forget(quad[i]);
  }

  // Divides a row, of which each lane has some quads, by sqrt(sum of squares + epsilon).
  static INLINE void normalize(f4 (&x)[OF_ROW], float epsilon) {
    float sum = 0.f;
    UNROLL for (int o = 0; o < OF_ROW; o++)
      UNROLL for (int e = 0; e < 4; e++) sum = __builtin_fmaf(x[o][e], x[o][e], sum);
    UNROLL for (int bit = 1; bit < ACROSS; bit *= 2) sum += shuffle_xor(sum, bit);
    const float factor = 1.f / __builtin_sqrtf(sum + epsilon);
    UNROLL for (int o = 0; o < OF_ROW; o++) x[o] = x[o] * factor;
  }

  // What `bring` has brought, to shared memory; `finish` gets each row.
  template <class Finish> INLINE void store(SharedBytes tile, bool wide, int dtype, Finish finish) const {
    UNROLL for (int i = 0; i < EACH; i += OF_ROW) {
      f4 x[OF_ROW];
      UNROLL for (int o = 0; o < OF_ROW; o++) {
        const f4 raw = quad[i + o];
        x[o] = wide ? raw : to_f32(u2{bits_of(raw[0]), bits_of(raw[1])}, dtype);
      }
      finish(x);
      UNROLL for (int o = 0; o < OF_ROW; o++) store_shared(place(tile, i + o), x[o]);
    }
  }

  // Any chunk, straight to shared memory: rows past the last token, and elements past the last dim, are zero.
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
      UNROLL for (int o = 0; o < OF_ROW; o++) store_shared(place(tile, i + o), x[o]);
    }
  }
};
