// Records: the prepared data of a chunk, for the kernels that walk.
//
// A record has T and P, row by row; per token, the factor of the earlier state in its answer, exp(G_i), and the factor of
// its change in the state after the chunk, exp(G_C - G_j); exp(G_C); whether the chunk goes token by token; and G_C in f64.
// In that case the factors of a token are its gate and its beta.
//
// With a gate per dim each chunk also has a tile: rows exp(G_i) k_i, rows exp(G_i) q_i, rows exp(G_C - G_j) k_j, and
// exp(G_C). If the chunk goes token by token: rows k, rows q, rows of gates. Factors of tokens are then one.
#pragma once

#include "call.cuh"

constexpr int RECORD_T = 0, RECORD_P = 256, RECORD_BEFORE = 512, RECORD_AFTER = 528, RECORD_END = 544;
constexpr int RECORD_MARKED = 545, RECORD_SUM = 546, RECORD = 548;
constexpr int TILE_ROWS = 3 * CHUNK + 1;
