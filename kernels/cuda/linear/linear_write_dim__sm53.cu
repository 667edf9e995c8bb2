#include "quadratic.cuh"

LINEAR_QUADRATIC(linear_write_dim__sm53, Write<true>, 2)
