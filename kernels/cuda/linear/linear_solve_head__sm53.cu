#include "chunk_solve.cuh"

LINEAR_SOLVE(linear_solve_head__sm53, chunks::HeadTerms, 2)
