#include "chunk_terms.cuh"

LINEAR_TERMS(linear_long_terms_few__sm53, chunks::Few, 2)
