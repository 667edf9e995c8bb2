#include "rows.cuh"

ATTEND_ROWS(attention_b16_d256_q4k64__sm53_exp2_approx, true, 256, 2)
