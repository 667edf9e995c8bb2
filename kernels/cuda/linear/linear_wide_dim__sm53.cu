#include "wide.cuh"

LINEAR_WIDE(linear_wide_dim__sm53, true, 1)
