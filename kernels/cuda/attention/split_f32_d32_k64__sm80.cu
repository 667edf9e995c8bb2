#include "tensor/prepare.cuh"

SPLIT(split_f32_d32_k64__sm80, 32, 64, false)
