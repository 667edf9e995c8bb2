#include "attention.cuh"

ATTENTION(attention_f32_d256_r32, false, 256, 2, 8, 4, 32, 8, 4, 6, 4)
