#include "tensor/prepare.cuh"

SPLIT(split_f32_d64_k64__sm80, 64, 64, false)
