#include "attention.cuh"

ATTENTION_MERGED(attention_f32_d32_q32k64__sm53_exp2_approx, F32, 32, 2, 4, 8, 32, 64, 4, 1, 8, 6, ALL, 6)
