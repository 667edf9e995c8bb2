#include "walk.cuh"

LINEAR_WALK(linear_walk_dim_d64__sm53, 64, true, 1)
