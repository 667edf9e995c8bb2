#include "attention.cuh"

ATTENTION(attention_f32_d64_r128, false, 64, 4, 8, true, 6, 2)
