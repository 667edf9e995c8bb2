#include "tensor/prepare.cuh"

SPLIT(split_b16_d256_k32__sm80, 256, 32, true)
