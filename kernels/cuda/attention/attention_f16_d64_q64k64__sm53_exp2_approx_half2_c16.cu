#include "attention.cuh"

ATTENTION(attention_f16_d64_q64k64__sm53_exp2_approx_half2_c16, PAIRED, 64, 4, 4, 8, 64, 32, 4, 0, 8, 4, ALL, 2)
