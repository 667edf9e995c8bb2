#include "quadratic.cuh"

LINEAR_QUADRATIC(linear_write_head__sm53, Write<false>, 2)
