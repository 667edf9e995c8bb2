#include "tensor/prepare.cuh"

SPLIT(split_f32_d256_k32__sm80, 256, 32, false)
