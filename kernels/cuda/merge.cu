// Phase two: the partial states of each row merge in the balanced tree over split numbers, and the merged state
// gives everything that a row gives.
//
// The tree is the up-sweep of Blelloch's scan, in place: at stride 1, 2, 4, ... state i takes in state
// i + stride for every i that is a multiple of twice the stride. A row asks for the total alone, so there is no
// down-sweep. Empty states are the identity; their W was never written and is never read. Of few splits a warp holds
// the whole tree in registers; of many, the warps of a block share the pairs of a level.
#include "finish.cuh"

constexpr int WARPS = 4;
constexpr int FEW = 8;  // splits that a warp merges in registers; of more, the warps of a block share a row

// state i <- state i (+) state j, by one warp. ms and w are those of the row's split zero.
INLINE void merge_pair(Address ms, Address w, int part_dim, int i, int j, int lane) {
  const f2 a = read_f2(ms + i * 8ll), b = read_f2(ms + j * 8ll);
  sync_warp();
  if (state_is_empty(b[0], b[1])) return;
  const bool fresh = state_is_empty(a[0], a[1]);
  const Merge merge = merge_of(a[0], b[0]);
  const Address to = w + (long long)i * part_dim * 4, from = w + (long long)j * part_dim * 4;
  NO_UNROLL for (int x = lane * 4; x < part_dim; x += 128) {
    f4 y = read_f4(from + x * 4);
    if (!fresh) {
      const f4 z = read_f4(to + x * 4);
      UNROLL for (int e = 0; e < 4; e++) y[e] = merge_apply(merge, z[e], y[e]);
    }
    write_f4(to + x * 4, y);
  }
  if (lane == 0) {
    f2 y;
    y[0] = merge.m;
    y[1] = merge_apply(merge, a[1], b[1]);
    write_f2(ms + i * 8ll, y);
  }
  sync_warp();
}

// Log-sum-exp and state of a row with reference m and sum s.
INLINE void write_scalars(const Call& call, long long row, float m, float s, int lane) {
  if (lane != 0) return;
  if (call.lse != 0) write_f32(call.lse + row * 4, log_sum_exp(m, s));
  if (call.state_m != 0) {
    const NaturalReference natural = natural_reference(m);
    write_f32(call.state_m + row * 4, natural.m);
    write_f32(call.state_s + row * 4, state_is_empty(m, s) ? 0.f : (float)((double)s * natural.factor));
  }
}

// Columns x .. x + 3 of a row's output and state.
INLINE void write_columns(const Call& call, long long row, int x, f4 w, float m, float s) {
  const unsigned of_heads = (unsigned)row / (unsigned)call.tokens;  // rows are counted in 31 bits
  const int token = (int)((unsigned)row % (unsigned)call.tokens);
  const int head = (int)(of_heads % (unsigned)call.heads), batch = (int)(of_heads / (unsigned)call.heads);
  const bool empty = state_is_empty(m, s);
  write_output4(call, output_row(call, batch, head, token), x, quotient(w, s, empty), call.dtype);
  if (call.state_w != 0) {
    const NaturalReference natural = natural_reference(m);
    UNROLL for (int e = 0; e < 4; e++)
      if (x + e < call.value_dim)
        write_f32(call.state_w + (row * call.value_dim + x + e) * 4, empty ? 0.f : (float)((double)w[e] * natural.factor));
  }
}

// The whole tree of a row with few splits, by one warp: its leaves are read at once and merge in registers.
INLINE void merge_few(const Call& call, long long row, int lane) {
  const Address ms = call.part_ms + row * call.splits * 8;
  float m[FEW], s[FEW];
  UNROLL for (int i = 0; i < FEW; i++) {
    f2 x = {NEG_INF, 0.f};
    if (i < call.splits) x = read_f2(ms + i * 8);
    m[i] = x[0];
    s[i] = x[1];
  }
  bool there[FEW];
  UNROLL for (int i = 0; i < FEW; i++) there[i] = !state_is_empty(m[i], s[i]);
  // Merge k of a level is kept at place k of its first leaf.
  Merge merges[FEW];
  UNROLL for (int stride = 1; stride < FEW; stride *= 2)
    UNROLL for (int i = 0; i + stride < FEW; i += 2 * stride) {
      merges[i + stride] = merge_of(m[i], m[i + stride]);
      m[i] = merges[i + stride].m;
      s[i] = merge_apply(merges[i + stride], s[i], s[i + stride]);
    }
  write_scalars(call, row, m[0], s[0], lane);
  NO_UNROLL for (int x = lane * 4; x < call.part_dim; x += 128) {
    f4 w[FEW];
    UNROLL for (int i = 0; i < FEW; i++) {
      w[i] = f4{0.f, 0.f, 0.f, 0.f};
      if (there[i]) w[i] = read_f4(call.part_w + ((row * call.splits + i) * call.part_dim + x) * 4);
    }
    UNROLL for (int stride = 1; stride < FEW; stride *= 2)
      UNROLL for (int i = 0; i + stride < FEW; i += 2 * stride)
        UNROLL for (int e = 0; e < 4; e++)
          w[i][e] = merge_apply(merges[i + stride], w[i][e], w[i + stride][e]);
    write_columns(call, row, x, w[0], m[0], s[0]);
  }
}

KERNEL LAUNCH_BOUNDS(WARPS * 32, 4) void merge(const Call call) {
  const int warp = thread_index() >> 5, lane = thread_index() & 31;
  const long long rows = (long long)call.query_rows;
  const long long row0 = (long long)block_index() * WARPS;
  if (call.splits <= FEW) {
    if (row0 + warp < rows) merge_few(call, row0 + warp, lane);
    return;
  }
  NO_UNROLL for (long long row = row0; row < row0 + WARPS && row < rows; row++) {
    const Address ms = call.part_ms + row * call.splits * 8;
    const Address w = call.part_w + row * call.splits * call.part_dim * 4;
    NO_UNROLL for (int stride = 1; stride < call.splits; stride *= 2) {
      NO_UNROLL for (int i = 2 * stride * warp; i + stride < call.splits; i += 2 * stride * WARPS)
        merge_pair(ms, w, call.part_dim, i, i + stride, lane);
      sync_block();
    }
    if (warp == 0) {
      const f2 state = read_f2(ms);
      write_scalars(call, row, state[0], state[1], lane);
      NO_UNROLL for (int x = lane * 4; x < call.part_dim; x += 128) {
        f4 y = {0.f, 0.f, 0.f, 0.f};
        if (!state_is_empty(state[0], state[1])) y = read_f4(w + x * 4);
        write_columns(call, row, x, y, state[0], state[1]);
      }
    }
  }
}
