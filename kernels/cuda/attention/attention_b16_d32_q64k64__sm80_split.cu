#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_b16_d32_q64k64__sm80_split, 4, 32, 64, 4, 1, 2, false, false, 2, false, true)
