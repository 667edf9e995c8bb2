#include "chunk_solve.cuh"

LINEAR_SOLVE(linear_solve_dim__sm53, chunks::DimTerms, 2)
