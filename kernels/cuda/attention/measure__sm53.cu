// How large the elements of the tensors of a call are, one record a block.
#include "measure.cuh"

KERNEL LAUNCH_BOUNDS(measure::THREADS, 2) void measure__sm53(const Measure m) { measure::run(m); }
