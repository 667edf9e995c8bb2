#include "chunks.cuh"

LINEAR_ANSWERS(linear_answers_d128__sm53, 8, 2)
