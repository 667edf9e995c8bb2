#include "walk.cuh"

LINEAR_WALK(linear_walk_head_delta_d256__sm53, 256, false, true, 1)
