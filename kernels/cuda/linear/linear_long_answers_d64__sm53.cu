#include "chunk_answers.cuh"

LINEAR_ANSWERS(linear_long_answers_d64__sm53, 4, 3)
