#include "parallel.cuh"

KERNEL LAUNCH_BOUNDS(parallel::THREADS, 4) void linear_parallel__sm53(const Linear call) {
  SHARED(memory, parallel::SHARED_BYTES);
  parallel::Block(memory, call).run();
}
