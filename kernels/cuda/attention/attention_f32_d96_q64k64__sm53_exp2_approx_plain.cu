#include "attention.cuh"

ATTENTION(attention_f32_d96_q64k64__sm53_exp2_approx_plain, F32, 96, 4, 4, 8, 32, 32, 4, 0, 8, 4, NONE, 2)
