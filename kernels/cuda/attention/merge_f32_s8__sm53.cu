#include "merge.cuh"

MERGE(merge_f32_s8__sm53, 8, true, 3)
