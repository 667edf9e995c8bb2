#include "math.cuh"

KERNEL LAUNCH_BOUNDS(math::THREADS, 3) void math_scores__sm53(const Math x) {
  SHARED(memory, 2 * math::AREA);
  math::scores(memory, x);
}
