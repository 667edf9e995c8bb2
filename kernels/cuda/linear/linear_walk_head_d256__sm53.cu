#include "walk.cuh"

LINEAR_WALK(linear_walk_head_d256__sm53, 256, false, 1)
