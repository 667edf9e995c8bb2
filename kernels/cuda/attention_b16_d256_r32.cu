#include "attention.cuh"

ATTENTION(attention_b16_d256_r32, true, 256, 2, 8, 4, 32, 8, 4, 6, 4)
