// Phase two: the partial states of each row merge in the balanced tree over split numbers, and the merged state
// gives everything that a row gives.
//
// The tree is the up-sweep of Blelloch's scan, in place: at stride 1, 2, 4, ... state i takes in state
// i + stride for every i that is a multiple of twice the stride. A row asks for the total alone, so there is no
// down-sweep. Empty states are the identity; their W was never written and is never read. A warp has a row when
// there are few splits; when there are many, the warps of a block share the pairs of a level of each row.
#include "finish.cuh"

constexpr int WARPS = 4;
constexpr int SHARED_FROM = 9;  // splits from which the warps of a block share a row

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

// Everything that row `row` gives, from its state at ms and w, by one warp.
INLINE void write_row(const Call& call, long long row, Address ms, Address w, int lane) {
  const long long of_heads = row / call.tokens;
  const int token = (int)(row % call.tokens), head = (int)(of_heads % call.heads), batch = (int)(of_heads / call.heads);
  const f2 state = read_f2(ms);
  const bool empty = state_is_empty(state[0], state[1]);
  const NaturalReference natural = natural_reference(state[0]);
  const Address out = output_row(call, batch, head, token);
  if (lane == 0) {
    if (call.lse != 0) write_f32(call.lse + row * 4, log_sum_exp(state[0], state[1]));
    if (call.state_m != 0) {
      write_f32(call.state_m + row * 4, natural.m);
      write_f32(call.state_s + row * 4, empty ? 0.f : (float)((double)state[1] * natural.factor));
    }
  }
  NO_UNROLL for (int x = lane * 4; x < call.part_dim; x += 128) {
    f4 y = {0.f, 0.f, 0.f, 0.f};
    if (!empty) y = read_f4(w + x * 4);
    write_output4(call, out, x, quotient(y, state[1], empty), call.dtype);
    if (call.state_w != 0) {
      UNROLL for (int e = 0; e < 4; e++)
        if (x + e < call.value_dim)
          write_f32(call.state_w + (row * call.value_dim + x + e) * 4, (float)((double)y[e] * natural.factor));
    }
  }
}

KERNEL LAUNCH_BOUNDS(WARPS * 32, 4) void merge(const Call call) {
  const int warp = thread_index() >> 5, lane = thread_index() & 31;
  const long long rows = (long long)call.query_rows;
  const bool together = call.splits >= SHARED_FROM;
  const long long row0 = (long long)block_index() * WARPS;
  NO_UNROLL for (int r = 0; r < (together ? WARPS : 1); r++) {
    const long long row = together ? row0 + r : row0 + warp;
    if (row < rows) {
      const Address ms = call.part_ms + row * call.splits * 8;
      const Address w = call.part_w + row * call.splits * call.part_dim * 4;
      NO_UNROLL for (int stride = 1; stride < call.splits; stride *= 2) {
        const int step = 2 * stride * (together ? WARPS : 1);
        NO_UNROLL for (int i = together ? 2 * stride * warp : 0; i + stride < call.splits; i += step)
          merge_pair(ms, w, call.part_dim, i, i + stride, lane);
        if (together) sync_block();
      }
      if (!together || warp == 0) write_row(call, row, ms, w, lane);
    }
  }
}
