#include "walk.cuh"

LINEAR_WALK(linear_walk_dim_delta_d64__sm53, 64, true, true, 1)
