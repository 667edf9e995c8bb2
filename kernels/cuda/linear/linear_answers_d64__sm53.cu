#include "chunks.cuh"

LINEAR_ANSWERS(linear_answers_d64__sm53, 4, 3)
