#include "selective_s16.cuh"

SELECTIVE_S16(series_selective_s16__sm53, false, 8)
