// Exact softmax attention with tiles of queries and keys in registers and shared memory.
//
//   s_ij = factor * (q_i . k_j)          scores in base-2 units, then the soft cap and the mask
//   m_i near max_j s_ij,  S_i = sum_j 2^(s_ij - m_i),  W_i = sum_j 2^(s_ij - m_i) v_j,  out_i = W_i / S_i
//
// The naive loop, for a block of BM query rows:
//
//   for each tile of 64 keys
//     s = Q K'                                    BM x 64
//     m' = max(m, max_j s)                        W *= 2^(m - m'), S *= 2^(m - m')
//     p = 2^(s - m'), S += sum_j p, W += p V
//
// Why the code differs:
//
//  1. A lane owns TM x TN scores and TM x D / LANE_COLS elements of W. Each 16 bytes that it reads from shared memory feed
//     many multiply-adds. A warp owns its rows alone, so its weights never leave it.
//  2. Shared memory holds Q for the whole block, transposed and scaled, and an exchange area. The area holds the keys of a
//     tile first (transposed, KD dims at a time), then, in edges, the addends of the scores, then stages of VK values
//     together with their weights.
//  3. A tile is plain if every row attends all of it and its rows are adjacent in memory. Plain tiles have their own loop
//     without checks. The next contents of the area travel through registers one step early; every path writes or forgets
//     those registers, because a path that left them alone would keep them live around the loop. All other tiles are edges.
//     If its rows are adjacent, an edge travels the same way, and rows past the last one repeat it; otherwise each row and
//     dim is checked.
//  4. Lanes that differ in bit 0 have the same columns, lanes that differ in bit 1 the same rows, and 16-byte chunks are
//     permuted by exclusive or: loads take the fewest cycles and stores cause no bank conflicts.
//  5. The keys of a tile are dealt to columns like cards: column j of lane group g is key j * LANE_COLS + g. A column of
//     weights is then a run of keys, and so is a stage of values.
//  6. Values derived from the thread or block index are computed where they are used (`opaque`): kept, they would cost
//     registers that the products need.
//  7. A row's reference moves only when a score exceeds it by HEADROOM, decided by a vote of the warp, and then to an
//     integer, so that rescaling is exact.
//  8. The rounding error of a sum grows with its chain. Every FLUSH tiles the sums are therefore added to memory, to the
//     output row or the partial state. A lane owns the elements that it accesses there.
//  9. Soft cap, biases, masks, sides of windows and ranges are a pass over the scores of an edge. Before the keys of a tile
//     are loaded, a boolean mask becomes bits, which lanes keep as words of 32 keys. A tile with no attended key for any row
//     of the block is skipped, and if all bits are set nothing is selected. Elements are read with adjacent keys in adjacent
//     lanes, for any type and strides, are summed in the exchange area in the layout of weights, and are distributed from
//     there to the lanes that own the scores. If all of them are finite and of ordinary size, decided by a vote of the warp,
//     nothing is selected. A masked key gets the score -inf by selection, and weighs zero; an attended key whose weight is
//     zero weighs negative zero. If no row of the block attends a key of the tile, its values are skipped, and if a stage of
//     values has a NaN or an infinity, its product skips positive zeros. Instances for NONE only have ranges, column by
//     column. Instances for ADDENDS add in plain tiles too, and a lane loads the elements of its own scores. Their loop must
//     stay short: rarely needed code handles a row at a time, and edges have their own loop, because a jump over code costs
//     an SM of newer GPUs more than the code would.
// 10. PAIRED supports only f16 and multiplies in plain tiles without widening: a word of shared memory holds two adjacent
//     dims, and half2_fma sums even and odd dims separately. After CHAIN words both sums are widened and added to the score,
//     which adds a relative error of at most CHAIN 2^-11 / (1 - CHAIN 2^-11) of sum |q k| to that of f32 sums. Queries are
//     stored unscaled; the factor is applied when sums are widened. A sum beyond the range of f16 is an infinity, which makes
//     every row of its lane NaN: never a wrong number that looks right. Edges widen before they multiply.
// 11. A head size below the kernel's, a multiple of eight, is padded: products of scores stop at it, loads beyond it repeat
//     its last four dims, and columns of W beyond it are not written.
// 12. Inside an error budget a tile whose weights are small in every row of the block is left out (tile/within.cuh).
// 13. With SERIAL_SPLITS a block takes all splits of its rows and merges their states in place (tile/serial.cuh). The keys of
//     a split's first tile travel with the last tile of the previous split.
// 14. A warp without rows takes part in loads and barriers but skips products: its references are NaN, which no score
//     exceeds. Blocks with such warps start after all others (place.cuh). Which of their warps have rows depends on the head,
//     because a scheduler of an SM serves the same warp of every block.
// 15. A GPU with two register banks multiplies at full rate if no two operands come from one bank, and reuses an operand of
//     the previous product: hence the order of products (scores.cuh, values.cuh).
// 16. If registers allow, the weights of a column of scores are exchanged while those of the previous column are multiplied
//     (multiply_stage), because a warp that stores and then loads waits for both.
// 17. With LAST_MERGES the last block of each row block merges the splits (tile/merged.cuh), which saves a launch.
//
// One source serves all head sizes up to 256 and both widths of elements; everything else is data in `Call`.
#pragma once

