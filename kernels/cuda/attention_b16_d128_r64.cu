#include "attention.cuh"

ATTENTION(attention_b16_d128_r64, true, 128, 4, 4, false, 4, 2)
