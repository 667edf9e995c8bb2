#include "walk.cuh"

LINEAR_WALK(linear_walk_head_plain_d256__sm53, 256, false, false, 1)
