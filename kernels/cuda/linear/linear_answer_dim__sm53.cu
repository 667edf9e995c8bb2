#include "quadratic.cuh"

LINEAR_QUADRATIC(linear_answer_dim__sm53, Answer<true>, 2)
