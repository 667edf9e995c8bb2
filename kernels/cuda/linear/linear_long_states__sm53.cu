// The second launch for all chunks at once: replaces B of each chunk by the state before it; chunks.cuh has the formulas.
//
// A thread has an element of a state. It loads some chunks together, because each step only waits for the one before it. The
// call's heads are states.
#include "chunks.cuh"

namespace chunks {

// Threads of a block, and elements: LONG_ELEMENTS of linear/mod.rs.
constexpr int ELEMENTS = 128;

INLINE void run_states(const Linear& call) {
  constexpr int AHEAD = 16;
  const int of_columns = quotient_of(block_index(), call.by_columns), number = quotient_of(of_columns, call.by_heads);
  const int state_head = of_columns - number * call.heads, width = (int)call.boundaries.row;
  const int index = (block_index() - of_columns * call.columns) * ELEMENTS + thread_index();
  const int row = index / width, column = index - row * width;
  const Sequence sequence = sequence_of(call, number);
  if (row >= call.key_dim || sequence.tokens < call.least || sequence.tokens >= call.most) return;
  const long long step = call.boundaries.part * 4;
  const Address first = call.boundaries.data + state_head * call.boundaries.head * 4 + sequence.chunk0 * step;
  const Address own = first + index * 4, gates = first + call.key_dim * width * 4;
  auto place = [&](const States& s) LAMBDA {
    return s.data + (number * s.sequence + state_head * s.head + row * s.row + column) * 4;
  };
  float state = 0.f;
  if (call.initial.data != 0 && column < call.value_dim) state = read_f32(place(call.initial));
  const int count = (sequence.tokens + LONG_CHUNK - 1) / LONG_CHUNK, terms = call.last.data == 0 ? count - 1 : count;
  NO_UNROLL for (int chunk = 0; chunk < count; chunk += AHEAD) {
    float written[AHEAD];
    u2 gate[AHEAD];
    UNROLL for (int i = 0; i < AHEAD; i++) {
      written[i] = 0.f;
      gate[i] = u2{0, 0};
      if (chunk + i < terms) {
        written[i] = read_f32(own + (chunk + i) * step);
        gate[i] = load_u2(gates + (chunk + i) * step);
      }
    }
    UNROLL for (int i = 0; i < AHEAD; i++)
      if (chunk + i < count) {
        write_f32(own + (chunk + i) * step, state);
        state = after(float_of_bits(gate[i][0]), state, grown_by(float_of_bits(gate[i][1]), written[i]));
      }
  }
  if (call.last.data != 0 && column < call.value_dim) write_f32(place(call.last), state);
}

}  // namespace chunks

KERNEL LAUNCH_BOUNDS(chunks::ELEMENTS, 4) void linear_long_states__sm53(const Linear call) { chunks::run_states(call); }
