#include "chunk_terms.cuh"

typedef chunks::Shape<8, 4> Own;
LINEAR_TERMS(linear_long_terms__sm53, Own, 4)
