#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_f32_d32_q64k64__sm80_split_added, 3, 32, 64, 4, 1, 2, false, false, 1, true, false)
