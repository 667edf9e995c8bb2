#include "math.cuh"

KERNEL LAUNCH_BOUNDS(math::THREADS, 3) void math_values__sm53(const Math x) {
  SHARED(memory, 2 * math::AREA);
  math::values(memory, x);
}
