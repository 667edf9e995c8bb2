// Phase two: the partial states of each row are merged in the balanced tree over split numbers, and the merged state
// yields the row's results.
//
//   for stride = 1, 2, 4, ... < splits      the up-sweep of Blelloch's scan, in place
//     for i = 0, 2 stride, 4 stride, ...
//       state i <- state i (+) state (i + stride)
//
// A row needs only the total, so there is no down-sweep. Empty states are the identity; their W was never written and is
// ignored.
//
// Level by level, every merge would go through memory. Here a team of lanes, with four columns each, loads GROUP adjacent
// states at once, a power of two, and merges them in registers, which is a subtree. Up to GROUP splits are one such
// subtree, and each team of a block has a row. With more splits the teams of a block share the subtrees of one row; a
// merged state replaces the first of its subtree, and the next pass has strides GROUP times as long.
//
// The time goes into waiting for memory. Few registers let an SM hold many rows, hence an instance for few splits.
//
// If keys come in chunks, each with a power of two of splits, the splits of a chunk are a subtree. Its state merges with
// pending states of earlier chunks, to its left, from the last one on, one for each subtree that it completes. The result
// is pending in their place; after the last chunk it is the row's state.
#pragma once

#include "budget.cuh"
#include "finish.cuh"

constexpr int THREADS = 128;

// The sums D of partial states, and the address for the D of a finished row. Empty without a budget.
template <class Limit> struct LeftOut {
  static constexpr int COUNT = 0;
};
template <> struct LeftOut<Budget> {
  static constexpr int COUNT = 1;
};

// Writes log-sum-exp and state of a row with reference m and sum s. The same lanes have written W relative to m.
template <class Limit>
INLINE void write_scalars(const Call& call, const Limit& limit, long long row, float m, float s, const float* d, int lane,
                          int lanes) {
  if constexpr (LeftOut<Limit>::COUNT > 0) {
    if (lane == 0) {
      const long long all = (long long)call.query_rows * 4;
      write_f32(limit.left_out + row * 4, m);
      write_f32(limit.left_out + all + row * 4, s);
      write_f32(limit.left_out + 2 * all + row * 4, d[0]);
      if (call.lse != 0) write_f32(call.lse + row * 4, log_sum_exp(m, s, d[0]));
    }
  } else {
    if (call.lse != 0 && lane == 0) write_f32(call.lse + row * 4, log_sum_exp(m, s));
  }
  if (call.state_m == 0) return;
  const NaturalReference natural = natural_reference(m);
  if (lane == 0) {
    write_f32(call.state_m + row * 4, natural.m);
    write_f32(call.state_s + row * 4, state_is_empty(m, s) ? 0.f : (float)((double)s * natural.factor));
  }
  NO_UNROLL for (int x = lane * 4; x < call.value_dim; x += lanes * 4)
    NO_UNROLL for (int e = x; e < min_of(x + 4, call.value_dim); e++) {
      const Address a = call.state_w + (row * call.value_dim + e) * 4;
      write_f32(a, (float)((double)read_f32(a) * natural.factor) + 0.f);
    }
}

// Writes columns x .. x + 3 of a row's output, if the call has one, and of its W relative to m.
INLINE void write_columns(const Call& call, long long row, int x, f4 w, float m, float s) {
  const bool empty = state_is_empty(m, s);
  if (call.output.data != 0) {
    const int of_tokens = quotient_of((int)row, call.by_tokens), batch = quotient_of(of_tokens, call.by_heads);
    const int token = (int)row - of_tokens * call.tokens, head = of_tokens - batch * call.heads;
    write_quotient4(call, output_row(call, batch, head, token), x, w, s, empty, call.dtype);
  }
  if (call.state_w != 0) {
    UNROLL for (int e = 0; e < 4; e++)
      if (x + e < call.value_dim) write_f32(call.state_w + (row * call.value_dim + x + e) * 4, empty ? 0.f : w[e]);
  }
}

// The pending states of a row: `joins` of them, from `into` on, merge with the state of the chunk. The result replaces the
// first of them if `more` chunks follow.
struct Pending {
  Address ms, w;             // [row][slot][2], [row][slot][part_dim]
  int slots, joins, into, more;
};

