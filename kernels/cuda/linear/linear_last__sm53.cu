#include "quadratic_last.cuh"

LINEAR_QUADRATIC(linear_last__sm53, Last, 2)
