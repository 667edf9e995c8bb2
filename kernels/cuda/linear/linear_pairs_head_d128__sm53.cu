#include "walk.cuh"

LINEAR_PAIRS(linear_pairs_head_d128__sm53, 128, false, 1)
