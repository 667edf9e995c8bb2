#include "rows.cuh"

ATTEND_ROWS(rows_b16_d256, true, 256, 2)
