#include "attention.cuh"

ATTENTION(attention_f32_d64_r128, F32, 64, 4, 8, 8, 64, 32, 2, 2, 16, 4, true, 2)
