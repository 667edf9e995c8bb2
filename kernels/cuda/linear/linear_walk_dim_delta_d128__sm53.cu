#include "walk.cuh"

LINEAR_WALK(linear_walk_dim_delta_d128__sm53, 128, true, true, 1)
