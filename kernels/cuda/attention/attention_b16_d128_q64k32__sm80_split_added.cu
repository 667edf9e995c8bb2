#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_b16_d128_q64k32__sm80_split_added, 2, 128, 32, 4, 1, 2, false, false, 1, true, true)
