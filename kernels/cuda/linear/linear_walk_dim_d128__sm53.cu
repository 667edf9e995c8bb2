#include "walk.cuh"

LINEAR_WALK(linear_walk_dim_d128__sm53, 128, true, 1)
