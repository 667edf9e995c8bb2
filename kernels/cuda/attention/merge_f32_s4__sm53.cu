#include "merge.cuh"

MERGE(merge_f32_s4__sm53, 4, false, 8)
