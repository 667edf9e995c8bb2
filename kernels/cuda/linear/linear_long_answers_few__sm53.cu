#include "chunk_answers.cuh"

LINEAR_ANSWERS(linear_long_answers_few__sm53, chunks::Few, true, 2)
