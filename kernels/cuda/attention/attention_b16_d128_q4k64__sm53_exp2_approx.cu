#include "rows.cuh"

ATTEND_ROWS(attention_b16_d128_q4k64__sm53_exp2_approx, true, 128, 2)
