// The selective scan (series_selective__sm53.cu) of channels with 16 state elements, for f32 tensors whose channels are adjacent.
//
// A lane has a whole channel, and a warp 32 adjacent ones of a part of a sequence. All its lanes multiply by the same coefficients,
// which shared memory gives to them at once; inputs and outputs are whole lines. The kernel for any tensors has four lanes for such a
// channel. It spends more instructions on moving elements than on the scan, which takes ten or eleven for a state element.
//
// A tile has TILE tokens. A lane keeps its own inputs and time steps in shared memory as well, because a loop cannot index registers.
// The sums have the order of the other kernel, so the bits are the same while states are finite.
#pragma once

#include "../common/elements.cuh"
#include "functions.cuh"
#include "selective.cuh"

constexpr int WARPS = 2, NUMBERS = 16, QUADS = NUMBERS / 4;
// A tile has 2^LENGTH tokens.
constexpr int LENGTH = 4, TILE = 1 << LENGTH, HALF = TILE / 2;
// Bytes of a row, which has a value per lane, and of the coefficients of a tile.
constexpr int ROW = 128, COEFFICIENTS = TILE * NUMBERS * 4;
// Places in a warp's memory: inputs, time steps, coefficients, states before the tile, and factors or gates.
constexpr int STEPS = TILE * ROW, OF_B = 2 * STEPS, OF_C = OF_B + COEFFICIENTS, BEFORE = OF_C + COEFFICIENTS;
constexpr int FACTORS = BEFORE + NUMBERS * ROW, GATES = FACTORS;

