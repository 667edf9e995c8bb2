#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_b16_d128_q64k32__sm80_split_halves, 1, 128, 32, 8, 1, 2, false, false, 2, false, true, 2)
