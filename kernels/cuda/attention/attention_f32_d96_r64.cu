#include "attention.cuh"

ATTENTION(attention_f32_d96_r64, F32, 96, 4, 4, 8, 32, 16, 8, 0, 8, 4, false, 2)
