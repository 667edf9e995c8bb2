#include "attention.cuh"

ATTENTION_WITHIN(attention_f32_d128_q64k64__sm53_exp2_approx_within, F32, 128, 4, 8, 4, 64, 16, 2, 0, 8, 4, ALL, 2)
