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

  // The pieces of a whole chunk, of which the first lies at `at`, and the rows of a piece `across` bytes further on.
  INLINE void load_whole(Address at, int across, bool wide) {
    if (wide) {
      UNROLL for (int i = 0; i < EACH; i++) quad[i] = load_f4(at + i / OF_ROW * across + i % OF_ROW * ACROSS * 16);
    } else {
      UNROLL for (int i = 0; i < EACH; i++) {
        const u2 words = load_u2(at + i / OF_ROW * across + i % OF_ROW * ACROSS * 8);
        quad[i] = f4{float_of_bits(words[0]), float_of_bits(words[1]), 0.f, 0.f};
      }
    }
  }

  // The pieces of any chunk.
  INLINE void load(const Source& source, int chunk) {
    const Address first = source.rows.zero + chunk * source.chunk;
    const int rows = source.end - chunk * CHUNK;
    NO_UNROLL for (int i = 0; i < EACH; i++) {  // the next piece becomes the last
      const int r = row_of(i), x = quad_of(i) * 4;
      UNROLL for (int o = 1; o < EACH; o++) quad[o - 1] = quad[o];
      quad[EACH - 1] = zero4();
      if (r < rows) quad[EACH - 1] = load_row4(source.rows, first + r * source.rows.step, x);
    }
  }

  INLINE void clear() {
    UNROLL for (int i = 0; i < EACH; i++) quad[i] = zero4();
  }

  // Divides each row by sqrt(sum of squares + epsilon).
  INLINE void normalize(float epsilon) {
    NO_UNROLL for (int i = 0; i < EACH; i += OF_ROW) {  // the first row becomes the last
      f4 x[OF_ROW];
      float sum = 0.f;
      UNROLL for (int o = 0; o < OF_ROW; o++) {
        x[o] = quad[o];
        UNROLL for (int e = 0; e < 4; e++) sum = __builtin_fmaf(x[o][e], x[o][e], sum);
      }
      UNROLL for (int o = OF_ROW; o < EACH; o++) quad[o - OF_ROW] = quad[o];
      UNROLL for (int bit = 1; bit < ACROSS; bit *= 2) sum += shuffle_xor(sum, bit);
      const float factor = 1.f / __builtin_sqrtf(sum + epsilon);
      UNROLL for (int o = 0; o < OF_ROW; o++) quad[EACH - OF_ROW + o] = x[o] * factor;
    }
  }

  // What logarithms stand for.
  INLINE void to_gates() {
    NO_UNROLL for (int i = 0; i < EACH * 4; i++) {  // the first element becomes the last
      const float x = quad[0][0];
      UNROLL for (int o = 1; o < EACH * 4; o++) quad[(o - 1) / 4][(o - 1) % 4] = quad[o / 4][o % 4];
      quad[EACH - 1][3] = gate_of(x);
    }
  }

  // 16-bit elements become values.
  INLINE void unpack(bool vec4, int dtype) {
    if (!vec4 || dtype == TYPE_F32) return;
    NO_UNROLL for (int i = 0; i < EACH; i++) {  // the first piece becomes the last
      const f4 x = quad[0];
      UNROLL for (int o = 1; o < EACH; o++) quad[o - 1] = quad[o];
      quad[EACH - 1] = to_f32(u2{bits_of(x[0]), bits_of(x[1])}, dtype);
    }
  }

  INLINE void store(SharedBytes tile) const {
    UNROLL for (int i = 0; i < EACH; i++) store_shared(tile + (row_of(i) * ROW_QUADS + quad_of(i)) * 16, quad[i]);
  }
};
