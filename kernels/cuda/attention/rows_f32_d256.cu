#include "rows.cuh"

ATTEND_ROWS(rows_f32_d256, false, 256, 2)
