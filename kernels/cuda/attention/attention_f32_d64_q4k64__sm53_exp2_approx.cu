#include "rows.cuh"

ATTEND_ROWS_MERGED(attention_f32_d64_q4k64__sm53_exp2_approx, false, 64, 3)
