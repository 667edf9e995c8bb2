#include "attention.cuh"

ATTENTION(attention_f32_d256_r32, false, 256, 2, 4, false, 4, 1)
