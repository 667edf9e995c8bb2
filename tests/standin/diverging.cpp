// Kernels whose lanes wait at different places, which the host must end: `diverging NAME` runs one, in a block of two
// warps.
#include "block.h"

#include <cstdio>
#include <cstring>

#include "common/host.cuh"

namespace {

constexpr int THREADS = 64;

// Conditions on which the lanes of a block, or of a warp, disagree.
bool odd_lane() { return thread_index() % 2 != 0; }
bool odd_warp() { return thread_index() / 32 != 0; }

void together(const void*) {
  for (int i = 0; i < 3; i++) sync_block();
  if (odd_warp()) sync_warp();
  else sync_warp();
  if (any_of_block(odd_lane()) && shuffle_xor(1.f, 1) == 1.f) sync_block();
}
void block_barriers(const void*) {
  if (odd_lane()) sync_block();  // first
  else sync_block();             // second
}
void warps_at_barriers(const void*) {
  if (odd_warp()) sync_block();  // first
  else sync_block();             // second
}
void block_votes(const void*) {
  if (odd_warp()) any_of_block(true);  // first
  else any_of_block(false);            // second
}
void warp_barriers(const void*) {
  if (odd_lane()) sync_warp();  // first
  else sync_warp();             // second
}
void ballots(const void*) {
  if (odd_lane()) ballot(true);  // first
  else any_of_warp(true);        // second
}
void shuffles(const void*) {
  if (odd_lane()) shuffle_xor(1.f, 1);  // first
  else shuffle_from(1, 1);              // second
}
void one_line(const void*) {
  odd_lane() ? sync_block() : sync_block();  // first, second
}
void kinds(const void*) {
  if (odd_lane()) sync_block();  // first
  else any_of_block(true);       // second
}
void missing(const void*) {
  if (odd_lane()) sync_block();  // first
}

#define NAMED(name) {#name, name, 0, nullptr}
const Kernel KERNELS[] = {
    NAMED(together),
    NAMED(block_barriers),
    NAMED(warps_at_barriers),
    NAMED(block_votes),
    NAMED(warp_barriers),
    NAMED(ballots),
    NAMED(shuffles),
    NAMED(one_line),
    NAMED(kinds),
    NAMED(missing),
};

}  // namespace

int main(int arguments, char** argument) {
  for (const Kernel& kernel : KERNELS) {
    if (arguments == 2 && std::strcmp(argument[1], kernel.name) == 0) {
      run_grid(kernel, nullptr, THREADS, 3);
      return 0;
    }
  }
  std::fprintf(stderr, "diverging: one of its kernels must be named\n");
  return 2;
}
