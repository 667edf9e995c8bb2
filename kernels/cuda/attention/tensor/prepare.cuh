// Writes the planes of a tile of keys or of values, and what the guard needs to know of it (planes.cuh).
//
// The naive way divides the work by rows and passes over the tile three times. Here a lane owns the same 8 channels in all of its
// rows and keeps its elements in registers: it finds the largest magnitude of the tile, splits, and folds the channels. K, R and L
// of a head are maxima, so the order of the tiles does not matter. A mean of values stays within its tile for the same reason. If
// the number of lanes of a row is no power of two, some lanes have no channels.
#pragma once

#include "../../common/elements.cuh"
#include "planes.cuh"

constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

template <class I, bool B16> INLINE void split_tile(SharedBytes memory, const Call& call, const Planes& planes) {
  constexpr int D = I::D, BN = I::BN, NT = 256, RUN = 8, CHUNKS = D / RUN;
  constexpr int ACROSS = power_of_two_from(CHUNKS), RUNS = BN * ACROSS / NT;
  const int tid = thread_index(), warp = tid / 32;
  const int pair = block_index(), of_two = pair >> 1, of_kv = quotient_of(of_two, planes.by_longest);
  const bool values = pair & 1;
  const int tile = of_two - of_kv * planes.longest, index = quotient_of(of_kv, planes.by_kv_heads);
  const int head = of_kv - index * planes.kv_heads;
  Sequence seq = call.sequence;
  seq.batch = index;
  if (call.sequences != 0) {
    const Address from = call.sequences + (long long)index * sizeof(Sequence);
    seq.batch = load_i32(from);
    seq.key0 = load_i32(from + 12);
    seq.past = load_i32(from + 20);
    seq.reach = load_i32(from + 24);
  }
  const int first = tile * BN, left = min_of(seq.reach - first, BN), old = seq.past - first;  // `old`: rows of the past
  if (left <= 0) return;
  const Tensor& t = values ? call.value : call.key;
  const Tensor& past = values ? call.past_value : call.past_key;
  const int dim = values ? call.value_dim : call.head_dim;
  constexpr int SIZE = B16 ? 2 : 4;
  const Address from = t.data + row_offset(t, seq.batch, head, seq.key0 - old) * SIZE;
  const Address from_past = past.data + row_offset(past, seq.batch, head, first) * SIZE;
  const long long place = first_tile<I>(planes, seq, index, head) + tile;
  float x[RUNS][RUN];
  unsigned most = 0;
  UNROLL for (int i = 0; i < RUNS; i++) {
    const int n = i * NT + tid, row = n / ACROSS, column = n % ACROSS * RUN;
    UNROLL for (int half = 0; half < 2; half++) {
      typename Raw<B16>::Type raw;
      const Address at = row < old ? from_past + row * past.token * SIZE : from + row * t.token * SIZE;
      const int c = column + 4 * half;
      clear(raw);
      if (row < left) {
        if (c < dim) load4(raw, at + c * SIZE);
      }
      const f4 y = to_f32(raw, call.dtype);
      UNROLL for (int e = 0; e < 4; e++) {
        x[i][4 * half + e] = y[e];
        most = larger(most, magnitude(y[e]));
      }
    }
  }
  most = largest_of_lanes(most, 1, 16);
  const SharedBytes of_warps = memory + 3 * 8 * D * 4;
  if (tid % 32 == 0) store_shared_f(of_warps + warp * 4, float_of_bits(most));
  sync_block();
  UNROLL for (int w = 0; w < 8; w++) most = larger(most, bits_of(load_shared_f(of_warps + w * 4)));
  const bool ordinary = is_ordinary(most);
  const int shift = shift_for(most);
  const float up = exact_power(shift);
  const Address image = planes.images + place * I::BYTES + (values ? I::KEYS : 0);
  float seen[3][RUN] = {};
  UNROLL for (int i = 0; i < RUNS; i++) {
    const int n = i * NT + tid, row = n / ACROSS, chunk = n % ACROSS;
    unsigned hi[4], lo[4];
    UNROLL for (int e = 0; e < 4; e++) {
      const float a = x[i][2 * e] * up, b = x[i][2 * e + 1] * up;
      const Split s = split_of<I::ONE>(a, b);
      hi[e] = s.hi;
      lo[e] = s.lo;
      const Missed m = missed_by<I::ONE && !B16>(a, b, s);
      UNROLL for (int h = 0; h < 2; h++) {
        const float size = __builtin_fabsf(h ? b : a);
        float(&of)[RUN] = seen[0];
        of[2 * e + h] = values ? of[2 * e + h] + size : max2(of[2 * e + h], size);
        seen[1][2 * e + h] = max2(seen[1][2 * e + h], m.residual[h]);
        seen[2][2 * e + h] = max2(seen[2][2 * e + h], m.low[h]);
      }
    }
    if (ACROSS > CHUNKS && chunk >= CHUNKS) continue;
    const Address at = image + row * I::ROW + ((chunk ^ I::permuted_by(row)) << 4);
    write_f4(at, words4(hi[0], hi[1], hi[2], hi[3]));
    if (!I::ONE) write_f4(at + I::PLANE, words4(lo[0], lo[1], lo[2], lo[3]));
  }
  if (tid == 0) {
    const Address at = planes.shifts + (place * 2 + values) * 4;
    write_f32(at, float_of_bits((unsigned)(most == 0 ? NO_SHIFT : shift)));
  }
  // Lanes whose numbers differ by multiples of ACROSS have the same channels.
  constexpr int LANES = ACROSS < 32 ? ACROSS : 32;
  UNROLL for (int mask = 16; mask >= LANES; mask >>= 1)
    UNROLL for (int k = 0; k < 3; k++)
      UNROLL for (int e = 0; e < RUN; e++) {
        const float other = shuffle_xor(seen[k][e], mask);
        seen[k][e] = k == 0 && values ? seen[k][e] + other : max2(seen[k][e], other);
      }
  if (tid % 32 < (LANES < CHUNKS ? LANES : CHUNKS)) {
    UNROLL for (int k = 0; k < 3; k++)
      UNROLL for (int e = 0; e < RUN; e++)
        store_shared_f(memory + ((warp * 3 + k) * D + tid % LANES * RUN + e) * 4, seen[k][e]);
  }
  sync_block();
  bool refused = !ordinary;
  const float down = exact_power(-shift);
  for (int c = tid; c < D; c += NT) {
    float f[3] = {};
    UNROLL for (int w = 0; w < 8; w++)
      UNROLL for (int k = 0; k < 3; k++) {
        const float y = load_shared_f(memory + ((w * 3 + k) * D + c) * 4);
        f[k] = k == 0 && values ? f[k] + y : max2(f[k], y);
      }
    if (values) {
      refused = refused || !(f[1] * (float)left <= f[0] * MOST_VALUE);
    } else {
      UNROLL for (int k = 0; k < 3; k++)
        raise_u32(planes.channels + (((long long)of_kv * 3 + k) * D + c) * 4, bits_of(f[k] * down));
    }
  }
  if (refused) write_f32(planes.refused + of_kv * 4ll, 1.f);
}

// Parameters: those of Image, after B16: elements of 16 bits. Launched on two blocks for each tile of the longest sequence, key head
// and sequence.
#define SPLIT_PLANES(name, B16, D, ...)                         \
  KERNEL LAUNCH_BOUNDS(256, 2) void name(const TensorCall x) {  \
    typedef Image<D, __VA_ARGS__> I;                            \
    SHARED(memory, 3 * 8 * D * 4 + 64);                         \
    split_tile<I, B16>(memory, x.call, x.planes);               \
  }
#define SPLIT(name, D, BN, B16) SPLIT_PLANES(name, B16, D, BN, B16)
// One plane of f32 elements.
#define SPLIT_F16(name, D, BN) SPLIT_PLANES(name, false, D, BN, true)
