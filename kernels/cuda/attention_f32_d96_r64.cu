#include "attention.cuh"

ATTENTION(attention_f32_d96_r64, false, 96, 4, 8, 4, 32, 16, 4, 6, 3)
