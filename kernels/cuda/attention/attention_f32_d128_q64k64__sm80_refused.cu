#include "tensor/refused.cuh"

ATTENTION_REFUSED(attention_f32_d128_q64k64__sm80_refused, F32, 128, 4, 8, 4, 64, 16, 2, 0, 8, 4, ALL, 2)
