#include "rows.cuh"

ATTEND_ROWS(rows_b16_d128, true, 128, 3)
