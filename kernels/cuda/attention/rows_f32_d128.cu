#include "rows.cuh"

ATTEND_ROWS(rows_f32_d128, false, 128, 3)
