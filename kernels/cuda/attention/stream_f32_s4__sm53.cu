#include "merge.cuh"

MERGE_STREAM(stream_f32_s4__sm53, 4, 4)
