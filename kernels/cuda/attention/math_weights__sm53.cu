#include "math.cuh"

KERNEL LAUNCH_BOUNDS(math::THREADS, 6) void math_weights__sm53(const Math x) { math::weights(x); }