template <bool FOLDS> struct Lanes {
  static constexpr int BYTES = FACTORS + (FOLDS ? NUMBERS : TILE) * ROW;

  static INLINE void run(SharedBytes all_warps, const Selective& call) {
    const int lane = thread_index() % 32, item = block_index() * WARPS + thread_index() / 32;
    const SharedBytes memory = all_warps + thread_index() / 32 * BYTES, own = memory + lane * 4;
    if (item >= call.batch * call.tiles * call.parts.listed) return;
    const int of_tiles = quotient_of(item, call.by_tiles), tile_number = item - of_tiles * call.tiles;
    const int group = quotient_of(tile_number, call.by_tiles_of_group);
    const int in_group = (tile_number - group * call.tiles_of_group) * 32, first_channel = group * call.group + in_group;
    const int batch = quotient_of(of_tiles, call.parts.by_listed), part = of_tiles - batch * call.parts.listed;
    const bool softplus = (call.flags & SOFTPLUS) != 0, reverse = (call.flags & REVERSE) != 0;
    const bool wanted = !FOLDS && call.out.tensor.data != 0, last = part == call.parts.count - 1;
    if (!FOLDS && !wanted && !last) return;
    const bool gated = wanted && call.z.tensor.data != 0, inside = in_group + lane < call.group;
    const int channel = first_channel + (inside ? lane : 0);
    auto map_at = [&](int which) LAMBDA {
      const long long of_part = (((long long)which * call.batch + batch) * call.parts.count + part) * call.channels + channel;
      return call.maps + of_part * (NUMBERS * 4);
    };
    const Address state = ((long long)batch * call.channels + channel) * (NUMBERS * 4);
    const Address rates = call.a + (long long)channel * (NUMBERS * 4);
    const float leading = power_leading();
    float rate[NUMBERS], x[NUMBERS], all[FOLDS ? NUMBERS : 1];
    bool other = false;
    UNROLL for (int q = 0; q < QUADS; q++) {
      const f4 a = load_f4(rates + q * 16);
      f4 past = zero4();
      if (!FOLDS && call.parts.count > 1) past = read_f4(map_at(0) + q * 16);
      else if (!FOLDS && call.past != 0) past = read_f4(call.past + state + q * 16);
      UNROLL for (int e = 0; e < 4; e++) {
        rate[q * 4 + e] = product(a[e], LOG2E);
        other = other || !(a[e] <= 0.f && a[e] >= -1e37f);
        x[q * 4 + e] = past[e];
        if constexpr (FOLDS) all[q * 4 + e] = 1.f;
      }
    }
    const int end = part_start(call.parts, part + 1);
    auto token_at = [&](const Series& s, int position) LAMBDA {
      const int token = reverse ? call.tokens - 1 - position : position;
      return s.tensor.data + (channel_offset(s, batch, channel) + token * s.tensor.token) * 4;
    };
    // Loads a quarter of the coefficients of a tile.
    auto coefficients_at = [&](const Series& s, int of_group, int position) LAMBDA {
      const int token = reverse ? call.tokens - 1 - position : position;
      return s.tensor.data + (channel_offset(s, batch, of_group * NUMBERS) + token * s.tensor.token + lane % QUADS * 4) * 4;
    };
    int first = part_start(call.parts, part);
    Address u_at = token_at(call.u, first), delta_at = token_at(call.delta, first), out_at = wanted ? token_at(call.out, first) : 0;
    Address b_at = coefficients_at(call.b, quotient_of(first_channel, call.by_b), first + lane / QUADS);
    Address c_at = wanted ? coefficients_at(call.c, quotient_of(first_channel, call.by_c), first + lane / QUADS) : 0;
    NO_UNROLL for (; first < end; first += TILE) {
      const int count = min_of(TILE, end - first);
      bool careful = other;
      const long long by_u = by_position(call.u, reverse), by_delta = by_position(call.delta, reverse);
      const long long by_b = by_position(call.b, reverse), by_c = by_position(call.c, reverse);
      const float bias = call.bias != 0 ? load_f32(call.bias + channel * 4ll) : 0.f;
      sync_warp();  // every lane has read the coefficients of the last tile
      UNROLL for (int half = 0; half < 2; half++) {
        const int i = lane / QUADS + half * 8;
        const SharedBytes to = memory + (half * 32 + lane) * 16;
        if (i < count) store_shared(to + OF_B, load_f4(b_at + half * 8 * by_b));
        if (wanted && i < count) store_shared(to + OF_C, load_f4(c_at + half * 8 * by_c));
      }
      NO_UNROLL for (int t = 0; t < TILE; t += HALF) {
        float u[HALF], delta[HALF];
        load_elements(u, u_at, by_u, count - t, 0.f);
        load_elements(delta, delta_at, by_delta, count - t, 0.f);
        UNROLL for (int i = 0; i < HALF; i++) {
          store_shared_f(own + (t + i) * ROW, u[i]);
          const float y = delta[i] + bias;
          careful = careful || (t + i < count && !(y >= 0.f) && !softplus);
          store_shared_f(own + (STEPS + (t + i) * ROW), y);
        }
        u_at += HALF * by_u;
        delta_at += HALF * by_delta;
      }
      // The inputs of the next tile, which this warp alone will read, are on their way while it computes.
      if (first + TILE + lane % TILE < end) {
        const bool other_half = lane >= TILE;
        prefetch((other_half ? delta_at : u_at) - lane * 4 + lane % TILE * (other_half ? by_delta : by_u));
      }
      b_at += TILE * by_b;
      c_at += TILE * by_c;
      if (softplus) {
        NO_UNROLL for (int t = 0; t < count; t++) {
          const float y = time_step_of(load_shared_f(own + (STEPS + t * ROW)));
          careful = careful || !(y >= 0.f);
          store_shared_f(own + (STEPS + t * ROW), y);
        }
      }
      if (gated) {
        const Address z_at = token_at(call.z, first);
        const long long by_z = by_position(call.z, reverse);
        NO_UNROLL for (int t = 0; t < count; t += 4) {
          float z[4];
          load_elements(z, z_at + t * by_z, by_z, count - t, 0.f);
          UNROLL for (int i = 0; i < 4; i++) store_shared_f(own + (GATES + (t + i) * ROW), silu_of(z[i]));
        }
      }
      sync_warp();
      const float skip = !FOLDS && call.skip != 0 ? load_f32(call.skip + channel * 4ll) : 0.f;
      auto finish = [&](int t, const float* y) LAMBDA {
        float sum = (y[0] + y[1]) + (y[2] + y[3]);
        if (call.skip != 0) sum = __builtin_fmaf(load_shared_f(own + t * ROW), skip, sum);
        if (gated) sum *= load_shared_f(own + (GATES + t * ROW));
        return sum;
      };
      const long long by_out = by_position(call.out, reverse);
      UNROLL for (int i = 0; i < NUMBERS; i++) store_shared_f(own + (BEFORE + i * ROW), x[i]);
      if (!any_of_warp(inside && careful)) {
        Address to = out_at;
        NO_UNROLL for (int t = 0; t < count; t++, to += by_out) {
          const float delta = load_shared_f(own + (STEPS + t * ROW)), added = product(delta, load_shared_f(own + t * ROW));
          float y[QUADS];
          UNROLL for (int q = 0; q < QUADS; q++) {
            const f4 b = load_shared(memory + (OF_B + (t * QUADS + q) * 16));
            f4 c;
            if constexpr (!FOLDS) c = load_shared(memory + (OF_C + (t * QUADS + q) * 16));
            y[q] = 0.f;
            UNROLL for (int e = 0; e < 4; e++) {
              const int i = q * 4 + e;
              const float gate = power_of(product(delta, rate[i]), leading);
              if constexpr (FOLDS) all[i] = fma_flushed(gate, all[i], 0.f);
              x[i] = fma_flushed(gate, x[i], product(added, b[e]));
              if constexpr (!FOLDS) y[q] = __builtin_fmaf(x[i], c[e], y[q]);
            }
          }
          if constexpr (!FOLDS) {
            if (wanted && inside) write_f32(to, finish(t, y));
          }
        }
        float check = 0.f;  // NaN if a state is not finite
        UNROLL for (int i = 0; i < NUMBERS; i++) check = __builtin_fmaf(x[i], 0.f, check);
        careful = !FOLDS && !(check == 0.f);
      }
      if (any_of_warp(inside && careful)) {
        if constexpr (FOLDS) {
          UNROLL for (int i = 0; i < NUMBERS; i++) store_shared_f(own + (FACTORS + i * ROW), all[i]);
        }
        NO_UNROLL for (int t = 0; t < count; t++) {
          const float delta = load_shared_f(own + (STEPS + t * ROW)), added = product(delta, load_shared_f(own + t * ROW));
          float y[QUADS];
          UNROLL for (int q = 0; q < QUADS; q++) {
            y[q] = 0.f;
            NO_UNROLL for (int i = q * 4; i < q * 4 + 4; i++) {
              const SharedBytes x_at = own + (BEFORE + i * ROW), all_at = own + (FACTORS + i * ROW);
              const SharedBytes coefficient = memory + (t * NUMBERS + i) * 4;
              float of_x = load_shared_f(x_at), factor = 1.f;
              if constexpr (FOLDS) factor = load_shared_f(all_at);
              careful_step(delta, load_f32(rates + i * 4), product(added, load_shared_f(coefficient + OF_B)), of_x, factor);
              store_shared_f(x_at, of_x);
              if constexpr (FOLDS) store_shared_f(all_at, factor);
              else y[q] = __builtin_fmaf(of_x, load_shared_f(coefficient + OF_C), y[q]);
            }
          }
          if constexpr (!FOLDS) {
            if (wanted && inside) write_f32(out_at + t * by_out, finish(t, y));
          }
        }
        UNROLL for (int i = 0; i < NUMBERS; i++) {
          x[i] = load_shared_f(own + (BEFORE + i * ROW));
          if constexpr (FOLDS) all[i] = load_shared_f(own + (FACTORS + i * ROW));
        }
      }
      out_at += TILE * by_out;
    }
    if (!inside) return;
    UNROLL for (int q = 0; q < QUADS; q++) {
      const f4 y = {x[q * 4], x[q * 4 + 1], x[q * 4 + 2], x[q * 4 + 3]};
      if constexpr (FOLDS) {
        write_f4(map_at(0) + q * 16, f4{all[q * 4], all[q * 4 + 1], all[q * 4 + 2], all[q * 4 + 3]});
        write_f4(map_at(1) + q * 16, y);
      } else if (last && call.present != 0) {
        write_f4(call.present + state + q * 16, y);
      }
    }
  }
};

// Parameters: name, whether it folds, blocks per SM.
#define SELECTIVE_S16(name, FOLDS, BLOCKS)                                \
  KERNEL LAUNCH_BOUNDS(WARPS * 32, BLOCKS) void name(const Selective call) { \
    SHARED(memory, WARPS * Lanes<FOLDS>::BYTES);                          \
    Lanes<FOLDS>::run(memory, call);                                      \
  }
