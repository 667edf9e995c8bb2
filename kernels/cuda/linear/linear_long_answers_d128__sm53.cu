#include "chunk_answers.cuh"

LINEAR_ANSWERS(linear_long_answers_d128__sm53, 8, 2)
