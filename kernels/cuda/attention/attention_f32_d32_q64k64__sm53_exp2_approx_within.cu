#include "attention.cuh"

ATTENTION_WITHIN(attention_f32_d32_q64k64__sm53_exp2_approx_within, F32, 32, 2, 8, 8, 32, 64, 4, 1, 8, 6, NONE, 4)
