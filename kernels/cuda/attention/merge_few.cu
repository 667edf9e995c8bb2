#include "merge.cuh"

MERGE(merge_few, 4, false, 8)
