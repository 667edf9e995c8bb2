#include "rows.cuh"

ATTEND_ROWS(attention_b16_d64_q4k64__sm53_exp2_approx, true, 64, 3)
