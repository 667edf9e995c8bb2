#include "prepare.cuh"

LINEAR_PREPARE(linear_prepare_dim_delta__sm53, true, true, 4)
