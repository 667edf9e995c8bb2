#include "prepare.cuh"

LINEAR_PREPARE(linear_prepare_head_delta__sm53, false, true, 4)
