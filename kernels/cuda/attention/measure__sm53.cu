// Magnitudes of the elements of a call's tensors, one record per block.
#include "measure.cuh"

KERNEL LAUNCH_BOUNDS(measure::THREADS, 2) void measure__sm53(const Measure m) { measure::run(m); }
