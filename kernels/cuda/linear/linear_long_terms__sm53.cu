#include "chunk_terms.cuh"

LINEAR_TERMS(linear_long_terms__sm53, chunks::Many, 4)
