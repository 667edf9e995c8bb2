// The arguments of launches inside an error budget: the device twin of kernels/src/cuda/attention/within.rs.
#pragma once

#include "call.cuh"

// What may be left out, and where what was left out is written. `part_d` goes with the partial states of the call.
struct Budget {
  Address part_d;    // D of partial states, [row][split]; zero: none
  Address left_out;  // of finished rows: references, then S, then D, [3][row]
  Address counts;    // tiles that a block met and left out, its rows, zero: [place][4]
  float odds;        // largest D / S
  int places;        // of packed sequences the places of a head; zero: every block has its own
};

// A call inside a budget.
struct Within {
  Call call;
  Budget budget;
};

static_assert(__builtin_offsetof(Within, budget) == sizeof(Call) && sizeof(Budget) == 32, "");

// The call has no budget.
struct Unlimited {};
