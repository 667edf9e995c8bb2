#include "attention.cuh"

ATTENTION(attention_f32_d64_r64, F32, 64, 4, 4, 8, 64, 32, 4, 1, 8, 4, false, 3)
