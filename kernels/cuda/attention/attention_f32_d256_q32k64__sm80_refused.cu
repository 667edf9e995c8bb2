#include "tensor/refused.cuh"

ATTENTION_REFUSED(attention_f32_d256_q32k64__sm80_refused, F32, 256, 4, 4, 4, 32, 8, 4, 0, 8, 4, ALL, 2)