#include "tile/attend.cuh"
#include "tile/memory.cuh"
#include "tile/merged.cuh"
#include "tile/queries.cuh"
#include "tile/result.cuh"
#include "tile/serial.cuh"
#include "tile/staging.cuh"

// The work of a block: `end` is the end of the keys that some row attends.
template <class S> INLINE void Tiles<S>::run(SharedBytes sm, const Call& call, const Limit& limit) {
  int k0, end, full_from;
  Share outset = share_of(call, block_index());
  // Different warps take the last rows for different heads, because a scheduler serves the same warp of every block.
  const int tid = IDLES ? (thread_index() + (outset.head + outset.split) * 32) & (NT - 1) : thread_index();
  if constexpr (SERIAL)
    if (call.flags & SERIAL_SPLITS) outset.split = 0;
  {
    const Sequence& s = outset.sequence;
    const int row0 = first_row(outset);
    if (row0 >= s.queries) {
      if constexpr (BUDGET)
        if (row0 == 0) open_counts(limit, outset, 0, 0);
      return;
    }
    const Range first = range_of(s, row0), last = range_of(s, min_of(row0 + BM, s.queries) - 1);
    const int part = outset.split * call.chunk;
    k0 = max_of(part, first.start & ~(TILE - 1));
    end = min_of(part + call.chunk, last.end);
    full_from = last.start;
    if constexpr (BUDGET)
      open_counts(limit, outset, min_of(s.queries - row0, BM), max_of(end - k0 + TILE - 1, 0) / TILE);
  }
  Raw4 kr[K_ITEMS * 4], vr[V_ITEMS];
  int near_to = 0, edge_to = 0, plain_to = 0;
  bool near_past = false;
  Address near_key = 0, near_value = 0;
  bool ready;
  float acc[TM][AN], m[TM], sum[TM], s[TM][TN];
  unsigned odd_sums = 0;
  bool flushed = false;
  unsigned words[OWN_WORDS];
  float early[EARLY ? TM : 1][TN];
  Vote vote;
  Tiles t = {Voting<BUDGET>::of(limit, vote), full_from, sm,    call, tid, kr,  vr, near_value, near_key, near_past,
             plain_to,  near_to, edge_to, ready, acc,  m,   sum, s,  flushed,    odd_sums,   k0, end, words, early};
  if (!ADDS || k0 >= outset.sequence.past) t.approach(outset, outset.sequence.past);  // the loop handles the past
  ready = k0 < end && (SLOW ? k0 >= full_from && k0 < plain_to : k0 + TILE <= edge_to);
  if (ready) t.template load_k<!SLOW>(k0, 0);
  else t.drop_k();
  t.store_queries(call, outset);
  t.store_k();
  sync_block();
  NO_UNROLL while (true) {
    const bool idle = t.begins_idle(outset);
    UNROLL for (int i = 0; i < TM; i++) {
      m[i] = idle ? NO_ROW : NO_KEY;
      sum[i] = 0.f;
      UNROLL for (int j = 0; j < AN; j++) acc[i][j] = 0.f;
    }
    if constexpr (BUDGET) t.open_vote(outset);
    NO_UNROLL while (k0 < end) {
      const bool flushes = !B16 || call.part_ms != 0;
      const int stop = flushes && end - k0 > FLUSH * TILE ? k0 + FLUSH * TILE : end;
      NO_UNROLL while (k0 < stop) {
        if (ADDS && k0 + TILE > edge_to) t.approach(t.here(), k0);
        const bool plain = PLAINS && k0 >= full_from && k0 < plain_to;
        if constexpr (ADDED) {
          if (plain) {
            const int halt = min_of(stop, plain_to), latest = min_of(end, plain_to) - TILE;
            NO_UNROLL do {
              if (RARELY(has_bits(call)) && !t.find_bits()) {  // no row attends a key of the tile
                ready = false;
              } else {
                if (!ready) t.template begin<false>();
                ready = k0 < latest;
                t.template attend<false>();
              }
              k0 += TILE;
            } while (k0 < halt);
          } else {
            if (has_bits(call) && !t.find_bits()) {
              ready = false;
            } else {
              if (!SLOW && !ready) t.template begin<true>();
              ready = !SLOW && k0 + TILE < end && k0 + 2 * TILE <= edge_to;
              t.template attend<true>();
            }
            k0 += TILE;
          }
          continue;
        }
        if constexpr (ADDS) {
          if (has_bits(call) && !t.find_bits()) {  // no row attends a key of the tile
            if constexpr (BUDGET) t.count(0, -1);
            ready = false;
            k0 += TILE;
            continue;
          }
        }
        if (!ready && (!SLOW || plain)) t.template begin<!SLOW>();
        if (plain) {
          const int halt = min_of(stop, plain_to), latest = min_of(t.end_of_all(), plain_to) - TILE;
          NO_UNROLL do {
            ready = k0 < latest;
            t.template attend<false>();
            k0 += TILE;
          } while (k0 < halt);
        } else {
          ready = !LEAN && k0 + TILE < end && k0 + 2 * TILE <= edge_to;
          t.template attend<true>();
          k0 += TILE;
        }
      }
      const bool more = stop < end;
      bool parts = call.part_ms != 0;
      if constexpr (SERIAL) parts = parts && !t.joins();
      if (more || parts || flushed) {
        t.exchange(t.home(t.in_hand()), flushed, more || parts);
        flushed = true;
      }
    }
    t.finish();
    if (!t.next()) return;
  }
}

