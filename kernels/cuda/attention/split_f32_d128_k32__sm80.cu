#include "tensor/prepare.cuh"

SPLIT(split_f32_d128_k32__sm80, 128, 32, false)
