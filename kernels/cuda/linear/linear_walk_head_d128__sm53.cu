#include "walk.cuh"

LINEAR_WALK(linear_walk_head_d128__sm53, 128, false, 1)
