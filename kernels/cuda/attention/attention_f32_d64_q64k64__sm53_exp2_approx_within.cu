#include "attention.cuh"

ATTENTION_WITHIN(attention_f32_d64_q64k64__sm53_exp2_approx_within, F32, 64, 4, 4, 8, 64, 32, 4, 1, 8, 4, ALL, 2)
