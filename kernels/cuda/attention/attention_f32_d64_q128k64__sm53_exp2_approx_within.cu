#include "attention.cuh"

ATTENTION_WITHIN(attention_f32_d64_q128k64__sm53_exp2_approx_within, F32, 64, 4, 8, 8, 64, 32, 2, 2, 16, 4, NONE, 2)
