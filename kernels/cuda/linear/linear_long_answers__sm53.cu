#include "chunk_answers.cuh"

LINEAR_ANSWERS(linear_long_answers__sm53, chunks::Many, false, 4)
