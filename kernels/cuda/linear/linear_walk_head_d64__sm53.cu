#include "walk.cuh"

LINEAR_WALK(linear_walk_head_d64__sm53, 64, false, 1)
