// The arguments of launches inside an error budget: the device twin of kernels/src/cuda/attention/within.rs.
#pragma once

#include "call.cuh"

// The error budget, and outputs for the part left out. `part_d` belongs to the partial states of the call.
struct Budget {
  Address part_d;    // D of partial states, [row][split]; zero if there are none
  Address left_out;  // of finished rows: references, then S, then D, [3][row]
  Address counts;    // [place][4]: tiles that a block met, tiles that it left out, its rows, zero
  float odds;        // largest D / S
  int places;        // places per head for packed sequences; zero if every block has its own place
};

// A call inside a budget.
struct Within {
  Call call;
  Budget budget;
};

static_assert(__builtin_offsetof(Within, budget) == sizeof(Call) && sizeof(Budget) == 32, "");

// The call has no budget.
struct Unlimited {};