// Defines the kernel `name` of a shape, with BLOCKS blocks per SM on newer GPUs.
#define ATTENTION(name, IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES, BLOCKS)             \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Call call) {                              \
    typedef Tiles<Shape<IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES>> A;         \
    SHARED(memory, A::SHARED_BYTES);                                                                 \
    A::run(memory, call, Unlimited{});                                                               \
  }

// Like ATTENTION, for kernels whose last block of a row block can merge the splits.
#define ATTENTION_MERGED(name, IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES, BLOCKS)      \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Call call) {                              \
    typedef Tiles<Shape<IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES>> A;         \
    SHARED(memory, A::SHARED_BYTES);                                                                 \
    A::run(memory, call, Unlimited{});                                                               \
    if (last_merges(call)) merge_splits<A>(memory, call);                                            \
  }

// Like ATTENTION, for kernels whose blocks can take all splits of their rows.
#define ATTENTION_SERIAL(name, IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES, BLOCKS)      \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Call call) {                              \
    typedef Tiles<Shape<IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES, false, true>> A; \
    SHARED(memory, A::SHARED_BYTES);                                                                 \
    A::run(memory, call, Unlimited{});                                                               \
  }

// Like ATTENTION, inside an error budget.
#define ATTENTION_WITHIN(name, IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES, BLOCKS)       \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Within within) {                              \
    typedef Tiles<Shape<IN, D, WARPS, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, CHANGES, true>> A;   \
    SHARED(memory, A::SHARED_BYTES);                                                                 \
    A::run(memory, within.call, within.budget);                                                      \
  }
