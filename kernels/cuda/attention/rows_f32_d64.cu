#include "rows.cuh"

ATTEND_ROWS(rows_f32_d64, false, 64, 3)
