#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_f32_d64_q128k64__sm80_f16, 2, 64, 64, 4, 2, 1, false, false, 2, false, false, 1, true)
