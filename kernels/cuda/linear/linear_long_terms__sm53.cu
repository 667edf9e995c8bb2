#include "chunk_terms.cuh"

KERNEL LAUNCH_BOUNDS(chunks::THREADS, 3) void linear_long_terms__sm53(const Linear call) {
  SHARED(memory, chunks::TERMS_SHARED_BYTES);
  chunks::run_terms(memory, call);
}
