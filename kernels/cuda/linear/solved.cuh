// Layout of the intermediate results of the launches for all chunks at once under a delta rule or with a gate per dim;
// chunk_solve.cuh and chunk_dims.cuh have the formulas.
#pragma once

#include "chunks.cuh"

// The argument of the first and the second launch: the device twin of kernels/src/cuda/linear/args.rs.
struct Long {
  Linear call;
  Tensor written;  // with a delta rule, f32 [batch][state head][token][value_dim, padded]: U, then u
};
static_assert(__builtin_offsetof(Long, written) == 504 && sizeof(Long) == 536, "");

namespace chunks {

// The places in `tiles`. Each state head and chunk has
//
//   W, then the transposed keys of the change of the state, with a delta rule; each LONG_CHUNK by dims
//   gates of the rows of the state, dims
//   marks of the blocks that computed them
//
// Then each output head and chunk has its gated queries, LONG_CHUNK by dims, if there is a gate per dim.
struct Tile {
  enum { DEEP = 16 };  // elements of each of two rows per thread of the second launch

  static INLINE bool has_w(const Linear& call) { return call.beta.data != 0; }
  static INLINE int dims(const Linear& call) { return call.key_dim > 64 ? 128 : 64; }
  static INLINE int row_blocks(const Linear& call) { return (call.key_dim + COLUMNS - 1) / COLUMNS; }
  static INLINE int column_blocks(const Linear& call) { return (call.value_dim + COLUMNS - 1) / COLUMNS; }
  // Blocks of a chunk that mark it: those that solve W and U, or those of a state.
  static INLINE int blocks(const Linear& call) {
    return has_w(call) ? (row_blocks(call) + column_blocks(call) + 1) / 2 : row_blocks(call) * column_blocks(call);
  }
  static INLINE int gates_at(const Linear& call) { return has_w(call) ? 2 * LONG_CHUNK * dims(call) : 0; }
  static INLINE int marks_at(const Linear& call) { return gates_at(call) + dims(call); }
  static INLINE int floats(const Linear& call) { return marks_at(call) + (blocks(call) + 3) / 4 * 4; }
  static INLINE Address of(const Linear& call, int state_head, int of_all) {
    return call.tiles + ((long long)state_head * call.chunks + of_all) * (floats(call) * 4);
  }
  static INLINE Address keys(const Linear& call, Address tile) { return tile + LONG_CHUNK * dims(call) * 4; }
  static INLINE Address gate(const Linear& call, Address tile, int row) { return tile + (gates_at(call) + row) * 4; }
  static INLINE Address mark(const Linear& call, Address tile, int block) { return tile + (marks_at(call) + block) * 4; }
  // The gated queries of a chunk. Heads of the call are output heads.
  static INLINE Address queries(const Linear& call, int head, int of_all) {
    const int states = quotient_of(call.heads, call.by_readers);
    return of(call, states, 0) + ((long long)head * call.chunks + of_all) * (LONG_CHUNK * dims(call) * 4);
  }

  // This lane's share of the marks of a chunk. The tokens of the chunk are processed one by one if a lane of a warp has another
  // number than zero. Fetched here and compared later, a mark costs no time.
  static INLINE float fetch_mark(const Linear& call, Address tile) {
    const int lane = thread_index() & 31;
    float mark = lane < blocks(call) ? load_f32(Tile::mark(call, tile, lane)) : 0.f;
    NO_UNROLL for (int block = lane + 32; block < blocks(call); block += 32) mark += load_f32(Tile::mark(call, tile, block));
    return mark;
  }
  static INLINE bool is_marked(float mark) { return any_of_warp(mark != 0.f); }

  // The byte offset of quad `quad` of row `row` in a matrix. `lanes` threads, 4 or 8, share a pair of rows, and the quads of a step
  // are adjacent.
  static INLINE int quad_at(const Linear& call, int row, int quad, int lanes) {
    const int step = lanes == 4 ? quad >> 2 : quad >> 3;
    return ((step * 2 + row % 2) * (2 * dims(call)) + row / 2 * lanes + (quad & (lanes - 1))) * 16;
  }
  // Threads that share two rows of W, and of the keys.
  static INLINE int lanes_of_w(const Linear& call) { return dims(call) / DEEP; }
  enum { LANES_OF_KEYS = LONG_CHUNK / DEEP };
  // The places of quad `quad` of a row of W, and of a key's element.
  static INLINE Address w(const Linear& call, Address tile, int token, int quad) {
    return tile + quad_at(call, token, quad, lanes_of_w(call));
  }
  static INLINE Address key(const Linear& call, Address tile, int token, int dim) {
    return keys(call, tile) + quad_at(call, dim, token / 4, LANES_OF_KEYS) + token % 4 * 4;
  }
};

}  // namespace chunks
