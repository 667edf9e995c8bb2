#include "rows.cuh"

ATTEND_ROWS(attention_f32_d128_q4k64__sm53_exp2_approx, false, 128, 2)
