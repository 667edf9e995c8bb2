#include "walk.cuh"

LINEAR_WALK(linear_walk_head_delta_d64__sm53, 64, false, true, 1)
