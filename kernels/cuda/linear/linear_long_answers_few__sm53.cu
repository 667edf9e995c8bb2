#include "chunk_answers.cuh"

typedef chunks::Shape<4, 4> Own;
LINEAR_ANSWERS(linear_long_answers_few__sm53, Own, true, 2)
