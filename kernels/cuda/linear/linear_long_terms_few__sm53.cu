#include "chunk_terms.cuh"

typedef chunks::Shape<4, 4> Own;
LINEAR_TERMS(linear_long_terms_few__sm53, Own, 2)
