#include "rows.cuh"

ATTEND_ROWS(rows_b16_d64, true, 64, 3)
