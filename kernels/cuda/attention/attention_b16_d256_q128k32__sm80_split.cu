#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_b16_d256_q128k32__sm80_split, 1, 256, 32, 8, 1, 2, true, false, 2, false, true)
