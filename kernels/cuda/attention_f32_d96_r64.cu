#include "attention.cuh"

ATTENTION(attention_f32_d96_r64, false, 96, 4, 4, false, 4, 2)
