#include "prepare.cuh"

LINEAR_PREPARE(linear_prepare_dim_plain__sm53, true, false, 4)
