#include "tensor/prepare.cuh"

SPLIT_F16(split_f32_d64_k64__sm80_f16, 64, 64)
