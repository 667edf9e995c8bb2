#include "tensor/prepare.cuh"

SPLIT(split_b16_d64_k64__sm80, 64, 64, true)
