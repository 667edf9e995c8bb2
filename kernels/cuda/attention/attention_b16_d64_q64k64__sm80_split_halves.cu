#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_b16_d64_q64k64__sm80_split_halves, 1, 64, 64, 8, 1, 2, false, false, 2, false, true, 2)
