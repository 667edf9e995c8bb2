#include "quadratic.cuh"

LINEAR_QUADRATIC(linear_answer_head__sm53, Answer<false>, 2)
