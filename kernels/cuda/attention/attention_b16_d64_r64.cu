#include "attention.cuh"

ATTENTION(attention_b16_d64_r64, WIDENED, 64, 4, 4, 8, 64, 32, 4, 0, 8, 4, false, 3)
