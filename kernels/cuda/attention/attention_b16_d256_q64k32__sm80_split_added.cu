#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_b16_d256_q64k32__sm80_split_added, 2, 256, 32, 4, 1, 2, true, false, 1, true, true)
