#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_f32_d128_q128k32__sm80_f16, 2, 128, 32, 4, 2, 2, true, false, 2, false, false, 1, true)