// The argument of a launch for a chunk of keys: the device twin of kernels/src/cuda/attention/stream.rs.
struct Stream {
  Call call;
  Pending pending;
};

static_assert(__builtin_offsetof(Stream, pending) == sizeof(Call) && sizeof(Pending) == 32, "");

// No pending states: the call has all keys.
struct NonePending {};
// Likewise, for states that other blocks of the same launch have written.
struct JustWritten : NonePending {};

template <class Earlier> INLINE f2 references_at(const Earlier&, Address a) { return read_f2(a); }
template <class Earlier> INLINE f4 sums_at(const Earlier&, Address a) { return read_f4(a); }
INLINE f2 references_at(const JustWritten&, Address a) { return fetch_f2(a); }
INLINE f4 sums_at(const JustWritten&, Address a) { return fetch_f4(a); }

INLINE int joins_of(const NonePending&) { return 0; }
INLINE bool is_whole(const NonePending&) { return true; }
INLINE Address references_of(const NonePending&, long long, int) { return 0; }
INLINE Address sums_of(const NonePending&, const Call&, long long, int) { return 0; }
INLINE int joins_of(const Pending& p) { return p.joins; }
INLINE bool is_whole(const Pending& p) { return p.more == 0; }
// References and sum of the state `slot` places after the first one to merge, and its weighted sums.
INLINE Address references_of(const Pending& p, long long row, int slot) {
  return p.ms + (row * p.slots + p.into + slot) * 8;
}
INLINE Address sums_of(const Pending& p, const Call& call, long long row, int slot) {
  return p.w + (row * p.slots + p.into + slot) * call.part_dim * 4;
}

// Merges GROUP states into the first of them. Without a budget, `d` has one unused element.
template <int GROUP, int COUNT> INLINE void merge_subtree(float (&m)[GROUP], float (&s)[GROUP], float (&d)[COUNT], f4 (&w)[GROUP]) {
  UNROLL for (int i = 0; i < GROUP; i++)
    if (state_is_empty(m[i], s[i])) w[i] = f4{0.f, 0.f, 0.f, 0.f};
  UNROLL for (int step = 1; step < GROUP; step *= 2)
    UNROLL for (int i = 0; i + step < GROUP; i += 2 * step) {
      const Merge merge = merge_of(m[i], m[i + step]);
      m[i] = merge.m;
      s[i] = merge_apply(merge, s[i], s[i + step]);
      if constexpr (COUNT > 1) d[i] = merge_apply(merge, d[i], d[i + step]);
      merge_into(merge, w[i], w[i + step]);
    }
}

