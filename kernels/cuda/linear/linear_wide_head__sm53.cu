#include "wide.cuh"

LINEAR_WIDE(linear_wide_head__sm53, false, 1)
