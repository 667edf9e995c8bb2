#include "attention.cuh"

ATTENTION(attention_f32_d128_r64, false, 128, 4, 4, false, 4, 2)
