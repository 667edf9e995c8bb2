#include "attention.cuh"

ATTENTION(attention_f32_d128_r64, F32, 128, 4, 8, 4, 64, 16, 2, 0, 8, 4, false, 2)
