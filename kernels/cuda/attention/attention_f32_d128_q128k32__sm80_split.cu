#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_f32_d128_q128k32__sm80_split, 2, 128, 32, 4, 2, 2, true, true, 1, false, false)
