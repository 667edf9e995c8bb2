#include "attention.cuh"

ATTENTION_WITHIN(attention_b16_d256_q32k64__sm53_exp2_approx_within, WIDENED, 256, 4, 4, 4, 32, 8, 4, 0, 8, 4, ALL, 2)
