// Sums the logarithms of the gates of each part, for the scan over parts: f64 [sequence][head][part][gates].
//
// A block has a part of a state's head. With a gate per dim a lane has dims and runs down the tokens; otherwise it has
// every 128th token, and the sums of lanes are added in order.
#include "exp.cuh"
#include "place.cuh"

struct Sums {
  Linear call;    // heads are output heads; parts, sequences and decay are read
  Address sums;
  int gates, unused;  // gates per token
};

static_assert(__builtin_offsetof(Sums, sums) == sizeof(Linear) && sizeof(Sums) == sizeof(Linear) + 16, "");

constexpr int THREADS = 128, AHEAD = 8;

INLINE void store_sum(SharedBytes p, double x) {
  const unsigned long long bits = bits_of_double(x);
  store_shared_f(p, float_of_bits((unsigned)bits));
  store_shared_f(p + 4, float_of_bits((unsigned)(bits >> 32)));
}
INLINE double load_sum(SharedBytes p) {
  return double_of_bits((unsigned long long)bits_of(load_shared_f(p + 4)) << 32 | bits_of(load_shared_f(p)));
}

KERNEL LAUNCH_BOUNDS(THREADS, 4) void linear_sums__sm53(const Sums sums) {
  SHARED(memory, THREADS * 8);
  const Linear& call = sums.call;
  const int of_parts = quotient_of(block_index(), call.by_parts), part = block_index() - of_parts * call.parts;
  const int states = quotient_of(call.heads, call.by_readers);
  const int number = of_parts / states, head = of_parts - number * states;
  const Sequence sequence = sequence_of(call, number);
  if (sequence.tokens < call.least || sequence.tokens >= call.most) return;
  const Rows gates = rows_of(call.decay, sequence, head, sums.gates, call.gate_dtype, false, (call.flags & REVERSE) != 0);
  const int first = part * sequence.part_chunks * CHUNK;
  const int end = min_of(first + sequence.part_chunks * CHUNK, sequence.tokens);
  const Address to = sums.sums + (long long)block_index() * sums.gates * 8;
  const bool many = sums.gates > 1;
  NO_UNROLL for (int x = many ? thread_index() : 0; x < sums.gates; x += many ? THREADS : 1) {
    double sum = 0.;
    const int from = many ? first : first + thread_index(), step = many ? 1 : THREADS;
    NO_UNROLL for (int t = from; t < end; t += step * AHEAD) {
      float g[AHEAD];
      UNROLL for (int i = 0; i < AHEAD; i++) {
        g[i] = 0.f;
        if (t + i * step < end) g[i] = element(row_at(gates, t + i * step), x, gates.dtype);
      }
      UNROLL for (int i = 0; i < AHEAD; i++) sum = sum_of_logs(sum, (double)g[i]);
    }
    if (!many) {
      store_sum(memory + thread_index() * 8, sum);
      sync_block();
      sum = 0.;
      NO_UNROLL for (int t = 0; t < THREADS; t++) sum = sum_of_logs(sum, load_sum(memory + t * 8));
      if (thread_index() > 0) return;
    }
    const unsigned long long bits = bits_of_double(sum);
    write_u2(to + x * 8, u2{(unsigned)bits, (unsigned)(bits >> 32)});
  }
}
