#include "tensor/prepare.cuh"

SPLIT(split_b16_d128_k32__sm80, 128, 32, true)
