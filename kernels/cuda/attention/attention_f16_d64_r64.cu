#include "attention.cuh"

ATTENTION(attention_f16_d64_r64, PAIRED, 64, 4, 4, 8, 64, 32, 4, 0, 8, 4, false, 2)
