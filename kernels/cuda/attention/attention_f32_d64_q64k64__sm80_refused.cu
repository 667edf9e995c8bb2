#include "tensor/refused.cuh"

ATTENTION_REFUSED(attention_f32_d64_q64k64__sm80_refused, F32, 64, 4, 4, 8, 64, 32, 4, 1, 8, 4, ALL, 2)
