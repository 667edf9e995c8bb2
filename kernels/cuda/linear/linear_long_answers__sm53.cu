#include "chunk_answers.cuh"

typedef chunks::Shape<8, 4> Own;
LINEAR_ANSWERS(linear_long_answers__sm53, Own, false, 4)