// Merges the subtree of the GROUP states that start at `first` and are `stride` splits apart. Lane `lane` of a team of `lanes`
// merges some of the columns. With `last`, the merged state and the pending ones yield the row's results; without it, the merged
// state replaces the first one. With MANY all lanes of a warp call this; a team without `own` work reads and writes nothing.
template <int GROUP, bool MANY, class Earlier, class Limit>
INLINE void merge_group(const Call& call, const Earlier& earlier, const Limit& limit, long long row, int first, int stride, int lane,
                        int lanes, bool last, bool own) {
  // For places past the last state, the last state is read and ignored.
  const long long leaf = row * call.splits + first;
  const int count = call.splits - first, pace = MANY ? opaque(stride) : 1;
  const Address ms = call.part_ms + leaf * 8;
  const Address part = call.part_w + leaf * call.part_dim * 4;
  auto column = [&](int i, int x) LAMBDA -> Address {
    return part + ((long long)min_of(i * pace, count - 1) * call.part_dim + x) * 4;
  };
  constexpr bool LEAVES_OUT = LeftOut<Limit>::COUNT > 0;
  float m[GROUP], s[GROUP], d[LEAVES_OUT ? GROUP : 1];
  int x = lane * 4;
  NO_UNROLL do {  // beyond 128 columns the references are read again
    f4 w[GROUP];
    UNROLL for (int i = 0; i < GROUP; i++) {
      m[i] = NEG_INF;
      s[i] = 0.f;
      w[i] = f4{0.f, 0.f, 0.f, 0.f};
    }
    if (own) {
      const int at = x < call.part_dim ? x : 0;
      UNROLL for (int i = 0; i < GROUP; i++) {
        const f2 y = references_at(earlier, ms + min_of(i * pace, count - 1) * 8ll);
        w[i] = sums_at(earlier, column(i, at));
        m[i] = i * pace < count ? y[0] : NEG_INF;
        s[i] = i * pace < count ? y[1] : 0.f;
      }
    }
    if constexpr (LEAVES_OUT) {
      UNROLL for (int i = 0; i < GROUP; i++) {
        d[i] = 0.f;
        if (own && i * pace < count) d[i] = read_f32(limit.part_d + (leaf + i * pace) * 4);
      }
    }
    merge_subtree(m, s, d, w);
    if (own && x < call.part_dim) {
      if (last) {
        NO_UNROLL for (int slot = joins_of(earlier) - 1; slot >= 0; slot--) {
          const f2 y = read_f2(references_of(earlier, row, slot));
          f4 sums = read_f4(sums_of(earlier, call, row, slot) + x * 4);
          const Merge merge = merge_of(y[0], m[0]);
          m[0] = merge.m;
          s[0] = merge_apply(merge, y[1], s[0]);
          merge_into(merge, sums, w[0]);
          w[0] = sums;
        }
      }
      if (last && is_whole(earlier)) write_columns(call, row, x, w[0], m[0], s[0]);
      else write_f4(last ? sums_of(earlier, call, row, 0) + x * 4 : column(0, x), w[0]);
    }
    x += lanes * 4;
  } while (own && x < call.part_dim);
  if constexpr (MANY) sync_warp();  // every lane has read the references
  if (!own) return;
  if (last && is_whole(earlier)) write_scalars(call, limit, opaque((int)row), m[0], s[0], d, lane, lanes);
  else if (lane == 0) write_f2(last ? references_of(earlier, row, 0) : ms, f2{m[0], s[0]});
  if constexpr (LEAVES_OUT) {
    if (!last && lane == 0) write_f32(limit.part_d + leaf * 4, d[0]);
  }
}

template <int GROUP, bool MANY, class Earlier, class Limit>
INLINE void merge_rows(const Call& call, const Earlier& earlier, const Limit& limit) {
  const int bits = call.part_dim <= 32 ? 3 : call.part_dim <= 64 ? 4 : 5, lanes = 1 << bits;
  const int teams = THREADS >> bits, team = thread_index() >> bits, lane = thread_index() & (lanes - 1);
  const bool many = MANY && call.splits > GROUP;
  const long long row = many ? block_index() : (long long)block_index() * teams + team;
  const bool there = row < call.query_rows;
  if constexpr (!MANY) {
    if (there) merge_group<GROUP, false>(call, earlier, limit, row, 0, 1, lane, lanes, true, true);
    return;
  }
  int stride = 1;
  NO_UNROLL while (true) {
    const bool last = (long long)stride * GROUP >= call.splits;
    int first = many ? team * GROUP * stride : 0;
    NO_UNROLL do {
      merge_group<GROUP, true>(call, earlier, limit, row, first, stride, lane, lanes, last, there && first < call.splits);
      first += teams * GROUP * stride;
    } while (!last && any_of_warp(first < call.splits));
    if (last) return;
    sync_block();
    stride *= GROUP;
  }
}

// Parameters: name, states merged at once, whether a row may have more, blocks per SM.
#define MERGE(name, GROUP, MANY, BLOCKS)                                                           \
  KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) void name(const Call call) {                         \
    merge_rows<GROUP, MANY>(call, NonePending{}, Unlimited{});                                     \
  }
// Like MERGE, for states inside an error budget.
#define MERGE_WITHIN(name, GROUP, BLOCKS)                                                          \
  KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) void name(const Within within) {                           \
    merge_rows<GROUP, true>(within.call, NonePending{}, within.budget);                            \
  }
// Like MERGE, for the states of a chunk of the keys.
#define MERGE_STREAM(name, GROUP, BLOCKS)                                                          \
  KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) void name(const Stream stream) {                           \
    merge_rows<GROUP, true>(stream.call, stream.pending, Unlimited{});                             \
  }
