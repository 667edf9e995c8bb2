#include "walk.cuh"

LINEAR_WALK(linear_walk_dim_plain_d64__sm53, 64, true, false, 1)
