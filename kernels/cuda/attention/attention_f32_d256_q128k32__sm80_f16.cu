#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_f32_d256_q128k32__sm80_f16, 1, 256, 32, 8, 1, 2, true, false, 2, false, false, 1, true)
