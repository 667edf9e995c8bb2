#include "tensor/attend.cuh"

ATTENTION_SPLIT(attention_f32_d96_q64k32__sm80_split_added, 2, 96, 32, 4, 1, 2, false, false, 1, true, false)
