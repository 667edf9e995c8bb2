#include "tensor/prepare.cuh"

SPLIT_F16(split_f32_d128_k32__sm80_f16, 128, 32)
