#include "attention.cuh"

ATTENTION(attention_f32_d32_r64, F32, 32, 2, 8, 8, 32, 64, 4, 1, 8, 6, false, 4)
