#include "chunks.cuh"

KERNEL LAUNCH_BOUNDS(chunks::THREADS, 4) void linear_states__sm53(const Linear call) { chunks::run_states(call); }
