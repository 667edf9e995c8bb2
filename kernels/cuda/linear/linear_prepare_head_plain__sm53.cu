#include "prepare.cuh"

LINEAR_PREPARE(linear_prepare_head_plain__sm53, false, false, 4)
