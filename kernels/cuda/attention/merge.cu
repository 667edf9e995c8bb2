#include "merge.cuh"

MERGE(merge, 8, true, 3)
