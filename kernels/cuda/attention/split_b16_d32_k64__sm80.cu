#include "tensor/prepare.cuh"

SPLIT(split_b16_d32_k64__sm80, 32, 64, true)
