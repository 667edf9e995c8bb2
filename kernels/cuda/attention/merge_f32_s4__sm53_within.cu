#include "merge.cuh"

MERGE_WITHIN(merge_f32_s4__sm53_within, 4, 3)
