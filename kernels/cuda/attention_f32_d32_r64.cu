#include "attention.cuh"

ATTENTION(attention_f32_d32_r64, false, 32, 4, 4, false, 6, 3)
