#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_f32_d256_q64k32__sm80_split, 1, 256, 32, 4, 1, 2, true, true, 1, false, false)
