#include "attention.cuh"

ATTENTION(attention_b16_d64_r128, true, 64, 4, 8, 8, 64, 32, 2, 6, 2)
