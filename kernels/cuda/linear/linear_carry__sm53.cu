#include "carry.cuh"

KERNEL LAUNCH_BOUNDS(carry::THREADS, 2) void linear_carry__sm53(const Carry call) {
  SHARED(memory, carry::ROWS * carry::MOST_DIMS * 4);
  carry::run(memory, call);
}
