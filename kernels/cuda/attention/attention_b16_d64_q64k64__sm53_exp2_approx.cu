#include "attention.cuh"

ATTENTION(attention_b16_d64_q64k64__sm53_exp2_approx, WIDENED, 64, 4, 4, 8, 64, 32, 4, 0, 8, 4, ALL, 3)
