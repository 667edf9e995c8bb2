#include "attention.cuh"

ATTENTION_MERGED(attention_f32_d64_q32k64__sm53_exp2_approx, F32, 64, 4, 4, 4, 64, 32, 2, 1, 8, 4, ALL, 4)
